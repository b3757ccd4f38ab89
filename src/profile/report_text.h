// A report as a table for people.
#pragma once

#include <string>

#include "profile/report.h"

namespace sluice::profile {

/// with_source: each row's kernel, its file and line. The totals stand below: sums against wall time, what
/// the clocks cost, the limit.
std::string report_text(const Report& report, bool with_source);

/// The rows as a Markdown table, for documents.
std::string report_markdown(const Report& report);

}  // namespace sluice::profile
