// Any bytes through the tokenizer and both streams: ids are valid, the bytes come back, chunks do not matter.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/pretokenize.h"
#include "text/stream.h"
#include "text/tokenizer.h"
#include "text/toy_vocab.h"
#include "text/utf8.h"

using namespace sluice;  // NOLINT: a program of one file

namespace {

/// One tokenizer for each row of pre-tokenizers.
std::vector<text::Tokenizer> make_tokenizers() {
  text::ToyVocab toy = text::toy_vocab();
  std::vector<text::Tokenizer> out;
  for (const text::PreTokenizerRow& row : text::pretokenizer_rows()) {
    toy.pre = row.names[0];
    out.emplace_back(toy.vocab());
  }
  return out;
}

void check_round_trip(const text::Tokenizer& tokenizer, std::string_view input) {
  for (const bool special : {false, true}) {
    std::string back;
    for (const int32_t id : tokenizer.encode(input, special)) {
      CHECK(id >= 0 && id < tokenizer.size());
      back += tokenizer.bytes(id, special);
    }
    CHECK(back == input);
  }
}

void check_streams(std::string_view input, size_t chunk) {
  text::Utf8Stream utf8;
  text::StopStream stop({"</s>", "\n\n", "the the"}), whole_stop({"</s>", "\n\n", "the the"});
  std::string whole, shown;
  for (size_t at = 0; at < input.size(); at += chunk) {
    const std::string characters = utf8.push(input.substr(at, chunk));
    whole += characters;
    shown += stop.push(characters);
  }
  const std::string rest = utf8.finish();
  whole += rest;
  shown += stop.push(rest);
  shown += stop.finish();
  CHECK(text::utf8_valid_prefix(whole) == whole.size());
  std::string expected = whole_stop.push(whole);
  expected += whole_stop.finish();
  CHECK(shown == expected);
}

}  // namespace

/// The first byte chooses the pre-tokenizer and the chunk size; the rest is the text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<text::Tokenizer> tokenizers = make_tokenizers();
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_round_trip(tokenizers[data[0] % tokenizers.size()], input);
  check_streams(input, 1 + data[0] % 7);
  return 0;
}
