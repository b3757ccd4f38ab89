#include "backend/vulkan/step_data.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace sluice::backend::vulkan {
namespace {

using namespace program;

constexpr uint32_t kHeaderWords = 8;

bool same(const RopeParams& a, const RopeParams& b) {
  return a.base == b.base && a.factor == b.factor && a.original_context == b.original_context &&
         a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow && a.whole_ramp == b.whole_ramp &&
         a.turns == b.turns;
}

/// What an op turns columns by; pairs 0: it turns none.
StepLayout::Angles angles_of(const Program& program, const Op& op) {
  if (const auto* rope = std::get_if<Rope>(&op.args))
    return {rope->params, rope->rope_columns(program) / 2, rope->factors.id};
  if (const auto* heads = std::get_if<MlaHeads>(&op.args))
    return {heads->query.rope, heads->query.rope_columns(program) / 2, heads->query.factors.id};
  return {};
}

bool same(const StepLayout::Angles& a, const StepLayout::Angles& b) {
  return a.pairs == b.pairs && a.factors == b.factors && same(a.params, b.params);
}

void fill_prompts(const StepInput& input, uint32_t* to) {
  uint32_t count = 0;
  for (int64_t first = 0, end = 0; first < input.rows(); first = end) {
    end = input.end_of_sequence(first);
    if (end - first < kPromptRows) continue;
    to[2 * count + 1] = static_cast<uint32_t>(first), to[2 * count + 2] = static_cast<uint32_t>(end - first);
    ++count;
  }
  to[0] = count;
}

bool is(const StepLayout::Temperature& temperature, const AttentionTemperature& op) {
  return temperature.op.beta == op.beta && temperature.op.length == op.length;
}

}  // namespace

StepLayout::StepLayout(const Program& program, const CompileOptions& options) {
  uint32_t next = kHeaderWords;
  const auto take = [&](int64_t words) {
    const uint32_t at = next;
    next += static_cast<uint32_t>(words);
    return at;
  };
  tokens = take(options.max_rows), positions = take(options.max_rows), sequences = take(options.max_rows);
  slots = take(options.max_rows), output_rows = take(options.max_outputs),
  states = take(2 * options.max_rows);
  prompts = take(1 + 2 * (options.max_rows / kPromptRows));
  for (const Op& op : program.ops()) {
    Angles own = angles_of(program, op);
    if (own.pairs > 0 &&
        std::none_of(angles.begin(), angles.end(), [&](const Angles& a) { return same(a, own); })) {
      own.at = take(2 * own.pairs * options.max_rows);
      angles.push_back(own);
    } else if (const auto* warm = std::get_if<AttentionTemperature>(&op.args)) {
      if (std::none_of(temperatures.begin(), temperatures.end(),
                       [&](const Temperature& t) { return is(t, *warm); }))
        temperatures.push_back({*warm, take(options.max_rows)});
    }
  }
  tables = next;
}

uint32_t StepLayout::angles_at(const RopeParams& params, int64_t pairs, TensorId factors) const {
  const Angles wanted{params, pairs, factors};
  const auto found =
      std::find_if(angles.begin(), angles.end(), [&](const Angles& a) { return same(a, wanted); });
  CHECK(found != angles.end(), "a rope of another program");
  return found->at;
}

uint32_t StepLayout::temperature_at(const AttentionTemperature& op) const {
  const auto found =
      std::find_if(temperatures.begin(), temperatures.end(), [&](const Temperature& t) { return is(t, op); });
  CHECK(found != temperatures.end(), "a temperature of another program");
  return found->at;
}

StepData::StepData(const Source& source, const StepLayout& layout) : layout_(layout) {
  for (const StepLayout::Angles& angles : layout.angles) {
    std::vector<float> divisors(static_cast<size_t>(angles.pairs), 1.0f);
    if (angles.factors != kNoTensor) {
      const Tensor& tensor = source.program[angles.factors];
      const auto& bytes = source.weights[static_cast<size_t>(source.program.storage(angles.factors))];
      const quant::TypeInfo& type = quant::type_info(tensor.type);
      type.decode(bytes.data() + quant::bytes_of(type, tensor.offset), divisors.data(), angles.pairs);
    }
    std::vector<double>& frequencies = frequencies_.emplace_back();
    for (int64_t i = 0; i < angles.pairs; ++i)
      frequencies.push_back(angles.params.frequency(i, 2 * angles.pairs) /
                            static_cast<double>(divisors[static_cast<size_t>(i)]));
  }
}

int64_t StepData::words(const StepInput& input) const {
  return layout_.tables + static_cast<int64_t>(input.page_tables.size());
}

void StepData::fill(const StepInput& input, uint32_t* to) const {
  to[0] = static_cast<uint32_t>(input.rows()), to[1] = static_cast<uint32_t>(input.outputs());
  to[2] = static_cast<uint32_t>(input.pages_per_sequence);
  const auto put = [&](uint32_t at, std::span<const int32_t> values) {
    std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(to + at));
  };
  put(layout_.tokens, input.tokens);
  put(layout_.positions, input.positions);
  put(layout_.sequences, input.sequences);
  put(layout_.slots, input.slots);
  put(layout_.output_rows, input.output_rows);
  put(layout_.tables, input.page_tables);
  for (size_t r = 0; r < input.sequences.size() && !input.states.empty(); ++r) {
    const StateSlots slots = input.states[static_cast<size_t>(input.sequences[r])];
    to[layout_.states + 2 * r] = static_cast<uint32_t>(slots.from);
    to[layout_.states + 2 * r + 1] = static_cast<uint32_t>(slots.to);
  }
  fill_prompts(input, to + layout_.prompts);
  for (size_t a = 0; a < frequencies_.size(); ++a) {
    uint32_t* next = to + layout_.angles[a].at;
    for (const int32_t position : input.positions) {
      for (const double frequency : frequencies_[a]) {
        const double angle = position * frequency;
        *next++ = std::bit_cast<uint32_t>(static_cast<float>(std::cos(angle)));
        *next++ = std::bit_cast<uint32_t>(static_cast<float>(std::sin(angle)));
      }
    }
  }
  for (const StepLayout::Temperature& temperature : layout_.temperatures) {
    for (size_t r = 0; r < input.positions.size(); ++r)
      to[temperature.at + r] = std::bit_cast<uint32_t>(temperature.op.factor(input.positions[r]));
  }
}

}  // namespace sluice::backend::vulkan
