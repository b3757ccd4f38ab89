// How a template fails inside this folder. Leaves it only as TemplateError (template.h), with its line.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace sluice::text::jinja {

/// A failure on its way out. The innermost node that it passes writes its line.
struct Failure {
  std::string message;
  int line = 0;         ///< 1 is the first line of the template; 0: not yet known
  bool raised = false;  ///< the template itself called raise_exception
};

/// Throws a Failure made from a format string.
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace sluice::text::jinja
