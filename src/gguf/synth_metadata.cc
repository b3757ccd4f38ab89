// The metadata of synthetic files: the keys that converters write for these models, and a generated
// vocabulary of the real one's size. The vocabulary is a working byte-level BPE: 256 byte tokens, then words
// of two to four letters that merges build from each other, then the control tokens of the real model at
// their real ids where these are known.
#include <algorithm>
#include <string>
#include <string_view>

#include "base/check.h"
#include "gguf/synth.h"

namespace sluice::gguf {
namespace {

/// Values of "tokenizer.ggml.token_type".
enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct Special {
  const char* text;
  TokenType type;
};

/// The special tokens of a model: ids count up from `first`.
struct SpecialTokens {
  int64_t first;
  std::vector<Special> tokens;
  const char* begin;           ///< beginning of text; null: none
  const char* end;             ///< end of text
  const char* end_of_turn;     ///< null: none
  const char* end_of_message;  ///< null: none
  bool add_begin;              ///< the tokenizer puts `begin` before every text
  const char* chat_template;   ///< a plain one: roles and contents, no tools
};

SpecialTokens glm_tokens(int64_t first) {
  return {.first = first,
          .tokens = {{"<|endoftext|>", kControl},
                     {"[MASK]", kControl},
                     {"[gMASK]", kControl},
                     {"[sMASK]", kControl},
                     {"<sop>", kControl},
                     {"<eop>", kControl},
                     {"<|system|>", kControl},
                     {"<|user|>", kControl},
                     {"<|assistant|>", kControl},
                     {"<|observation|>", kControl},
                     {"<|begin_of_image|>", kControl},
                     {"<|end_of_image|>", kControl},
                     {"<|begin_of_video|>", kControl},
                     {"<|end_of_video|>", kControl},
                     {"<|begin_of_audio|>", kControl},
                     {"<|end_of_audio|>", kControl},
                     {"<|begin_of_transcription|>", kControl},
                     {"<|end_of_transcription|>", kControl},
                     {"<|code_prefix|>", kControl},
                     {"<|code_middle|>", kControl},
                     {"<|code_suffix|>", kControl},
                     {"<think>", kUserDefined},
                     {"</think>", kUserDefined},
                     {"<tool_call>", kUserDefined},
                     {"</tool_call>", kUserDefined},
                     {"<tool_response>", kUserDefined},
                     {"</tool_response>", kUserDefined},
                     {"<arg_key>", kUserDefined},
                     {"</arg_key>", kUserDefined},
                     {"<arg_value>", kUserDefined},
                     {"</arg_value>", kUserDefined}},
          .begin = "[gMASK]",
          .end = "<|endoftext|>",
          .end_of_turn = "<|user|>",
          .end_of_message = "<|observation|>",
          .add_begin = false,
          .chat_template =
              "[gMASK]<sop>{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
              "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"};
}

SpecialTokens deepseek_tokens() {
  return {.first = 100000,
          .tokens = {{"<｜begin▁of▁sentence｜>", kControl},
                     {"<｜end▁of▁sentence｜>", kControl},
                     {"<｜fim▁hole｜>", kControl},
                     {"<｜fim▁begin｜>", kControl},
                     {"<｜fim▁end｜>", kControl},
                     {"<|endoftext|>", kControl}},
          .begin = "<｜begin▁of▁sentence｜>",
          .end = "<｜end▁of▁sentence｜>",
          .end_of_turn = nullptr,
          .end_of_message = nullptr,
          .add_begin = true,
          .chat_template =
              "{{ bos_token }}{% for message in messages %}{{ message.role | capitalize }}: "
              "{{ message.content }}\n\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"};
}

SpecialTokens youtu_tokens() {
  return {.first = 128000,
          .tokens = {{"<|begin_of_text|>", kControl},
                     {"<|end_of_text|>", kControl},
                     {"<|User|>", kControl},
                     {"<|Assistant|>", kControl},
                     {"<think>", kUserDefined},
                     {"</think>", kUserDefined},
                     {"<tool_call>", kUserDefined},
                     {"</tool_call>", kUserDefined},
                     {"<tool_response>", kUserDefined},
                     {"</tool_response>", kUserDefined},
                     {"<|begin_of_tool_description|>", kControl},
                     {"<|end_of_tool_description|>", kControl}},
          .begin = "<|begin_of_text|>",
          .end = "<|end_of_text|>",
          .end_of_turn = nullptr,
          .end_of_message = nullptr,
          .add_begin = true,
          .chat_template =
              "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}<|User|>"
              "{% elif message.role == 'assistant' %}<|Assistant|>{% endif %}{{ message.content }}"
              "{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}"};
}

SpecialTokens qwen_tokens(int64_t first) {
  return {.first = first,
          .tokens = {{"<|endoftext|>", kControl},       {"<|im_start|>", kControl},
                     {"<|im_end|>", kControl},          {"<|object_ref_start|>", kControl},
                     {"<|object_ref_end|>", kControl},  {"<|box_start|>", kControl},
                     {"<|box_end|>", kControl},         {"<|quad_start|>", kControl},
                     {"<|quad_end|>", kControl},        {"<|vision_start|>", kControl},
                     {"<|vision_end|>", kControl},      {"<|vision_pad|>", kControl},
                     {"<|image_pad|>", kControl},       {"<|video_pad|>", kControl},
                     {"<tool_call>", kUserDefined},     {"</tool_call>", kUserDefined},
                     {"<|fim_prefix|>", kControl},      {"<|fim_middle|>", kControl},
                     {"<|fim_suffix|>", kControl},      {"<|fim_pad|>", kControl},
                     {"<|repo_name|>", kControl},       {"<|file_sep|>", kControl},
                     {"<tool_response>", kUserDefined}, {"</tool_response>", kUserDefined},
                     {"<think>", kUserDefined},         {"</think>", kUserDefined}},
          .begin = "<|endoftext|>",
          .end = "<|im_end|>",
          .end_of_turn = nullptr,
          .end_of_message = nullptr,
          .add_begin = false,
          .chat_template =
              "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
              "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"};
}

SpecialTokens llama_tokens() {
  return {.first = 128000,
          .tokens = {{"<|begin_of_text|>", kControl},
                     {"<|end_of_text|>", kControl},
                     {"<|reserved_special_token_0|>", kControl},
                     {"<|reserved_special_token_1|>", kControl},
                     {"<|finetune_right_pad_id|>", kControl},
                     {"<|reserved_special_token_2|>", kControl},
                     {"<|start_header_id|>", kControl},
                     {"<|end_header_id|>", kControl},
                     {"<|eom_id|>", kControl},
                     {"<|eot_id|>", kControl},
                     {"<|python_tag|>", kControl}},
          .begin = "<|begin_of_text|>",
          .end = "<|eot_id|>",
          .end_of_turn = nullptr,
          .end_of_message = "<|eom_id|>",
          .add_begin = true,
          .chat_template =
              "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}"
              "<|end_header_id|>\n\n{{ message.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
              "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"};
}

SpecialTokens harmony_tokens() {
  return {.first = 199998,
          .tokens = {{"<|startoftext|>", kControl},
                     {"<|endoftext|>", kControl},
                     {"<|reserved_200000|>", kControl},
                     {"<|reserved_200001|>", kControl},
                     {"<|return|>", kControl},
                     {"<|constrain|>", kControl},
                     {"<|reserved_200004|>", kControl},
                     {"<|channel|>", kControl},
                     {"<|start|>", kControl},
                     {"<|end|>", kControl},
                     {"<|message|>", kControl},
                     {"<|reserved_200009|>", kControl},
                     {"<|reserved_200010|>", kControl},
                     {"<|reserved_200011|>", kControl},
                     {"<|call|>", kControl}},
          .begin = "<|startoftext|>",
          .end = "<|return|>",
          .end_of_turn = nullptr,
          .end_of_message = "<|call|>",
          .add_begin = false,
          .chat_template =
              "{% for message in messages %}<|start|>{{ message.role }}{% if message.role == 'assistant' %}"
              "<|channel|>final{% endif %}<|message|>{{ message.content }}<|end|>{% endfor %}"
              "{% if add_generation_prompt %}<|start|>assistant{% endif %}"};
}

/// The list that goes with the model's pre-tokenizer. A vocabulary cut short keeps the special tokens at its
/// end.
SpecialTokens special_tokens(const SynthModel& model) {
  const std::string_view pretokenizer = model.pretokenizer;
  // GLM-4.5's list of 151,552 tokens became longer; its special ones are the same.
  SpecialTokens special = pretokenizer == "glm4"     ? glm_tokens(model.vocabulary > 151552 ? 154820 : 151329)
                          : pretokenizer == "youtu"  ? youtu_tokens()
                          : pretokenizer == "qwen2"  ? qwen_tokens(151643)
                          : pretokenizer == "qwen35" ? qwen_tokens(248044)
                          : pretokenizer == "gpt-4o" ? harmony_tokens()
                          : pretokenizer == "llama-bpe" ? llama_tokens()
                                                        : deepseek_tokens();
  special.first = std::min(special.first, model.vocabulary - static_cast<int64_t>(special.tokens.size()));
  return special;
}

/// UTF-8 of a code point below 0x800.
std::string utf8(int code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

/// Byte-level BPE spells each byte as a visible character: itself where it is one, else the next from 256 on.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    tokens.push_back(utf8(visible ? byte : next++));
  }
  return tokens;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;

