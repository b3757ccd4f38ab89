// The endpoints, one function each, as the table of routes (routes.cc) has them. They run on the workers and
// answer the call's exchange, now or later; what they throw becomes the answer.
#pragma once

#include "server/generation.h"

namespace sluice::server {

void chat_completions(const Call& call);
void completions(const Call& call);
void messages(const Call& call);
void count_tokens(const Call& call);
void responses(const Call& call);
void tokenize(const Call& call);
void detokenize(const Call& call);
void apply_template(const Call& call);
void models(const Call& call);
void props(const Call& call);
void slots(const Call& call);

}  // namespace sluice::server
