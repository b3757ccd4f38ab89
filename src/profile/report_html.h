// Reports as one self-contained page with plots, light or dark as its reader's system is.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "profile/report.h"

namespace sluice::profile {

/// Decode speed at a depth, measured and at the hardware's limit (0: not known).
struct DepthSpeed {
  double depth = 0, tokens_per_second = 0, limit_tokens_per_second = 0;
};

/// A line of what was measured: "machine", "AMD EPYC, 2 threads".
struct Fact {
  std::string name, value;
};

struct Page {
  std::string title, subtitle;
  std::span<const Report> reports;
  std::span<const DepthSpeed> speeds;  ///< may be empty
  std::vector<Fact> facts = {};        ///< when, where and how
  double speeds_bytes_per_second = 0;  ///< what the limit of speeds is of; 0: not told
};

std::string report_html(const Page& page);

}  // namespace sluice::profile
