// A small byte-level vocabulary made on the spot, for tests and the fuzzer.
#pragma once

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer.h"

namespace sluice::text {

/// Owns what a Vocab views.
struct ToyVocab {
  std::string pre = "glm4";
  std::vector<std::string> tokens;
  std::vector<TokenType> types;
  std::vector<std::string> merges;

  ToyVocab() {
    for (int byte = 0; byte < 256; ++byte) add(byte_character(static_cast<uint8_t>(byte)), TokenType::Normal);
  }
  int32_t add(std::string token, TokenType type) {
    tokens.push_back(std::move(token));
    types.push_back(type);
    return static_cast<int32_t>(tokens.size() - 1);
  }
  /// Adds a merge and its token, if that is new.
  void merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    const std::string joined = left + right;
    for (const std::string& token : tokens)
      if (token == joined) return;
    add(joined, TokenType::Normal);
  }
  Vocab vocab() const {
    Vocab out;
    out.model = "gpt2";
    out.pre = pre;
    out.tokens.assign(tokens.begin(), tokens.end());
    out.types = types;
    out.merges.assign(merges.begin(), merges.end());
    return out;
  }
};

/// Learns `count` merges from a text as BPE does: the most frequent pair first.
inline void train(ToyVocab& vocab, std::string_view text, int count) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.push_back(byte_character(static_cast<uint8_t>(c)));
  for (int i = 0; i < count; ++i) {
    std::map<std::pair<std::string, std::string>, int> pairs;
    std::pair<std::string, std::string> best;
    int most = 1;
    for (size_t at = 0; at + 1 < symbols.size(); ++at) {
      const int seen = ++pairs[{symbols[at], symbols[at + 1]}];
      if (seen > most) most = seen, best = {symbols[at], symbols[at + 1]};
    }
    if (most == 1) return;
    vocab.merge(best.first, best.second);
    std::vector<std::string> merged;
    for (size_t at = 0; at < symbols.size(); ++at) {
      if (at + 1 < symbols.size() && symbols[at] == best.first && symbols[at + 1] == best.second) {
        merged.push_back(symbols[at] + symbols[at + 1]);
        ++at;
      } else {
        merged.push_back(symbols[at]);
      }
    }
    symbols.swap(merged);
  }
}

/// A vocabulary with merges of English and Chinese, and special tokens of every type.
inline ToyVocab toy_vocab() {
  ToyVocab vocab;
  train(vocab,
        "The mill by the river grinds what the river brings it; the miller reads the weather in the wheel. "
        "When the water is high the wheel hums, and when it is low the miller mends the sluice and waits. "
        "    int main() { return 0; }\n\n\n        // the end of the wheel 100 1000 2000 12345\n"
        "水车转动，河水流过。水车停下，河水还在流。 'tis, it's, we're, they'll; hahahahaha aaaaaaaaaaaa\n",
        200);
  vocab.add("<|endoftext|>", TokenType::Control);
  vocab.add("<|user|>", TokenType::Control);
  vocab.add("<|user|>x", TokenType::Control);
  vocab.add("<|observation|>", TokenType::Control);
  vocab.add("[gMASK]", TokenType::Control);
  vocab.add("<think>", TokenType::UserDefined);
  vocab.add("</think>", TokenType::UserDefined);
  vocab.add("<unk>", TokenType::Unknown);
  vocab.add("[PAD1]", TokenType::Unused);
  return vocab;
}

}  // namespace sluice::text
