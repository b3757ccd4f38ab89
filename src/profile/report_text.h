// A report as a table for people.
#pragma once

#include <string>

#include "profile/report.h"

namespace sluice::profile {

/// Each row ends with its kernel and where that is defined; with_resources: and with what the kernel takes of
/// the device. The totals stand below: sums against wall time, what the clocks cost, the limit.
std::string report_text(const Report& report, bool with_resources);

/// The rows as a Markdown table, for documents.
std::string report_markdown(const Report& report);

}  // namespace sluice::profile
