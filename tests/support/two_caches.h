// A program that keeps of every sequence what no model of today does all at once: rows of latents in one
// paged cache, keys and values of eight bits in another one, and the state of a short convolution. With
// weights drawn at random; what it reads and writes are bytes (script_executable.h).
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "program/backend.h"
#include "program/builder.h"

namespace sluice::test {

struct TwoCaches {
  static constexpr int64_t kTokens = 257, kWidth = 64, kLayers = 2, kTaps = 4;
  static constexpr int64_t kLatent = 32, kRotated = 16, kKey = 32;
  program::Program program;
  program::TensorId latents, keys, state;

  explicit TwoCaches(uint64_t seed) : random_(seed) {
    using namespace program;
    Builder b(program);
    latents = b.cache(kLayers, kLatent + kRotated, quant::Type::F16, kRotated, "latents");
    keys = b.cache(kLayers, 2 * kKey, quant::Type::Q8_0, 0, "keys");
    state = b.state("convolution", kLayers, kTaps - 1, kWidth);
    TensorId x = b.embed(weight(b, kTokens, kWidth));
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      b.set_layer(layer);
      const TensorId h = b.rms_norm(x, ones(b), 1e-5f);
      const TensorId mixed = b.causal_conv(h, weight(b, kWidth, kTaps), state, layer);
      x = grouped(b, mixed, latent(b, mixed, x, layer), layer);
    }
    b.set_layer(-1);
    b.set_output(b.matmul(b.rms_norm(b.gather_rows(x), ones(b), 1e-5f), weight(b, kTokens, kWidth)));
    for (const std::vector<float>& numbers : numbers_) weights_.push_back(std::as_bytes(std::span(numbers)));
    weights_.resize(program.tensors().size());
  }
  TwoCaches(const TwoCaches&) = delete;
  TwoCaches& operator=(const TwoCaches&) = delete;

  const program::WeightBytes& weights() const { return weights_; }

 private:
  using TensorId = program::TensorId;

  /// Attention in latent space: of what the convolution gives, over the first cache.
  TensorId latent(program::Builder& b, TensorId in, TensorId residual, int32_t layer) {
    const TensorId kv = b.matmul(in, weight(b, kLatent + kRotated, kWidth));
    const TensorId key = b.activation("key", program::kStepRows, 1, kRotated);
    b.rope(b.columns(kv, "key_in", kLatent, kRotated), {}, key);
    b.kv_append(b.rms_norm(b.columns(kv, "latent", 0, kLatent), ones(b, kLatent), 1e-5f), key, latents,
                layer);
    const TensorId query = b.activation("query", program::kStepRows, 2, kLatent + kRotated);
    b.rope(b.matmul(in, weight(b, 2 * kRotated, kWidth), 2), {},
           b.columns(query, "turned", kLatent, kRotated));
    b.head_matmul(b.matmul(in, weight(b, 2 * kKey, kWidth), 2), weight(b, kLatent, kKey, 2),
                  program::Reduce::Columns, b.columns(query, "latent_query", 0, kLatent));
    const TensorId context = b.mla_attend(query, latents, kLatent, 0.2f, layer);
    return b.matmul_add(context, weight(b, kWidth, 2 * kLatent), residual);
  }
  /// Attention of two heads that share their keys, over the second one.
  TensorId grouped(program::Builder& b, TensorId in, TensorId residual, int32_t layer) {
    const TensorId key = b.activation("shared_key", program::kStepRows, 1, kKey);
    b.rope(b.matmul(in, weight(b, kKey, kWidth)), {}, key);
    b.kv_append(key, b.matmul(residual, weight(b, kKey, kWidth)), keys, layer);
    const TensorId query = b.activation("queries", program::kStepRows, 2, kKey);
    b.rope(b.matmul(in, weight(b, 2 * kKey, kWidth), 2), {}, query);
    const TensorId context = b.attend(query, keys, 1, kKey, 0.2f, layer);
    return b.matmul_add(context, weight(b, kWidth, 2 * kKey), residual);
  }

  TensorId weight(program::Builder& b, int64_t rows, int64_t columns, int64_t matrices = 1) {
    std::normal_distribution<float> normal(0, 2 / std::sqrt(static_cast<float>(columns)));
    std::vector<float> numbers(static_cast<size_t>(matrices * rows * columns));
    for (float& number : numbers) number = normal(random_);
    return keep(b.weight("w", quant::Type::F32, matrices, rows, columns), std::move(numbers));
  }
  TensorId ones(program::Builder& b, int64_t columns = kWidth) {
    return keep(b.weight("norm", quant::Type::F32, 1, 1, columns),
                std::vector<float>(static_cast<size_t>(columns), 1.0f));
  }
  TensorId keep(TensorId id, std::vector<float> numbers) {
    numbers_.resize(static_cast<size_t>(id) + 1);
    numbers_.back() = std::move(numbers);
    return id;
  }

  std::mt19937_64 random_;
  std::vector<std::vector<float>> numbers_;  // by TensorId
  program::WeightBytes weights_;
};

}  // namespace sluice::test
