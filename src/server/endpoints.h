// The endpoints, one function each, as the table of routes (routes.cc) has them. They run on the workers and
// answer the call's exchange, now or later; what they throw becomes the answer.
#pragma once

#include "server/generation.h"
#include "server/model_set.h"

namespace sluice::server {

void chat_completions(const Call& call);
void completions(const Call& call);
void messages(const Call& call);
void count_tokens(const Call& call);
void responses(const Call& call);
void tokenize(const Call& call);
void detokenize(const Call& call);
void apply_template(const Call& call);
void props(const Call& call);
void tokenizer_info(const Call& call);
void slots(const Call& call);
void cache(const Call& call);
void clear_cache(const Call& call);
void ollama_chat(const Call& call);
void ollama_generate(const Call& call);
void ollama_show(const Call& call);

/// About all models, loaded or not.
void models(ModelSet& models, Exchange& exchange);
void load_model(ModelSet& models, Exchange& exchange);
void unload_model(ModelSet& models, Exchange& exchange);
void ollama_tags(ModelSet& models, Exchange& exchange);
void ollama_ps(ModelSet& models, Exchange& exchange);
void ollama_version(ModelSet& models, Exchange& exchange);

}  // namespace sluice::server
