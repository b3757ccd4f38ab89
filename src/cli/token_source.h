// Token ids that a command runs: out of a JSON file, or a text made into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace sluice::cli {

/// The array "tokens" of a JSON object, every id within the vocabulary. Throws Error "PATH: ...".
std::vector<int32_t> read_token_file(const std::string& path, int64_t vocabulary);

/// A text as a model reads it: with BOS in front where the model wants one; control tokens written in it stay
/// text.
std::vector<int32_t> tokens_of_text(const gguf::File& file, const std::string& text);

}  // namespace sluice::cli
