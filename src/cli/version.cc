#include "cli/version.h"

#include <string>

namespace sluice::cli {

const char* version() {
  static const std::string text =
      SLUICE_COMMIT[0] == '\0' ? SLUICE_VERSION : std::string(SLUICE_VERSION " (" SLUICE_COMMIT ")");
  return text.c_str();
}

const char* commit() { return SLUICE_COMMIT; }

}  // namespace sluice::cli
