#pragma once

#include <functional>
#include <string>

#include "base/error.h"

namespace sluice {

/// What the error says that the call ends with; "": it ends without one.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace sluice
