// Tokenizers put together: special tokens are taken out of the text first; the rest is cut into pieces by
// regexes and the bytes of each piece are merged, or it goes to SentencePiece as a whole. All checks of the
// vocabulary happen in the constructor.
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "text/bpe.h"
#include "text/pretokenize.h"
#include "text/sentencepiece.h"
#include "text/special_tokens.h"
#include "text/utf8.h"

namespace sluice::text {

namespace {

using TokenList = std::vector<std::pair<std::string_view, int32_t>>;

// Tokens that end a turn wherever they occur. Files name at most three such ids and often fewer than the
// model was trained to use: GLM's templates end turns by the next speaker's token.
constexpr std::string_view kEndOfTurn[] = {
    "<|endoftext|>", "<|user|>",        "<|observation|>", "<|im_end|>", "<|end|>",  "<|eot_id|>",
    "<|eom_id|>",    "<|end_of_text|>", "<end_of_turn>",   "<|return|>", "<|call|>", "<|message_sep|>",
    "</s>",          "<EOT>",           "[EOT]",           "[EOS]",      "_<EOT>",   "<｜end▁of▁sentence｜>",
};

// C0, C1 and F5 to FF occur in no UTF-8 text.
bool occurs_in_utf8(int byte) { return byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4); }

// A vocabulary that was learnt from texts alone has tokens for the bytes that they held: SmolLM2's lacks some
// control characters and the first bytes of planes without characters. Bytes that texts cannot go without
// show that a vocabulary is byte-level at all.
bool occurs_in_any_text(int byte) { return byte == '\n' || (byte >= ' ' && byte <= '~'); }

// Whether a token is text; the others have a name only.
bool shown(TokenType type) {
  return type == TokenType::Normal || type == TokenType::UserDefined || type == TokenType::Byte;
}

// Whether a token is found in a text as it is written.
bool is_special(TokenType type) {
  return type == TokenType::UserDefined || type == TokenType::Control || type == TokenType::Unknown;
}

}  // namespace

struct Tokenizer::Impl {
  // One of the two.
  std::optional<PreTokenizer> pre;
  std::optional<SentencePiece> pieces;
  bool ignore_merges = false;
  bool space_in_front = false;
  bool add_bos = false;
  int32_t bos = -1;

  // By id, one after another: the texts as the file writes them, and the bytes they stand for.
  std::string texts, bytes;
  std::vector<size_t> text_end, bytes_end;
  std::vector<TokenType> types;
  std::vector<bool> ends;

  std::unordered_map<std::string_view, int32_t> by_text;   ///< views into `texts`
  std::unordered_map<std::string_view, int32_t> by_bytes;  ///< normal tokens; only filled for ignore_merges
  std::array<int32_t, 256> byte_token{};                   ///< -1: none
  Merges merges;
  std::optional<SpecialTokens> always, parsed;  ///< user-defined ones; those and control and unknown ones

  explicit Impl(const Vocab& vocab) : merges(vocab.merges.size()) {}

  int32_t size() const { return static_cast<int32_t>(types.size()); }
  static std::string_view part(const std::string& all, const std::vector<size_t>& end, int32_t id) {
    const size_t begin = id == 0 ? 0 : end[id - 1];
    return std::string_view(all).substr(begin, end[id] - begin);
  }
  std::string_view text_of(int32_t id) const { return part(texts, text_end, id); }
  std::string_view bytes_of(int32_t id) const { return part(bytes, bytes_end, id); }
  int32_t find(std::string_view token) const {
    const auto found = by_text.find(token);
    return found == by_text.end() ? -1 : found->second;
  }

  /// Whether what follows these ids begins a text, as SentencePiece counts it.
  bool at_begin(std::span<const int32_t> ids) const {
    // Not the unknown token: it may stand for a character in the middle.
    return ids.empty() || types[ids.back()] == TokenType::Control ||
           types[ids.back()] == TokenType::UserDefined;
  }
  const Merges& merges_in_use() const { return pieces ? pieces->merges() : merges; }

  void read_model(const Vocab& vocab, Problems& problems);
  void read_tokens(const Vocab& vocab, Problems& problems);
  void read_bytes(Problems& problems);
  void read_merges(const Vocab& vocab, Problems& problems);
  void find_special();
  void find_ends(const Vocab& vocab);

  void add_byte(uint8_t byte, std::vector<int32_t>& symbols) const;
  void encode_text(std::string_view text, Merger& merger, std::vector<int32_t>& out) const;
};

