// A model: a file, its facts, and the Program that they make. Knows no backend.
#pragma once

#include <optional>
#include <string>

#include "gguf/gguf.h"
#include "model/spec.h"
#include "program/backend.h"
#include "program/program.h"
#include "text/tokenizer.h"

namespace sluice::model {

struct Model {
  gguf::File file;  ///< the weights' bytes live here
  Spec spec;
  program::Program program;
  program::WeightBytes weights;

  /// The program of a block of multi-token prediction, which says what comes after the next token.
  struct Prediction {
    program::Program program;
    program::WeightBytes weights;
  };
  std::optional<Prediction> prediction = {};  ///< of add_prediction()

  /// Opens and checks a file. Throws Error that lists everything that is wrong with it. cache: what its cache
  /// holds numbers in, F16 or Q8_0 (quant/cache_row.h).
  static Model load(const std::string& path, quant::Type cache = quant::Type::F16);
  /// The same of a file that is open already.
  static Model load(gguf::File file, quant::Type cache = quant::Type::F16);

  /// Adds the program of the file's block of multi-token prediction, and makes `program` leave the hidden
  /// states that it begins with. Where that cannot be, says why, and everything is as it was.
  std::optional<std::string> add_prediction(quant::Type cache = quant::Type::F16);
};

/// Whether a file has a block of multi-token prediction and no trunk ("mtp-*.gguf"): it can be looked at, not
/// run.
bool is_prediction_alone(const gguf::File& file);

/// What a user should know of a vocabulary that can be read, in one line. Nothing: it is as it should be.
std::optional<std::string> vocabulary_warning(const gguf::File& file);

/// The tokenizer of a file's vocabulary. Throws Error "PATH: ...".
text::Tokenizer load_tokenizer(const gguf::File& file);

}  // namespace sluice::model
