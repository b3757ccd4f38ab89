// Text <-> token ids. Byte-level BPE (the "gpt2" model of GGUF files) and SentencePiece (their "llama"
// model). Knows vocabularies and text; where the vocabulary came from is not its business.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// Token types as GGUF numbers them.
enum class TokenType : int8_t { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };

/// Everything a tokenizer is made from; views must outlive only the constructor.
struct Vocab {
  std::string model;                     ///< "gpt2" or "llama"
  std::string pre;                       ///< pre-tokenizer of gpt2: "glm4"
  std::vector<std::string_view> tokens;  ///< as the model writes them, by id
  std::vector<TokenType> types;          ///< by id; empty: all normal
  std::vector<std::string_view> merges;  ///< gpt2: "left right", best rank first
  std::vector<float> scores;             ///< llama: by id; the highest merges first
  int32_t bos = -1, eos = -1, eot = -1, eom = -1, pad = -1, unk = -1;  ///< -1: none
  bool add_bos = false;
  bool space_in_front = true;  ///< llama: whether a text gets one
};

class Tokenizer {
 public:
  /// Throws Error that names what is wrong with the vocabulary or that the model or pre is unknown.
  explicit Tokenizer(const Vocab& vocab);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of a text; no BOS is added. With parse_special, control and user-defined tokens written in the text
  /// become their ids; without it only user-defined ones do (control tokens in user text stay text).
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;

  /// The same for a text that goes on where `out` ends; its ids are appended. SentencePiece writes a space in
  /// front of a text and after a special token, but not in the middle.
  void append(std::string_view text, bool parse_special, std::vector<int32_t>& out) const {
    append(text, parse_special, {}, out);
  }
  /// The same, where no token that is written in the text reaches across one of these places, which ascend.
  void append(std::string_view text, bool parse_special, std::span<const size_t> breaks,
              std::vector<int32_t>& out) const;

  /// The bytes that a token stands for: possibly part of a character; control tokens give their name
  /// when `special` is set and nothing otherwise.
  std::string_view bytes(int32_t id, bool special) const;

  /// The bytes of a whole text, without the spaces that append() put in. Ids must be of the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool special) const;

  int32_t size() const;
  int32_t bos() const;
  bool add_bos() const;
  /// Whether the token is found in any text, control tokens parsed or not.
  bool is_user_defined(int32_t id) const;
  /// The id of a token by its exact text, or -1.
  int32_t find(std::string_view token) const;
  /// End of generation: the vocabulary's eos, eot and eom, and the end-of-turn tokens known by their text.
  bool ends_generation(int32_t id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::text
