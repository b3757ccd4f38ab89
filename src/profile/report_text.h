// A report as a table for people.
#pragma once

#include <string>

#include "profile/report.h"

namespace sluice::profile {

/// What the hardware needs at least, as a share of the time taken. Where an op was quicker than memory gives
/// its bytes they came out of a cache: "> 100 %" says that, and no more.
std::string share_of_limit(double limit_us, double us);

/// A row's name: its layer, op and weight, as far as it has them.
std::string name_of(const Row& row);

/// The kernel and where it is defined.
std::string kernel_text(const program::BoundKernel& kernel);

/// Sums against wall time, what the clocks cost, the limit: a line each.
std::string totals_text(const Report& report);

/// Each row ends with its kernel and where that is defined; with_resources: and with what the kernel takes of
/// the device. The totals stand below: sums against wall time, what the clocks cost, the limit.
std::string report_text(const Report& report, bool with_resources);

/// The rows as a Markdown table, for documents.
std::string report_markdown(const Report& report);

}  // namespace sluice::profile