void Tokenizer::Impl::read_tokens(const Vocab& vocab, Problems& problems) {
  types = vocab.types;
  if (!types.empty() && types.size() != vocab.tokens.size())
    problems.add("{} token types for {} tokens", types.size(), vocab.tokens.size());
  types.resize(vocab.tokens.size(), TokenType::Normal);
  size_t total = 0;
  for (const std::string_view token : vocab.tokens) total += token.size();
  texts.reserve(total);  // the keys of by_text point into it
  by_text.reserve(vocab.tokens.size());
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    texts += vocab.tokens[id];
    text_end.push_back(texts.size());
    const std::string_view text = text_of(static_cast<int32_t>(id));
    if (vocab.model == "llama") {
      bytes += SentencePiece::bytes_of(text, types[id]);
    } else {  // added tokens are written as they are read, only normal ones in the alphabet of bytes
      const auto plain = types[id] == TokenType::Normal ? bytes_of_characters(text) : std::nullopt;
      bytes += plain ? std::string_view(*plain) : text;
    }
    bytes_end.push_back(bytes.size());
    by_text.emplace(text, static_cast<int32_t>(id));  // of equal texts, the first id counts
    if (const int type = static_cast<int>(types[id]); type < 1 || type > 6)
      problems.add("token {}: type {}, expected 1 to 6", id, type);
  }
}

void Tokenizer::Impl::read_bytes(Problems& problems) {
  std::string missing;
  int count = 0;
  for (int byte = 0; byte < 256; ++byte) {
    int32_t& token = byte_token[byte];
    token = find(byte_character(static_cast<uint8_t>(byte)));
    // DeepSeek's files also write letters as tokens of their own: "ö" is that letter there, not the byte F6.
    const char itself = static_cast<char>(byte);
    if (token >= 0 && (!shown(types[token]) || bytes_of(token) != std::string_view(&itself, 1))) token = -1;
    if (token >= 0 || !occurs_in_any_text(byte)) continue;
    if (++count <= 8) missing += fmt::format("{}{:02X}", missing.empty() ? "" : " ", byte);
  }
  if (count > 0)
    problems.add("no token for {} of the 96 bytes of plain text: {}{}", count, missing,
                 count > 8 ? " ..." : "");
}

void Tokenizer::Impl::read_merges(const Vocab& vocab, Problems& problems) {
  std::string joined;
  for (size_t rank = 0; rank < vocab.merges.size(); ++rank) {
    const std::string_view merge = vocab.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      problems.add("merge {}: \"{}\": expected two tokens with a space between", rank, merge);
      continue;
    }
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    joined.assign(left).append(right);
    const int32_t ids[] = {find(left), find(right), find(joined)};
    const std::string_view names[] = {left, right, joined};
    for (int i = 0; i < 3; ++i)
      if (ids[i] < 0) problems.add("merge {}: \"{}\": \"{}\" is not a token", rank, merge, names[i]);
    if (std::min({ids[0], ids[1], ids[2]}) >= 0)
      merges.add(ids[0], ids[1], {static_cast<int32_t>(rank), ids[2]});
  }
}

void Tokenizer::Impl::find_special() {
  TokenList user_defined, all;
  for (int32_t id = 0; id < size(); ++id) {
    const TokenType type = types[id];
    if (type == TokenType::UserDefined) user_defined.emplace_back(text_of(id), id);
    if (is_special(type)) all.emplace_back(text_of(id), id);
    if (ignore_merges && type == TokenType::Normal) by_bytes.emplace(bytes_of(id), id);
  }
  always.emplace(std::move(user_defined));
  parsed.emplace(std::move(all));
}

void Tokenizer::Impl::find_ends(const Vocab& vocab) {
  ends.assign(types.size(), false);
  for (const int32_t id : {vocab.eos, vocab.eot, vocab.eom})
    if (id >= 0) ends[id] = true;
  for (const std::string_view name : kEndOfTurn) {
    const int32_t id = find(name);
    if (id >= 0 && (types[id] == TokenType::Control || types[id] == TokenType::UserDefined)) ends[id] = true;
  }
}

void Tokenizer::Impl::read_model(const Vocab& vocab, Problems& problems) {
  read_tokens(vocab, problems);
  if (vocab.model == "llama") {
    space_in_front = vocab.space_in_front;
    pieces.emplace(vocab, types, problems);
    return;
  }
  ignore_merges = pretokenizer_row(vocab.pre).ignore_merges;
  read_bytes(problems);
  read_merges(vocab, problems);
}

