// The source of the kernels that a profile names, where the source tree is at hand.
#pragma once

#include <string>

#include "profile/report.h"

namespace sluice::cli {

/// The source of the three kernels that take most of a step.
std::string sources_text(const profile::Report& report);

/// Lines of a text, numbered from 1 on: `line`, where a kernel is defined, and before it the function that it
/// names, `most` lines of it at most.
std::string excerpt(const std::string& text, int line, int most);

/// Lines of a text, numbered: the CUDA kernel of this name, `most` lines of it at most; "" where it does not
/// stand there.
std::string device_function(const std::string& text, const std::string& name, int most);

}  // namespace sluice::cli
