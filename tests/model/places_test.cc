// Models cut into places (program/places.h) and run on several of them, against the logits of their golden
// cases and against themselves in one place.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "backend/ref/ref_backend.h"
#include "program/offload.h"
#include "program/op_info.h"
#include "program/places.h"
#include "support/golden_cases.h"

namespace sluice::test {
namespace {

using Shares = std::vector<double>;

/// A case, and how it is cut: evenly, unevenly, and with a place that gets nothing.
struct Cut {
  Case golden;
  Shares shares;

  std::string name() const {
    std::string name = fmt::format("{}_{}", golden.name, fmt::join(shares, "_"));
    std::ranges::replace_if(
        name, [](char c) { return c == '-' || c == '.'; }, '_');
    return name;
  }
};

Case case_of(const std::string& name) {
  return *std::ranges::find_if(kCases, [&](const Case& one) { return one.name == name; });
}

std::vector<Cut> cuts() {
  std::vector<Cut> list;
  for (const char* name : {"lite-q4_k_m-yarn", "lite-legacy-kv_b", "youtu-q4_0", "v3-groups"}) {
    for (const Shares& shares : {Shares{1, 1}, {3, 1}, {1, 1, 1, 1}, {4, 0, 1, 2}})
      list.push_back({case_of(name), shares});
  }
  for (const Case& one : kCases) {
    if (!std::string(one.name).starts_with("glm")) continue;
    list.push_back({one, {1, 1}});
  }
  for (const char* name : {"glm-q4_k_m", "glm-rotate"}) list.push_back({case_of(name), {1, 2.5}});
  for (const char* name :
       {"llama", "llama3", "qwen2", "qwen3", "v2-groups", "qwen3moe-q4_k_m", "glm4moe-q8_0-air"}) {
    list.push_back({case_of(name), {1, 3, 0}});
  }
  return list;
}

/// Places of one backend.
std::unique_ptr<program::Backend> over(const std::shared_ptr<program::Backend>& backend,
                                       const Shares& shares) {
  std::vector<backend::Place> places;
  places.reserve(shares.size());
  for (const double share : shares) places.push_back({backend, share});
  return backend::make_places_backend(std::move(places));
}
std::shared_ptr<program::Backend> ref() { return backend::make_ref_backend(); }
/// One thread: the places take turns, and it is not the team's meetings that are tested.
std::shared_ptr<program::Backend> cpu(backend::CpuOptions options = {.threads = 1}) {
  return backend::make_cpu_backend(options);
}

class PlacesTest : public testing::TestWithParam<Cut> {};

TEST_P(PlacesTest, ReferenceIsWithinOneThousandth) {
  const Golden golden = read_case(GetParam().golden);
  for (const int64_t rows : {1, 7, 512}) {
    const auto logits = logits_of(golden, *over(ref(), GetParam().shares), rows);
    EXPECT_LT(relative_error(logits, golden.logits), 1e-3) << rows;
  }
}

TEST_P(PlacesTest, CpuIsWithinTheLimitOfDivergence) {
  const Golden golden = read_case(GetParam().golden);
  for (const int64_t rows : {1, 7, 512}) {
    const Divergence kl = divergence(golden, logits_of(golden, *over(cpu(), GetParam().shares), rows));
    EXPECT_LT(kl.best_90, GetParam().golden.kl_limit) << rows;
    EXPECT_LT(kl.mean, 0.02) << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, PlacesTest, testing::ValuesIn(cuts()),
                         [](const auto& param) { return param.param.name(); });

TEST(Places, TheBundledModelAgreesWithTransformers) {
  const Golden golden =
      read_golden(source_path("models/fairy-tales.gguf"), source_path("tests/model/fairy-tales"));
  for (const Shares& shares : {Shares{1, 1}, {1, 1, 1, 1}, {2, 5}, {1, 0, 3, 2}}) {
    for (const int64_t rows : {1, 7, 512}) {
      EXPECT_LT(relative_error(logits_of(golden, *over(ref(), shares), rows), golden.logits), 1e-3) << rows;
      EXPECT_LT(divergence(golden, logits_of(golden, *over(cpu(), shares), rows)).best_90, 2.2e-4) << rows;
      EXPECT_LT(divergence(golden, logits_of(golden, *over(cpu(), shares), rows, quant::Type::Q8_0)).best_90,
                2.2e-4)
          << rows;
    }
  }
}

/// Mixtures of experts of a golden case, and how many of them leave the first place.
void expect_offload_agrees(const Case& one, size_t count) {
  SCOPED_TRACE(fmt::format("{}, {} mixtures", one.name, count));
  const Golden golden = read_case(one);
  const auto with = [&](const std::shared_ptr<program::Backend>& first,
                        const std::shared_ptr<program::Backend>& second) {
    return backend::make_offload_backend(first, second, {.mixtures = count, .bytes = int64_t{1} << 40});
  };
  EXPECT_LT(relative_error(logits_of(golden, *with(ref(), ref()), 7), golden.logits), 1e-3);
  for (const int64_t rows : {1, 7, 512}) {
    const Divergence kl = divergence(golden, logits_of(golden, *with(cpu(), cpu()), rows));
    EXPECT_LT(kl.best_90, one.kl_limit) << rows;
  }
}

TEST(Places, ExpertsMayBeAtAnother) {
  size_t tried = 0;
  for (const Case& one : kCases) {
    const size_t all = program::routed_experts(model::Model::load(read_case(one).model).program).size();
    if (all == 0) continue;
    for (const size_t count : std::set<size_t>{1, all}) expect_offload_agrees(one, count), ++tried;
  }
  EXPECT_GT(tried, 10u);
}

/// Prompts in steps of 16 rows, of which those of `from` and more are streamed.
std::vector<float> streamed_logits(const Golden& golden, size_t count, int64_t from, int64_t rows) {
  const auto backend =
      backend::make_offload_backend(cpu({.threads = 2}), cpu({.threads = 2}),
                                    {.mixtures = count, .bytes = int64_t{1} << 40, .stream_rows = from});
  return logits_of(golden, *backend, rows);
}

// What a streamed step leaves in the caches the steps over places find, and the other way round: the last
// step of a prompt has fewer rows.
TEST(Places, StepsOfManyRowsRunAtTheFirst) {
  for (const char* name : {"glm-q4_k_m", "lite-q4_k_m-yarn", "v3-groups", "qwen3moe-q4_k_m"}) {
    const Case one = case_of(name);
    const Golden golden = read_case(one);
    const size_t all = program::routed_experts(model::Model::load(golden.model).program).size();
    const auto whole = [&](int64_t rows) { return logits_of(golden, *cpu({.threads = 2}), rows); };
    // Every step streamed is every step at one place.
    EXPECT_EQ(streamed_logits(golden, all, 1, 7), whole(7)) << name;
    for (const int64_t from : {0, 2, 7, 8}) {
      for (const int64_t rows : {7, 512}) {
        const auto logits = streamed_logits(golden, all, from, rows);
        EXPECT_LT(divergence(golden, logits).best_90, one.kl_limit) << name << " " << from << " " << rows;
      }
    }
    // Never streamed, whatever is asked for.
    EXPECT_EQ(streamed_logits(golden, all, 8, 7), streamed_logits(golden, all, program::kNeverStream, 7));
  }
}

TEST(Places, StreamingSaysFromHowManyRowsOn) {
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  const auto rows_with = [&](int64_t from, bool batch_invariant) {
    const auto backend =
        backend::make_offload_backend(cpu(), cpu(), {.mixtures = 2, .bytes = 1 << 30, .stream_rows = from});
    return backend
        ->compile(model.program, model.weights, {.max_rows = 64, .batch_invariant = batch_invariant})
        ->facts()
        .stream_rows;
  };
  EXPECT_EQ(rows_with(24, false), 24);
  EXPECT_EQ(rows_with(1000, false), 65);  // more than there can be
  EXPECT_EQ(rows_with(24, true), 0);      // one order of every sum
  EXPECT_EQ(rows_with(program::kNeverStream, false), 0);
  const int64_t measured = rows_with(0, false);
  EXPECT_GE(measured, 1);
  EXPECT_LE(measured, 65);
}

TEST(Places, BreakEvenIsWhereComputingTakesAsLong) {
  using backend::break_even_rows;
  // 1 ms and 0.1 ms a row.
  const backend::TimedRows few{32, 4.2e-3}, many{256, 26.6e-3};
  EXPECT_EQ(break_even_rows(few, many, 11e-3, 512), 100);
  EXPECT_EQ(break_even_rows(few, many, 51e-3, 512), 500);
  EXPECT_EQ(break_even_rows(few, many, 52.3e-3, 512), 512);
  EXPECT_EQ(break_even_rows(few, many, 1, 512), 512);
  EXPECT_EQ(break_even_rows(few, many, 0, 512), 32) << "below it nothing was measured";
  EXPECT_EQ(break_even_rows({32, 26e-3}, many, 11e-3, 512), 32) << "the small step was held up";
  EXPECT_EQ(break_even_rows(few, many, 0, 16), 16) << "no larger step is run";
  // Noise: more rows seem to take less.
  EXPECT_EQ(break_even_rows({32, 2}, {256, 1}, 0.5, 512), 256);
  EXPECT_EQ(break_even_rows({32, 2}, {256, 1}, 1.5, 512), 512);
}

TEST(Places, ExpertsThatLeaveAreNotLoadedAtTheFirst) {
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"));
  const auto experts = program::routed_experts(model.program);
  ASSERT_GT(experts.size(), 1u);
  int64_t before = 0;
  for (size_t count = 0; count <= experts.size(); ++count) {
    const auto backend = backend::make_offload_backend(cpu(), cpu(), {.mixtures = count, .bytes = 1 << 30});
    const int64_t bytes = backend->memory_needs(model.program, {}).weights_bytes;
    if (count > 0) {
      EXPECT_EQ(before - bytes, experts[experts.size() - count].bytes) << count;
    }
    EXPECT_EQ(backend->available_bytes(), 1 << 30);
    before = bytes;
  }
}

/// All of them in one executable's memory: the ops across places are kernels like others.
TEST(Places, MayBeOneExecutables) {
  for (const char* name : {"glm-q4_0", "lite-q4_k_m-yarn", "qwen2"}) {
    const Case one = case_of(name);
    const Golden golden = read_case(one);
    model::Model model = model::Model::load(golden.model);
    model.program = program::split(model.program, Shares{1, 2});
    model.weights.resize(model.program.tensors().size());
    EXPECT_LT(relative_error(logits_of(golden, model, *ref(), 7), golden.logits), 1e-3) << name;
    for (const int64_t rows : {1, 7, 512}) {
      const auto logits = logits_of(golden, model, *cpu({.threads = 2}), rows);
      EXPECT_LT(divergence(golden, logits).best_90, one.kl_limit) << name << " " << rows;
      EXPECT_EQ(logits, logits_of(golden, *over(cpu({.threads = 2}), {1, 2}), rows)) << "to the bit";
    }
  }
}

TEST(Places, OneThatHasAllGivesTheSameBitsWhereverItIs) {
  const Golden golden = golden_case("v3-groups");
  const auto alone = logits_of(golden, *over(cpu(), {1}), 7);
  EXPECT_EQ(alone, logits_of(golden, *over(cpu(), {0, 3, 0}), 7));
}

TEST(Places, DifferentBackendsMayHaveOneEach) {
  const Golden golden = golden_case("lite-q4_k_m-yarn");
  std::vector<backend::Place> places;
  places.push_back({cpu({.threads = 2}), 2});
  places.push_back({cpu({.threads = 1, .repack = false}), 1});
  places.push_back({ref(), 1});
  const auto backend = backend::make_places_backend(std::move(places));
  EXPECT_EQ(backend->name(), "cpu+cpu+ref");
  EXPECT_LT(divergence(golden, logits_of(golden, *backend, 7)).best_90, 0.0005);
}

TEST(Places, WeightsThatStayInTheFileGiveTheSameBits) {
  for (const char* name : {"glm-q4_k_m", "glm-rotate"}) {
    const Golden golden = golden_case(name);
    EXPECT_EQ(logits_of(golden, *over(cpu(), {1, 2}), 7),
              logits_of(golden, *over(cpu({.threads = 1, .repack = false}), {1, 2}), 7))
        << name;
  }
}

/// Of a weight that is cut each number lies at one place, of the others every place has all or nothing.
TEST(Places, HaveEveryWeightOnceOrWhole) {
  for (const char* name : {"v3-groups", "lite-q4_k_m-yarn", "youtu-q4_0", "glm-rotate", "qwen2"}) {
    const Case one = case_of(name);
    const model::Model model = model::Model::load(read_case(one).model);
    const program::Program cut = program::split(model.program, Shares{1, 2, 1});
    EXPECT_NO_THROW(program::verify(cut)) << name;
    // By weight, how many places have each of its numbers.
    std::map<program::TensorId, std::vector<int>> owners;
    std::set<std::tuple<program::TensorId, int32_t, int64_t>> seen;
    std::set<int32_t> places;
    for (const program::Op& op : cut.ops()) {
      if (std::holds_alternative<program::Embed>(op.args))
        continue;  // the table is the output matrix of some
      program::info(op).operands(op, [&](const char*, program::TensorId id, bool) {
        const program::Tensor& t = cut[id];
        if (t.kind != program::Kind::Weight || t.name == "output_norm.weight") return;
        const program::TensorId storage = cut.storage(id);
        if (!seen.insert({storage, t.place, t.offset}).second) return;  // the rope's factors are each layer's
        places.insert(t.place);
        const auto& shape = cut[storage].shape;
        std::vector<int>& counts = owners[storage];
        counts.resize(static_cast<size_t>(shape[0] * shape[1] * shape[2]));
        for (int64_t m = 0; m < t.shape[0]; ++m) {
          for (int64_t r = 0; r < t.shape[1]; ++r) {
            const auto first = counts.begin() + t.offset + m * t.stride[0] + r * t.stride[1];
            for (auto at = first; at != first + t.columns(); ++at) ++*at;
          }
        }
      });
    }
    EXPECT_EQ(places.size(), 3u) << name;
    int cut_weights = 0;
    for (const auto& [id, counts] : owners) {
      const auto [least, most] = std::ranges::minmax(counts);
      EXPECT_EQ(least, most) << name << " " << cut[id].name;
      EXPECT_GE(least, 1) << name << " " << cut[id].name;
      cut_weights += least == 1 ? 1 : 0;
    }
    EXPECT_GT(cut_weights, 6) << name;
  }
}

TEST(Places, MemoryIsWhatTheirExecutablesTake) {
  const model::Model model = model::Model::load(golden_case("v3-groups").model);
  const auto backend = over(cpu(), {1, 1});
  const program::CompileOptions options{.max_rows = 16, .max_outputs = 4, .cache_pages = 2};
  const program::Source source{model.program, model.weights};
  const auto weights = backend->load({&source, 1}, {});
  const auto executable = backend->compile(source, weights, options);
  const program::MemoryNeeds needs = backend->memory_needs(model.program, options);
  // Norms and routers are held once by this backend, and the embedding's rows and such are read in the file.
  EXPECT_LE(weights->bytes(), needs.weights_bytes);
  EXPECT_GT(weights->bytes(), needs.weights_bytes / 2);
  EXPECT_NEAR(static_cast<double>(executable->memory_bytes()),
              static_cast<double>(needs.cache_bytes + needs.scratch_bytes),
              0.1 * static_cast<double>(needs.cache_bytes + needs.scratch_bytes));
}

}  // namespace
}  // namespace sluice::test