Tokenizer::Tokenizer(const Vocab& vocab) {
  if (vocab.model != "gpt2" && vocab.model != "llama")
    fail(
        "tokenizer model \"{}\" is not supported (known: gpt2, which is byte-level BPE, and llama, which is "
        "SentencePiece)",
        vocab.model);
  // Twice what the largest vocabularies have: what a tokenizer takes of memory must have an end.
  constexpr size_t kMostTokens = 1 << 19, kMostMerges = 1 << 20, kMostBytes = 1 << 24;
  if (vocab.tokens.empty() || vocab.tokens.size() > kMostTokens || vocab.merges.size() > kMostMerges)
    fail("tokenizer: {} tokens and {} merges, expected 1 to {} and at most {}", vocab.tokens.size(),
         vocab.merges.size(), kMostTokens, kMostMerges);
  for (const auto* list : {&vocab.tokens, &vocab.merges}) {
    size_t bytes = 0;
    for (const std::string_view text : *list) bytes += text.size();
    if (bytes > kMostBytes)
      fail("tokenizer: {} bytes of {}, expected at most {}", bytes,
           list == &vocab.tokens ? "tokens" : "merges", kMostBytes);
  }
  impl_ = std::make_unique<Impl>(vocab);
  if (vocab.model == "gpt2") impl_->pre.emplace(pretokenizer_row(vocab.pre));
  impl_->add_bos = vocab.add_bos;
  impl_->bos = vocab.bos;

  Problems problems;
  const std::pair<const char*, int32_t> ids[] = {{"bos", vocab.bos}, {"eos", vocab.eos}, {"eot", vocab.eot},
                                                 {"eom", vocab.eom}, {"pad", vocab.pad}, {"unk", vocab.unk}};
  const auto count = static_cast<int32_t>(vocab.tokens.size());
  for (const auto& [name, id] : ids)
    if (id < -1 || id >= count) problems.add("{} token: id {}, expected 0 to {}", name, id, count - 1);
  if (vocab.add_bos && vocab.bos < 0) problems.add("add_bos is set, but there is no bos token");
  impl_->read_model(vocab, problems);
  problems.throw_if_any("tokenizer");
  impl_->find_special();
  impl_->find_ends(vocab);
}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

// The symbol of a byte. One without a token is passed over, as Hugging Face's tokenizers do, if it is part of
// a character; else it stands for what no character is.
void Tokenizer::Impl::add_byte(uint8_t byte, std::vector<int32_t>& symbols) const {
  if (byte_token[byte] >= 0) {
    symbols.push_back(byte_token[byte]);
  } else if (!occurs_in_utf8(byte)) {
    for (const char r : kReplacement)
      if (const int32_t token = byte_token[static_cast<uint8_t>(r)]; token >= 0) symbols.push_back(token);
  }
}

// Text without special tokens: cut, then merge piece by piece.
void Tokenizer::Impl::encode_text(std::string_view text, Merger& merger, std::vector<int32_t>& out) const {
  if (pieces) return pieces->encode(text, space_in_front && at_begin(out), merger, out);
  std::vector<std::string_view> parts;
  pre->split(text, parts);
  std::vector<int32_t> symbols;
  for (const std::string_view piece : parts) {
    if (ignore_merges) {
      if (const auto whole = by_bytes.find(piece); whole != by_bytes.end()) {
        out.push_back(whole->second);
        continue;
      }
    }
    symbols.clear();
    for (const char c : piece) add_byte(static_cast<uint8_t>(c), symbols);
    merger.run(symbols, out);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<int32_t> out;
  append(text, parse_special, out);
  return out;
}

void Tokenizer::append(std::string_view text, bool parse_special, std::span<const size_t> breaks,
                       std::vector<int32_t>& out) const {
  // A byte may become three symbols, and symbols are counted in 32 bits.
  constexpr size_t kMost = std::numeric_limits<int32_t>::max() / 3;
  if (text.size() > kMost) fail("text of {} bytes, expected at most {}", text.size(), kMost);
  const SpecialTokens& special = parse_special ? *impl_->parsed : *impl_->always;
  Merger merger(impl_->merges_in_use());
  auto next_break = breaks.begin();
  for (size_t done = 0, at = 0; done < text.size();) {
    const SpecialTokens::Match match = special.find(text, at);
    while (next_break != breaks.end() && *next_break <= match.begin) ++next_break;
    if (match.id >= 0 && next_break != breaks.end() && *next_break < match.begin + match.length) {
      at = match.begin + 1;
      continue;
    }
    if (match.begin > done) impl_->encode_text(text.substr(done, match.begin - done), merger, out);
    if (match.id >= 0) out.push_back(match.id);
    done = at = match.begin + match.length;
  }
}

std::string_view Tokenizer::bytes(int32_t id, bool special) const {
  CHECK(id >= 0 && id < size(), "token {} of {}", id, size());
  return special || shown(impl_->types[id]) ? impl_->bytes_of(id) : std::string_view();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string_view part = bytes(ids[i], special);
    const bool written = impl_->types[ids[i]] == TokenType::Normal;
    if (impl_->space_in_front && written && impl_->at_begin(ids.first(i)) && part.starts_with(' '))
      part.remove_prefix(1);
    out += part;
  }
  return out;
}

int32_t Tokenizer::size() const { return impl_->size(); }
int32_t Tokenizer::bos() const { return impl_->bos; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::is_user_defined(int32_t id) const { return impl_->types[id] == TokenType::UserDefined; }
int32_t Tokenizer::find(std::string_view token) const { return impl_->find(token); }
bool Tokenizer::ends_generation(int32_t id) const { return id >= 0 && id < size() && impl_->ends[id]; }

}  // namespace sluice::text
