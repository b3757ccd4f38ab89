// A text that a backend writes at temperature 0, as another backend sees it. Two that round differently write
// different texts from the first near tie on, so it is not texts that are compared: each token is held
// against what the judge finds likeliest after the very tokens before it.
#pragma once

#include <cstdint>
#include <span>

#include "program/backend.h"

namespace sluice::engine {

struct JudgedText {
  int64_t tokens = 0;       ///< that were written
  int64_t first = 0;        ///< of those: are the judge's likeliest
  int64_t first_other = 0;  ///< the index of the first that is not; `tokens` when there is none
  double farthest = 0;      ///< how far a token's logit lies below the judge's highest, at most
  /// Between the logits of both, root mean square over the first rows of the text: a token that lies not
  /// much farther behind than that is a near tie.
  double logit_error = 0;
};

/// So many tokens after the prompt, written a row a step; what ends a text is a token like others. Both
/// executables must be of one program and have the pages of prompt and text together; the judge runs up to
/// judge_rows in a step.
JudgedText judge_text(program::Executable& writer, program::Executable& judge, int64_t judge_rows,
                      std::span<const int32_t> prompt, int64_t tokens);

}  // namespace sluice::engine
