// A limit on reasoning: once a model has thought for so many tokens, the tag that closes its thoughts is what
// comes next, and it answers. Knows tokens and the tags of an output format.
#pragma once

#include <cstdint>
#include <memory>

#include "text/constraint.h"

namespace sluice::text {

class Tokenizer;

/// Holds an answer's reasoning to `tokens` tokens, of which its closing tag is none. A character that the
/// last of them leaves unfinished may be finished. What comes behind the reasoning is up to `rest` (null:
/// anything), which follows the reasoning too. `starts_in_thinking`: the prompt ends within reasoning; else
/// reasoning may stand at the answer's very beginning. `tokenizer` must outlive the result and its clones.
std::unique_ptr<TokenConstraint> limit_thinking(int64_t tokens, const Tokenizer& tokenizer,
                                                const OutputFormat& format, bool starts_in_thinking,
                                                std::unique_ptr<TokenConstraint> rest = nullptr);

}  // namespace sluice::text
