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

/// a, b: files of `sluice profile --json`. Tests that both hold are compared op by op. Throws Error that
/// names the file when it is no such profile, or when no test is in both.
Diff compare(const std::string& a_name, const nlohmann::json& a, const std::string& b_name,
             const nlohmann::json& b);

}  // namespace sluice::profile
