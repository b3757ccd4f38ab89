// CLI11's classes by name, for headers: what their own header brings takes seconds to compile.
#pragma once

namespace CLI {
class App;
class Error;
class Option;
}  // namespace CLI
