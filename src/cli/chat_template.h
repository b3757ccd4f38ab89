// The chat template of a model file, ready for use.
#pragma once

#include <string>
#include <string_view>

#include "gguf/gguf.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace sluice::cli {

/// Its source (tokenizer.chat_template); empty: the file has none.
std::string_view chat_template_source(const gguf::File& file);

/// What a template writes for a token that it is given by name ("bos"); empty: there is none.
std::string token_text(const gguf::File& file, const text::Tokenizer& tokenizer, const char* name);

/// Throws Error that names the file when it has no template or one that cannot be used.
/// trusts_users: tags that are tokens of the vocabulary are these tokens in users' and tools' words, too.
text::ChatTemplate make_chat_template(const gguf::File& file, const text::Tokenizer& tokenizer,
                                      bool trusts_users = false);

}  // namespace sluice::cli
