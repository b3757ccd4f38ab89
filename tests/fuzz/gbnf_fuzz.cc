// Any bytes, however many, as a GBNF grammar: a constraint or an Error, within its budget; then a short walk.
#include <string_view>

#include "base/error.h"
#include "fuzz/constraint_walk.h"

using namespace sluice;  // NOLINT: a program of one file

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view grammar(reinterpret_cast<const char*>(data), size);
    text::walk(*text::gbnf_constraint(grammar, text::fuzzed_place(size)), static_cast<uint32_t>(size));
  } catch (const Error&) {
    // what is no grammar, or takes too much
  }
  return 0;
}
