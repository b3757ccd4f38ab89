// Random weights at disk speed. Making every block anew would be slower than writing it, so a tensor is
// pieced together from a pool of random blocks of its type and scale: pieces of 256 KiB from places that a
// hash of seed, tensor and piece chooses. Rows repeat now and then; for that files of this kind do not
// matter.
#include "gguf/synth.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "base/half.h"

namespace sluice::gguf {
namespace {

using quant::Type;

constexpr uint64_t kPoolBytes = 8 << 20, kPieceBytes = 256 << 10;
constexpr uint64_t kProgressBytes = 64 << 20;

/// Random words by position: word i of a seed, in any order (the mixing steps of SplitMix64).
uint64_t random_word(uint64_t seed, uint64_t i) {
  uint64_t word = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

/// A seed of its own for each name (FNV-1a).
uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3u;
  return random_word(seed, hash);
}

/// About normal with standard deviation 1: the sum of four uniform 16-bit parts of a word.
float normal(uint64_t word) {
  int sum = 0;
  for (int part = 0; part < 4; ++part) sum += static_cast<int>(word >> (16 * part) & 0xFFFF);
  return static_cast<float>(sum - 2 * 65535) / 37837.2f;  // the deviation of that sum: 65536 / sqrt(3)
}

/// 0.75 to 1.25: block scales differ.
float jitter(uint64_t word) { return 0.75f + static_cast<float>(word & 0xFFFF) / 131072.0f; }

void store_f16(std::byte* at, float value) {
  const uint16_t half = f32_to_f16(value);
  std::memcpy(at, &half, sizeof half);
}

/// Equal 6-bit scales and minima, 32 to 63, in the 12 bytes of Q4_K and Q5_K (layout: quant/k_quants_mid.cc).
/// Equal, so that with dmin = d * (middle code) the numbers have mean 0.
void store_k_scales(uint8_t* packed, uint64_t word) {
  for (int g = 0; g < 4; ++g) {
    const auto low = static_cast<uint8_t>(32 + (word >> (5 * g)) % 32);
    const auto high = static_cast<uint8_t>(32 + (word >> (5 * g + 20)) % 32);
    packed[g] = packed[g + 4] = static_cast<uint8_t>(low | (high >> 4 << 6));
    packed[g + 8] = static_cast<uint8_t>((high & 15) | (high & 15) << 4);
  }
}

/// An E8M0 scale, one of two neighbours, so that the mean square over many blocks is scale^2.
std::byte e8m0_near(float scale, uint64_t word) {
  const int exponent = static_cast<int>(std::floor(std::log2(scale)));
  const float ratio = scale / std::ldexp(1.0f, exponent);  // in [1, 2)
  const float upper_share = (ratio * ratio - 1) / 3;
  const bool upper = static_cast<float>(word & 0xFFFF) < upper_share * 65536.0f;
  return static_cast<std::byte>(127 + exponent + (upper ? 1 : 0));
}

// Deviation of uniformly random codes around their middle.
constexpr float kFourBits = 4.61f, kFiveBits = 9.23f, kSixBits = 18.47f, kEightBits = 73.9f;
constexpr float kKScales = 48.4f;                        ///< root mean square of 32 to 63
constexpr float kE2M1 = 2.926f;                          ///< root mean square of the E2M1 floats
constexpr float kTwoBits = 1.118f, kThreeBits = 2.345f;  ///< 0 to 3 around 1.5; root mean square of -4 to 3
constexpr float kHalfScales = 11.73f;                    ///< root mean square of 8 to 15
constexpr float kTable = 67.44f;                         ///< root mean square of IQ4_NL's numbers
constexpr float kOddScales16 = 18.466f,
                kOddScales8 = 9.2195f;  ///< root mean square of 2 s + 1, s below 16 and 8
// Root mean squares of the points of grids.
constexpr float kIq2XxsPoints = 23.118f, kIq2XsPoints = 24.217f, kIq2SPoints = 24.430f,
                kIq3XxsPoints = 30.849f, kIq3SPoints = 7.594f, kIq1Points = 0.7809f;

/// Unsigned E4M3's numbers by their codes.
std::array<float, 127> e4m3_values() {
  std::array<float, 127> values{};
  for (int code = 0; code < 127; ++code) {
    const auto mantissa = static_cast<float>(code & 7);
    values[static_cast<size_t>(code)] =
        code < 8 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, (code >> 3) - 10);
  }
  return values;
}

/// An unsigned E4M3 scale, one of two neighbours, so that the mean square over many is scale^2.
std::byte e4m3_near(float scale, uint64_t word) {
  static const std::array<float, 127> values = e4m3_values();
  const auto above = std::upper_bound(values.begin() + 1, values.end() - 1, scale);
  const float low = above[-1] * above[-1], high = above[0] * above[0];
  const bool upper = static_cast<float>(word & 0xFFFF) < (scale * scale - low) / (high - low) * 65536.0f;
  return static_cast<std::byte>(above - values.begin() - (upper ? 0 : 1));
}

/// IQ1_M's d: four bits in the highest of each of four times sixteen.
void store_iq1_m(std::byte* block, float d) {
  const uint16_t half = f32_to_f16(d);
  for (int i = 0; i < 4; ++i) {
    std::byte& at = block[49 + 2 * i];
    at = (at & std::byte{15}) | static_cast<std::byte>((half >> (4 * i) & 15) << 4);
  }
}

/// Overwrites the scales in a block of random bytes so that its numbers deviate by about `deviation`. Codes
/// without an exact middle (-8 to 7) have a mean; every other scale is negative, or the mean would stay:
/// small as it is, it makes the vector of ones an eigenvector of each matrix, sqrt(columns) times as strong
/// as any other, and after some layers all tokens lie along it.
void set_scales(Type type, float deviation, uint64_t word, std::byte* block) {
  const float d = deviation * jitter(word);
  const float either_sign = word >> 63 == 0 ? d : -d;
  const auto offset = [&](float scale, float middle, size_t at) {
    store_f16(block + at, scale);
    store_f16(block + at + 2, middle * scale);
  };
  switch (type) {
    case Type::Q4_0: store_f16(block, either_sign / kFourBits); break;
    case Type::Q4_1: offset(d / kFourBits, -7.5f, 0); break;
    case Type::Q5_0: store_f16(block, either_sign / kFiveBits); break;
    case Type::Q5_1: offset(d / kFiveBits, -15.5f, 0); break;
    case Type::Q8_0: store_f16(block, d / kEightBits); break;
    case Type::Q4_K:
    case Type::Q5_K:
      offset(d / kKScales / (type == Type::Q4_K ? kFourBits : kFiveBits), type == Type::Q4_K ? 7.5f : 15.5f,
             0);
      store_k_scales(reinterpret_cast<uint8_t*>(block) + 4, word >> 16);
      break;
    case Type::Q2_K:
      offset(d / kHalfScales / kTwoBits, 1.5f, 80);
      for (int g = 0; g < 16; ++g) {
        const auto scale = 8 + (word >> (3 * g) & 7);
        block[g] = static_cast<std::byte>(scale | scale << 4);
      }
      break;
    // Scales of six bits less 32: they stay random.
    case Type::Q3_K: store_f16(block + 108, d / kSixBits / kThreeBits); break;
    case Type::IQ4_XS: store_f16(block, d / kSixBits / kTable); break;
    case Type::IQ4_NL: store_f16(block, either_sign / kTable); break;
    case Type::Q6_K: store_f16(block + 208, either_sign / kSixBits / kEightBits); break;
    case Type::IQ2_XXS: store_f16(block, 8 * d / kOddScales16 / kIq2XxsPoints); break;
    case Type::IQ2_XS: store_f16(block, 8 * d / kOddScales16 / kIq2XsPoints); break;
    case Type::IQ2_S: store_f16(block, 8 * d / kOddScales16 / kIq2SPoints); break;
    case Type::IQ3_XXS: store_f16(block, 4 * d / kOddScales16 / kIq3XxsPoints); break;
    case Type::IQ3_S: store_f16(block, d / kOddScales16 / kIq3SPoints); break;
    case Type::IQ1_S: store_f16(block, d / kOddScales8 / kIq1Points); break;
    case Type::IQ1_M: store_iq1_m(block, d / kOddScales8 / kIq1Points); break;
    case Type::NVFP4:
      for (int i = 0; i < 4; ++i) block[i] = e4m3_near(deviation / kE2M1, word >> (16 * i));
      break;
    case Type::MXFP4: block[0] = e8m0_near(deviation / kE2M1, word); break;
    default: CHECK(false, "no random blocks of {}", quant::type_info(type).name);
  }
}

struct Distribution {
  float mean, deviation;
};

/// Weights that keep activations at their scale and let tokens keep their own experts in every layer: what
/// all blocks together add to a token's embedding is about as large as that (each of their 2 * layers outputs
/// is drawn small), so the residual stream never forgets the token. Routers' logits deviate by about 1, and
/// their bias by less than the distances between the scores of likely experts.
Distribution distribution(const SynthModel& model, const WriteTensor& tensor) {
  const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
  const float columns = std::sqrt(static_cast<float>(tensor.shape[0]));
  const float embedding = model.tied_output ? 0.1f : 1.0f;
  if (has("norm.")) return {1.0f, 0.1f};
  if (has("attn_sinks")) return {0.0f, 1.0f};
  if (has("exp_probs_b") || has("ffn_gate_inp.bias")) return {0.0f, 0.005f};
  // Decays over tens of tokens: rates are negative.
  if (tensor.name.ends_with("ssm_a")) return {-0.3f, 0.05f};
  if (has("ssm_dt")) return {-1.0f, 1.0f};
  if (has("token_embd")) return {0.0f, embedding};
  if (has("attn_output") || has("ssm_out") || has("ffn_down")) {
    return {0.0f, embedding / columns / std::sqrt(2.0f * static_cast<float>(model.layers))};
  }
  if (tensor.name == "output.weight") return {0.0f, 1.5f / columns};
  return {0.0f, 1.0f / columns};
}

/// NVFP4's blocks have scales of hundreds, as ModelOpt leaves them; behind each such tensor stands the one
/// that scales its matrices to what they are to be.
Distribution distribution_at(const SynthModel& model, const std::vector<WriteTensor>& tensors, size_t i) {
  constexpr float kBlocks = 650;
  if (tensors[i].type == Type::NVFP4) return {0.0f, kBlocks};
  if (!tensors[i].name.ends_with(".scale")) return distribution(model, tensors[i]);
  const float scale = distribution(model, tensors[i - 1]).deviation / kBlocks;
  return {scale, 0.1f * scale};
}

/// Pools by type and distribution, made when first needed.
class Pools {
 public:
  explicit Pools(uint64_t seed) : seed_(seed) {}

