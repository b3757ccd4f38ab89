#include "model/keys.h"

#include <algorithm>
#include <cmath>

namespace sluice::model {
namespace {

/// Keys that describe a file and change nothing in its arithmetic.
constexpr std::string_view kDescriptive[] = {"vocab_size", "rope.scaling.finetuned", "pooling_type",
                                             "decoder_start_token_id", "features_length"};

/// Numbers (and bools, as 0 and 1) that switch their key's doing off.
struct Neutral {
  std::string_view key;
  double value;
};
constexpr Neutral kNeutral[] = {
    {"attention.causal", 1},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.scale", 0},
    {"attention.sliding_window", 0},
    {"attention.temperature_scale", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"router_logit_softcapping", 0},
    {"embedding_scale", 0},
    {"embedding_scale", 1},
    {"logit_scale", 0},
    {"logit_scale", 1},
    {"residual_scale", 0},
    {"residual_scale", 1},
    {"rope.scale_linear", 0},
    {"rope.scale_linear", 1},
    {"rope.scaling.factor", 0},
    {"rope.scaling.factor", 1},
    {"rope.scaling.yarn_attn_factor", 1},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"nextn_predict_layers", 0},
    {"use_parallel_residual", 0},
};

bool is_neutral(std::string_view key, const gguf::Scalar& scalar) {
  double number = 0;
  if (const auto* u = std::get_if<uint64_t>(&scalar)) {
    number = static_cast<double>(*u);
  } else if (const auto* i = std::get_if<int64_t>(&scalar)) {
    number = static_cast<double>(*i);
  } else if (const auto* flag = std::get_if<bool>(&scalar)) {
    number = *flag ? 1 : 0;
  } else if (const auto* d = std::get_if<double>(&scalar)) {
    number = *d;
  } else {
    return false;
  }
  return std::any_of(std::begin(kNeutral), std::end(kNeutral),
                     [&](const Neutral& row) { return row.key == key && row.value == number; });
}

}  // namespace

template <typename Result>
Result Keys::read(Result (gguf::File::*reader)(std::string_view) const, const std::string& key) {
  read_.insert(key);
  try {
    return (file_.*reader)(prefix_ + key);
  } catch (const Error& error) {
    problems_.add("{}", error.what());
    return std::nullopt;
  }
}

int64_t Keys::integer(const std::string& key, int64_t absent, int64_t least, int64_t most) {
  const auto value = read(&gguf::File::integer, key);
  if (!value) return absent;
  if (*value < least || *value > most) {
    problems_.add("{}{} is {}, expected {} to {}", prefix_, key, *value, least, most);
    return absent;
  }
  return *value;
}

int64_t Keys::required(const std::string& key, int64_t least, int64_t most) {
  if (!has(key)) problems_.add("{}{} is missing", prefix_, key);
  return integer(key, 0, least, most);
}

double Keys::number(const std::string& key, double absent) {
  const double value = read(&gguf::File::number, key).value_or(absent);
  if (!std::isfinite(value)) problems_.add("{}{} is not finite", prefix_, key);
  return std::isfinite(value) ? value : absent;
}

bool Keys::boolean(const std::string& key, bool absent) {
  return read(&gguf::File::boolean, key).value_or(absent);
}

std::string Keys::string(const std::string& key, const std::string& absent) {
  return std::string(read(&gguf::File::string, key).value_or(absent));
}

std::optional<std::vector<bool>> Keys::flags(const std::string& key, size_t count) {
  const gguf::Value* value = file_.find(prefix_ + key);
  const auto* array = value != nullptr ? std::get_if<gguf::Array>(&value->value) : nullptr;
  if (array == nullptr) return std::nullopt;
  read_.insert(key);
  std::vector<bool> list;
  for (const gguf::Scalar& scalar : gguf::elements(*array, count)) {
    const auto* u = std::get_if<uint64_t>(&scalar);
    const auto* i = std::get_if<int64_t>(&scalar);
    const auto* flag = std::get_if<bool>(&scalar);
    if (u == nullptr && i == nullptr && flag == nullptr) break;
    list.push_back(u != nullptr ? *u != 0 : i != nullptr ? *i != 0 : *flag);
  }
  if (list.size() != count || array->count != count)
    problems_.add("{}{} is an array of {}, expected {} bools", prefix_, key, array->count, count);
  list.resize(count);
  return list;
}

void Keys::refuse_unread() {
  if (const std::string activation = string("hidden_activation", "silu"); activation != "silu") {
    refuse("hidden_activation is \"{}\", expected \"silu\"", gguf::printable(activation));
  }
  for (const gguf::Entry& entry : file_.metadata()) {
    if (!entry.key.starts_with(prefix_)) continue;
    const std::string_view key = entry.key.substr(prefix_.size());
    const bool describes =
        entry.value.type == gguf::ValueType::String ||
        std::find(std::begin(kDescriptive), std::end(kDescriptive), key) != std::end(kDescriptive);
    if (describes || read_.contains(key) || is_neutral(key, entry.value.value)) continue;
    refuse("{} is not supported: it may change the model's arithmetic", gguf::printable(key));
  }
}

}  // namespace sluice::model