  /// Adds the token left + right with the merge that makes it.
  void merge(const std::string& left, const std::string& right) {
    tokens.push_back(left + right);
    merges.push_back(left + " " + right);
  }
};

/// All words of `length` letters a-z in alphabetical order.
std::vector<std::string> words(int length) {
  std::vector<std::string> result = {""};
  for (int i = 0; i < length; ++i) {
    std::vector<std::string> longer;
    for (const std::string& word : result) {
      for (char letter = 'a'; letter <= 'z'; ++letter) longer.push_back(word + letter);
    }
    result = std::move(longer);
  }
  return result;
}

/// Normal tokens up to `count`: each is a merge of two earlier ones, and no two are alike.
void add_words(Vocabulary& vocabulary, size_t count) {
  const std::string space = "Ġ";  // how byte-level BPE spells a space
  const auto merge = [&](const std::string& left, const std::string& right) {
    if (vocabulary.tokens.size() < count) vocabulary.merge(left, right);
  };
  const auto ones = words(1), twos = words(2), threes = words(3);
  for (const auto& word : twos) merge(word.substr(0, 1), word.substr(1));
  for (const auto& letter : ones) merge(space, letter);
  for (const auto& word : twos) merge(space, word);
  for (const auto& word : threes) merge(word.substr(0, 2), word.substr(2));
  for (const auto& word : threes) merge(space, word);
  for (const auto& left : twos) {
    for (const auto& right : twos) merge(left, right);
  }
}

Vocabulary make_vocabulary(const SynthModel& model, const SpecialTokens& special) {
  Vocabulary vocabulary;
  vocabulary.tokens = byte_tokens();
  add_words(vocabulary, static_cast<size_t>(special.first));
  CHECK(vocabulary.tokens.size() == static_cast<size_t>(special.first), "vocabulary of {}", model.vocabulary);
  vocabulary.types.assign(vocabulary.tokens.size(), kNormal);
  for (const Special& token : special.tokens) {
    vocabulary.tokens.emplace_back(token.text);
    vocabulary.types.push_back(token.type);
  }
  for (int i = 0; vocabulary.tokens.size() < static_cast<size_t>(model.vocabulary); ++i) {
    vocabulary.tokens.push_back(fmt::format("[PAD{}]", i));
    vocabulary.types.push_back(kUnused);
  }
  return vocabulary;
}

/// The list of keys under construction.
class Keys {
 public:
  template <typename T>
  void add(const std::string& key, T value) {
    entries_.push_back({key, WriteValue(std::move(value))});
  }
  void u32(const std::string& key, int64_t value) { add(key, static_cast<uint32_t>(value)); }
  void text(const std::string& key, const char* value) { add(key, std::string(value)); }
  std::vector<WriteEntry> take() { return std::move(entries_); }