  std::span<const std::byte> of(Type type, Distribution wanted) {
    const auto [at, is_new] = pools_.try_emplace({type, wanted.mean, wanted.deviation});
    if (is_new) {
      const auto block = static_cast<uint64_t>(quant::type_info(type).bytes);
      at->second.resize(kPoolBytes / block * block);
      const std::string name =
          fmt::format("{} {} {}", quant::type_info(type).name, wanted.mean, wanted.deviation);
      random_blocks(type, wanted.mean, wanted.deviation, seed_of(seed_, name), at->second);
    }
    return at->second;
  }

 private:
  uint64_t seed_;
  std::map<std::tuple<Type, float, float>, std::vector<std::byte>> pools_;
};

/// Cuts one tensor out of its pool, piece by piece.
template <typename Take>
void cut_tensor(const WriteTensor& tensor, uint64_t seed, std::span<const std::byte> pool, const Take& take) {
  const auto block = static_cast<uint64_t>(quant::type_info(tensor.type).bytes);
  auto left = static_cast<uint64_t>(tensor.bytes());
  for (uint64_t piece = 0; left > 0; ++piece) {
    const uint64_t size = std::min(left, kPieceBytes / block * block);
    const uint64_t begin = random_word(seed, piece) % ((pool.size() - size) / block + 1) * block;
    take(pool.subspan(begin, size));
    left -= size;
  }
}

/// A router's rows, [experts] of float32 numbers, each times its expert's factor.
void skew_rows(const WriteTensor& router, double skew, uint64_t seed, std::span<std::byte> bytes) {
  CHECK(router.type == Type::F32);
  const auto columns = static_cast<uint64_t>(router.shape[0]);
  for (uint64_t at = 0; at < bytes.size() / sizeof(float); ++at) {
    const double u = static_cast<double>(random_word(~seed, at / columns) >> 11) * 0x1p-53 - 0.5;
    float value = 0;
    std::memcpy(&value, bytes.data() + at * sizeof value, sizeof value);
    value *= static_cast<float>(std::exp(skew * u));
    std::memcpy(bytes.data() + at * sizeof value, &value, sizeof value);
  }
}

bool is_regular_or_new(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

void check_room(const std::string& path, uint64_t needed) {
  std::error_code error;
  const auto parent = std::filesystem::absolute(path, error).parent_path();
  const auto room = std::filesystem::space(parent, error);
  if (error) fail("{}: {}", path, error.message());
  if (room.available < needed) {
    fail("{}: needs {:.2f} GB, the disk has {:.2f} GB free", path, static_cast<double>(needed) / 1e9,
         static_cast<double>(room.available) / 1e9);
  }
}

}  // namespace

void random_blocks(Type type, float mean, float deviation, uint64_t seed, std::span<std::byte> out) {
  const quant::TypeInfo& info = quant::type_info(type);
  if (info.block == 1) {
    const auto bytes = static_cast<size_t>(info.bytes);
    for (uint64_t i = 0; i < out.size() / bytes; ++i) {
      const float number = mean + deviation * normal(random_word(seed, i));
      info.encode(&number, out.data() + bytes * i, 1);
    }
    return;
  }
  CHECK(mean == 0);
  const auto block = static_cast<uint64_t>(info.bytes);
  const uint64_t blocks = out.size() / block;
  for (uint64_t at = 0; at < out.size(); at += 8) {
    const uint64_t word = random_word(seed, at / 8);
    std::memcpy(out.data() + at, &word, std::min<uint64_t>(8, out.size() - at));
  }
  for (uint64_t i = 0; i < blocks; ++i)
    set_scales(type, deviation, random_word(~seed, i), out.data() + block * i);
}

void write_synth(const SynthOptions& options, const WritePlan& plan, const std::string& path,
                 const std::function<void(uint64_t, uint64_t)>& progress) {
  // A device or a pipe is written in place: there is nothing to replace.
  const bool replaces = is_regular_or_new(path);
  const std::string target = replaces ? path + ".part" : path;
  if (replaces) check_room(path, plan.file_bytes());
  uint64_t total = 0, done = 0, reported = 0;
  for (const WriteTensor& tensor : plan.tensors) total += static_cast<uint64_t>(tensor.bytes());
  const UnfinishedFile unfinished(replaces ? target : "");  // until it has its name
  Writer writer(target, plan);
  Pools pools(options.seed);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const WriteTensor& tensor = plan.tensors[i];
    const auto pool = pools.of(tensor.type, distribution_at(*options.model, plan.tensors, i));
    const uint64_t seed = seed_of(options.seed, tensor.name);
    if (options.router_skew > 0 && tensor.name.find("ffn_gate_inp.") != std::string::npos) {
      std::vector<std::byte> rows;
      cut_tensor(tensor, seed, pool,
                 [&](auto piece) { rows.insert(rows.end(), piece.begin(), piece.end()); });
      skew_rows(tensor, options.router_skew, seed, rows);
      writer.write(rows);
    } else {
      cut_tensor(tensor, seed, pool, [&](auto piece) { writer.write(piece); });
    }
    done += static_cast<uint64_t>(tensor.bytes());
    if (done - reported >= kProgressBytes || done == total) progress(reported = done, total);
  }
  writer.finish();
  if (!replaces) return;
  std::error_code error;
  std::filesystem::rename(target, path, error);
  if (error) {
    std::error_code ignored;
    std::filesystem::remove(target, ignored);
    fail("{}: {}", path, error.message());
  }
}

}  // namespace sluice::gguf
