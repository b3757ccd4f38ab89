// Reports as JSON, and two such files compared.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "profile/report.h"

namespace sluice::profile {

nlohmann::ordered_json report_json(const Report& report);

/// What changed from one profile to another.
struct Diff {
  std::string text;          ///< a table: one line an op, the total last
  double worst_percent = 0;  ///< the largest slowdown of an op or the total that is beyond noise and adds a
                             ///< thousandth to the step; 0: none
};

/// A file of `sluice profile --json`.
struct ProfileFile {
  std::string name;
  nlohmann::ordered_json content;
};

/// Tests that both sides hold are compared op by op. A side is one run or several of the same program: of
/// several the median counts, and what they lie apart is noise. To noise counts, too, how far the machine
/// drifted, as far as the files tell. Throws Error that names the file when it is no such profile, or when no
/// test is in both.
Diff compare(std::span<const ProfileFile> a, std::span<const ProfileFile> b);

}  // namespace sluice::profile