 private:
  std::vector<WriteEntry> entries_;
};

void add_yarn_keys(const SynthModel& m, const std::string& arch, Keys& keys) {
  keys.text(arch + "rope.scaling.type", "yarn");
  keys.add(arch + "rope.scaling.factor", m.yarn_factor);
  keys.u32(arch + "rope.scaling.original_context_length", m.yarn_context);
}

void add_delta_keys(const SynthModel& m, const std::string& arch, Keys& keys) {
  const SynthModel::Delta& d = m.delta;
  keys.u32(arch + "full_attention_interval", d.interval);
  keys.u32(arch + "ssm.conv_kernel", d.taps);
  keys.u32(arch + "ssm.state_size", d.key);
  keys.u32(arch + "ssm.group_count", d.key_heads);
  keys.u32(arch + "ssm.time_step_rank", d.heads);
  keys.u32(arch + "ssm.inner_size", d.heads * d.value);
  keys.u32(arch + "expert_shared_feed_forward_length", m.expert_width * m.experts_shared);
  // Pairs of columns that turn by a text's position, an image's height and its width.
  if (d.in_turns) keys.add(arch + "rope.dimension_sections", std::vector<int32_t>{11, 11, 10, 0});
}

void add_grouped_attention_keys(const SynthModel& m, const std::string& arch, Keys& keys) {
  keys.u32(arch + "attention.head_count", m.heads);
  keys.u32(arch + "attention.head_count_kv", m.kv_heads);
  keys.u32(arch + "attention.key_length", m.nope + m.rope);
  keys.u32(arch + "attention.value_length", m.value);
  keys.add(arch + "attention.layer_norm_rms_epsilon", m.norm_epsilon);
  keys.u32(arch + "rope.dimension_count", m.rope);
  keys.add(arch + "rope.freq_base", m.rope_base);
  if (m.window > 0) keys.u32(arch + "attention.sliding_window", m.window);
  if (m.delta.interval > 0) add_delta_keys(m, arch, keys);
  if (m.yarn_factor > 0) add_yarn_keys(m, arch, keys);
}

/// One head of keys in layers of latent attention, none in linear ones.
void add_channel_keys(const SynthModel& m, int layers, const std::string& arch, Keys& keys) {
  std::vector<int32_t> heads(static_cast<size_t>(layers));
  for (int layer = 0; layer < layers; ++layer) heads[static_cast<size_t>(layer)] = m.is_linear(layer) ? 0 : 1;
  keys.add(arch + "attention.head_count_kv", std::move(heads));
  keys.u32(arch + "kda.head_dim", m.delta.key);
  keys.u32(arch + "ssm.conv_kernel", m.delta.taps);
}

void add_latent_attention_keys(const SynthModel& m, int layers, const std::string& arch, Keys& keys) {
  keys.u32(arch + "attention.head_count", m.heads);
  if (m.delta.by_channel) {
    add_channel_keys(m, layers, arch, keys);
  } else {
    keys.u32(arch + "attention.head_count_kv", 1);
  }
  keys.u32(arch + "attention.key_length", m.kv_rank + m.rope);
  keys.u32(arch + "attention.value_length", m.kv_rank);
  keys.u32(arch + "attention.key_length_mla", m.nope + m.rope);
  keys.u32(arch + "attention.value_length_mla", m.value);
  if (m.q_rank > 0) keys.u32(arch + "attention.q_lora_rank", m.q_rank);
  keys.u32(arch + "attention.kv_lora_rank", m.kv_rank);
  keys.add(arch + "attention.layer_norm_rms_epsilon", m.norm_epsilon);
  keys.u32(arch + "rope.dimension_count", m.rope);
  keys.add(arch + "rope.freq_base", m.rope_base);
  if (m.yarn_factor == 0) return;
  add_yarn_keys(m, arch, keys);
  keys.add(arch + "rope.scaling.yarn_log_multiplier", m.yarn_log_multiplier);
}

/// As the converters of each architecture write them: dense models have none, but for deepseek2.
void add_expert_keys(const SynthModel& m, const std::string& arch, Keys& keys) {
  if (m.experts == 0 && m.kv_heads > 0) return;
  const bool counted = m.delta.interval == 0 || m.delta.by_channel;  // elsewhere their width is given
  if (counted && (m.experts_shared > 0 || m.kv_heads == 0))
    keys.u32(arch + "expert_shared_count", m.experts_shared);
  keys.u32(arch + "expert_feed_forward_length", m.expert_width);
  if (m.experts == 0) return;
  keys.u32(arch + "expert_count", m.experts);
  keys.u32(arch + "expert_used_count", m.experts_used);
  keys.add(arch + "expert_weights_scale", m.expert_scale);
  keys.add(arch + "expert_weights_norm", m.normalised_weights);
  keys.u32(arch + "expert_gating_func", m.sigmoid_gating ? 2 : 1);
  if (m.expert_groups == 0) return;
  keys.u32(arch + "expert_group_count", m.expert_groups);
  keys.u32(arch + "expert_group_used_count", m.expert_groups_used);
}

void add_tokenizer_keys(const SynthModel& model, Keys& keys) {
  const SpecialTokens special = special_tokens(model);
  Vocabulary vocabulary = make_vocabulary(model, special);
  const auto id = [&](const std::string& key, const char* text) {
    if (text == nullptr) return;
    const auto at = std::find_if(special.tokens.begin(), special.tokens.end(),
                                 [&](const Special& token) { return std::string_view(token.text) == text; });
    CHECK(at != special.tokens.end(), "{}", text);
    keys.u32(key, special.first + (at - special.tokens.begin()));
  };
  keys.text("tokenizer.ggml.model", "gpt2");
  keys.text("tokenizer.ggml.pre", model.pretokenizer);
  keys.add("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
  keys.add("tokenizer.ggml.token_type", std::move(vocabulary.types));
  keys.add("tokenizer.ggml.merges", std::move(vocabulary.merges));
  id("tokenizer.ggml.bos_token_id", special.begin);
  id("tokenizer.ggml.eos_token_id", special.end);
  id("tokenizer.ggml.eot_token_id", special.end_of_turn);
  id("tokenizer.ggml.eom_token_id", special.end_of_message);
  keys.add("tokenizer.ggml.add_bos_token", special.add_begin);
  keys.text("tokenizer.chat_template", special.chat_template);
}

}  // namespace

std::vector<WriteEntry> synth_metadata(const SynthOptions& options) {
  const SynthModel& model = *options.model;
  const int layers = options.layers > 0 ? options.layers : model.layers;
  const std::string arch = std::string(model.architecture) + ".";
  const bool latent = model.kv_heads == 0;
  Keys keys;
  keys.text("general.architecture", model.architecture);
  keys.text("general.type", "model");
  keys.add("general.name", fmt::format("{} with random weights (seed {})", model.title, options.seed));
  keys.u32("general.quantization_version", 2);
  keys.u32("general.file_type", options.mix->file_type);
  keys.u32(arch + "block_count", layers + (options.prediction ? 1 : 0));
  if (options.prediction) keys.u32(arch + "nextn_predict_layers", 1);
  keys.u32(arch + "context_length", model.context);
  keys.u32(arch + "embedding_length", model.width);
  keys.u32(arch + "feed_forward_length", model.dense_width);
  if (latent || model.experts > 0)
    keys.u32(arch + "leading_dense_block_count", std::min(layers, model.dense_layers));
  keys.u32(arch + "vocab_size", model.vocabulary);
  latent ? add_latent_attention_keys(model, layers, arch, keys)
         : add_grouped_attention_keys(model, arch, keys);
  add_expert_keys(model, arch, keys);
  add_tokenizer_keys(model, keys);
  return keys.take();
}

}  // namespace sluice::gguf
