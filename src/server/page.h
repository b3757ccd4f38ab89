// The web page, as one file inside the program.
#pragma once

#include <string_view>

namespace sluice::server {

/// The HTML; empty where the program was built without it.
std::string_view page();

}  // namespace sluice::server
