// Models over ranks: each is a thread here, with a channel and a backend of its own, as processes have them;
// against the logits of their golden cases, and to the bit against the same cut in one process.
#include <gtest/gtest.h>

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/check.h"
#include "base/error.h"
#include "program/op_info.h"
#include "program/own_weights.h"
#include "support/golden_cases.h"
#include "support/ranks.h"

namespace sluice::test {
namespace {

using Make = std::function<std::shared_ptr<program::Backend>()>;

std::shared_ptr<program::Backend> one_thread() { return backend::make_cpu_backend({.threads = 1}); }
std::shared_ptr<program::Backend> reference() { return backend::make_ref_backend(); }

std::unique_ptr<program::Backend> places(const Make& make, int count) {
  std::vector<backend::Place> list;
  for (int p = 0; p < count; ++p) list.push_back({make(), 1});
  return backend::make_places_backend(std::move(list));
}

Case case_of(const std::string& name) {
  return *std::ranges::find_if(kCases, [&](const Case& one) { return one.name == name; });
}

class RanksTest : public testing::TestWithParam<const char*> {};

// Within the limits of one process, and the same bits as the same cut has there.
TEST_P(RanksTest, AgreeWithTheirGoldenCase) {
  const Case one = case_of(GetParam());
  const Golden golden = read_case(one);
  for (const int count : {2, 3}) {
    const Ranks cpu(golden.model, count, one_thread);
    for (const int64_t rows : {1, 7, 512}) {
      const auto logits = logits_of(golden, cpu.backend(), rows);
      EXPECT_LT(divergence(golden, logits).best_90, one.kl_limit) << count << " ranks, " << rows << " rows";
      EXPECT_EQ(logits, logits_of(golden, *places(one_thread, count), rows)) << "to the bit";
    }
    const Ranks exact(golden.model, count, reference);
    EXPECT_LT(relative_error(logits_of(golden, exact.backend(), 7), golden.logits), 1e-3) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RanksTest,
                         testing::Values("glm-q4_0", "lite-q4_k_m-yarn", "youtu-q4_0", "v3-groups", "qwen2",
                                         "qwen3moe-q4_k_m", "gpt-oss-q8_0"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Ranks, LoadTheirPartAlone) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const program::Source source{model.program, model.weights};
  const int64_t whole = one_thread()->load({&source, 1}, {})->bytes();
  const Ranks ranks(path, 3, one_thread);
  const auto weights = ranks.backend().load({&source, 1}, {});
  // Routers, norms and low-rank products are everywhere.
  EXPECT_LT(static_cast<double>(weights->bytes()), 0.45 * static_cast<double>(whole));
  EXPECT_GT(static_cast<double>(weights->bytes()), 0.3 * static_cast<double>(whole));
  EXPECT_LT(ranks.backend().memory_needs(model.program, {}).weights_bytes, whole);
}

TEST(Ranks, MayBePeekedAndPokedLikePlaces) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const Ranks ranks(path, 2, one_thread);
  const auto executable = ranks.backend().compile(model.program, model.weights, {.max_rows = 4});
  const auto& tensors = executable->program().tensors();
  int seen = 0;
  for (size_t id = 0; id < tensors.size(); ++id) {
    const program::Tensor& tensor = tensors[id];
    if (tensor.name != "partial") continue;
    const std::vector<float> values(static_cast<size_t>(2 * tensor.columns()), static_cast<float>(id));
    executable->poke(static_cast<program::TensorId>(id), 2, values);
    std::vector<float> back(values.size());
    executable->peek(static_cast<program::TensorId>(id), 2, back);
    EXPECT_EQ(back, values) << id;
    ++seen;
  }
  EXPECT_GT(seen, 3);
}

TEST(Ranks, AStepThatIsGivenUpLeavesNoTrace) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const Ranks ranks(path, 2, one_thread);
  const auto executable =
      ranks.backend().compile(model.program, model.weights, {.max_rows = 64, .cache_pages = 2});
  engine::Batch batch(64, 1, 2);
  const int32_t pages[] = {0, 1};
  batch.set_pages(0, pages);
  for (int32_t i = 0; i < 64; ++i) batch.add(1 + i * 7 % 200, i, 0, i == 63);
  program::Step step = batch.step();
  const auto logits = [&] {
    const program::StepResult result = run_step(*executable, step);
    EXPECT_FALSE(result.stopped);
    return std::vector<float>(result.outputs[0].logits.begin(), result.outputs[0].logits.end());
  };
  const auto expected = logits();
  std::atomic<bool> stop = true;
  step.stop = &stop;
  EXPECT_TRUE(run_step(*executable, step).stopped);
  stop = false;
  EXPECT_EQ(logits(), expected);
}

/// A backend that has no views of weights, as devices that pack whole tensors.
class Owning : public program::Backend {
 public:
  struct Set : program::WeightSet {
    std::shared_ptr<program::OwnWeights> own;
    std::shared_ptr<const program::WeightSet> inner;
    int64_t bytes() const override { return inner->bytes(); }
  };
  std::string name() const override { return cpu_->name(); }
  program::Facts facts() const override { return cpu_->facts(); }
  bool has(const program::Program& p, const program::Op& op) const override { return cpu_->has(p, op); }
  program::MemoryNeeds memory_needs(const program::Program& p,
                                    const program::CompileOptions& options) const override {
    return cpu_->memory_needs(program::own_weights(p, {}).program, options);
  }
  program::Binding bind(const program::Source& s, const program::CompileOptions& options) const override {
    return cpu_->bind(s, options);
  }
  std::shared_ptr<const program::WeightSet> load(std::span<const program::Source> sources,
                                                 const program::Progress& progress) override {
    auto set = std::make_shared<Set>();
    set->own =
        std::make_shared<program::OwnWeights>(program::own_weights(sources[0].program, sources[0].weights));
    const program::Source source{set->own->program, set->own->weights};
    set->inner = cpu_->load({&source, 1}, progress);
    return set;
  }
  std::unique_ptr<program::Executable> compile(const program::Source&,
                                               std::shared_ptr<const program::WeightSet> weights,
                                               const program::CompileOptions& options) override {
    const auto& set = dynamic_cast<const Set&>(*weights);
    kept_.push_back(weights);
    return cpu_->compile({set.own->program, set.own->weights}, set.inner, options);
  }
  const program::Peaks& peaks() override { return cpu_->peaks(); }
  double measure_read_bandwidth() override { return 0; }

 private:
  std::shared_ptr<program::Backend> cpu_ = one_thread();
  std::vector<std::shared_ptr<const program::WeightSet>> kept_;
};

TEST(Ranks, MayHaveTheirPartsAsTensorsOfTheirOwn) {
  for (const char* name : {"glm-q4_k_m", "lite-q4_k_m-yarn", "qwen2", "gpt-oss-q8_0"}) {
    const Golden golden = read_case(case_of(name));
    const Ranks views(golden.model, 2, one_thread),
        own(golden.model, 2, [] { return std::make_shared<Owning>(); });
    EXPECT_EQ(logits_of(golden, own.backend(), 7), logits_of(golden, views.backend(), 7)) << name;
  }
}

/// A rank whose steps are whole: between parts of its side it exchanges by a channel of its own, as a GPU
/// does by its own means.
class WholeSteps : public program::Executable {
 public:
  WholeSteps(const program::Source& source, std::unique_ptr<program::Executable> inner,
             backend::Channel& channel, int64_t max_outputs)
      : program_(source.program), inner_(std::move(inner)), channel_(channel) {
    if (program_.output() != program::kNoTensor)
      logits_.resize(static_cast<size_t>(max_outputs * program_[program_.output()].columns()));
  }
  program::Ticket submit(const program::Step& step) override {
    size_t part = 0;
    for (const program::Op& op : program_.ops()) {
      if (!program::info(op).across_places) continue;
      inner_->run_part({.input = step.input}, part++);
      if (const auto* sum = std::get_if<program::AllReduce>(&op.args)) {
        add_up(*sum, step.input);
      } else if (const auto* all = std::get_if<program::AllGather>(&op.args)) {
        gather(*all, step.input);
      } else {
        copy(std::get<program::Copy>(op.args), step.input);
      }
    }
    inner_->run_part({.input = step.input}, part);
    outputs_.assign(step.input.output_rows.size(), {});
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!step.want(static_cast<int64_t>(i)).logits) continue;
      CHECK(channel_.rank() == 0, "logits of another rank");
      outputs_[i].logits = std::span<const float>(logits_).subspan(i * vocabulary(), vocabulary());
    }
    if (channel_.rank() == 0 && !outputs_.empty())
      inner_->peek(program_.output(), step.input.outputs(),
                   std::span(logits_).first(outputs_.size() * vocabulary()));
    return {};
  }
  program::StepResult collect(program::Ticket) override { return {.outputs = outputs_}; }
  program::Facts facts() const override { return {.steps_in_flight = 2}; }
  void peek(program::TensorId id, int64_t rows, std::span<float> values) override {
    inner_->peek(id, rows, values);
  }
  void poke(program::TensorId id, int64_t rows, std::span<const float> values) override {
    inner_->poke(id, rows, values);
  }
  const program::Program& program() const override { return program_; }
  std::vector<program::BoundKernel> bound() const override { return inner_->bound(); }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }

 private:
  size_t vocabulary() const { return static_cast<size_t>(program_[program_.output()].columns()); }
  int64_t rows_of(program::TensorId id, const program::StepInput& input) const {
    return program::Program::rows(program_[id], input.rows(), input.outputs());
  }
  std::vector<float> values_of(program::TensorId id, const program::StepInput& input) const {
    const program::Tensor& t = program_[id];
    return std::vector<float>(static_cast<size_t>(rows_of(id, input) * t.heads() * t.columns()));
  }
  void add_up(const program::AllReduce& op, const program::StepInput& input) {
    const auto ranks = static_cast<size_t>(channel_.ranks());
    std::vector<float> mine = values_of(op.out.at(0).id, input), all(mine.size() * ranks);
    const std::vector<int64_t> counts(ranks, static_cast<int64_t>(mine.size()));
    // Who has nothing of what is cut brings nothing.
    if (!op.in.empty()) inner_->peek(op.in[0].id, input.rows(), mine);
    std::ranges::copy(mine, all.begin() + channel_.rank() * std::ssize(mine));
    channel_.gather(all, counts);
    for (size_t k = 0; k < mine.size(); ++k) {
      mine[k] = all[k];
      for (size_t r = 1; r < ranks; ++r) mine[k] += all[r * mine.size() + k];
    }
    inner_->poke(op.out.at(0).id, input.rows(), mine);
  }
  void gather(const program::AllGather& op, const program::StepInput& input) {
    if (input.outputs() == 0) return;
    if (channel_.rank() != 0) {
      std::vector<float> mine = values_of(op.in.at(0).id, input);
      inner_->peek(op.in[0].id, input.outputs(), mine);
      return channel_.send_to(0, backend::Frame::Values, std::as_bytes(std::span(mine)));
    }
    std::vector<float> all = values_of(op.out.at(0).id, input);
    const int64_t columns = program_[op.out[0].id].columns();
    int64_t first = 0;
    for (const program::Read& in : op.in) {
      const program::Tensor& t = program_[in.id];
      std::vector<float> part = values_of(in.id, input);
      if (t.place != 0) {
        const backend::Received sent = channel_.receive_from(t.place);
        ASSERT_EQ(sent.data.size(), part.size() * sizeof(float));
        inner_->poke(in.id, input.outputs(), {reinterpret_cast<const float*>(sent.data.data()), part.size()});
      }
      inner_->peek(in.id, input.outputs(), part);
      for (int64_t r = 0; r < input.outputs(); ++r)
        std::copy_n(part.begin() + r * t.columns(), t.columns(), all.begin() + r * columns + first);
      first += t.columns();
    }
    ASSERT_EQ(first, columns) << "rank 0 has room for everybody's";
    inner_->poke(op.out[0].id, input.outputs(), all);
  }

  void copy(const program::Copy& op, const program::StepInput& input) {
    const int from = program_[op.in.id].place, to = program_[op.out.id].place;
    std::vector<float> rows = values_of(op.in.id, input);
    if (rows.empty()) return;
    if (from == channel_.rank()) {
      inner_->peek(op.in.id, rows_of(op.in.id, input), rows);
      channel_.give(to, rows);
    } else {
      channel_.take(from, rows);
      inner_->poke(op.out.id, rows_of(op.out.id, input), rows);
    }
  }

  program::Program program_;
  std::unique_ptr<program::Executable> inner_;
  backend::Channel& channel_;
  std::vector<float> logits_;
  std::vector<program::RowResult> outputs_;
};

class WholeStepsBackend : public Owning {
 public:
  explicit WholeStepsBackend(backend::ChannelOptions options) : channel_(std::move(options)) {}
  std::unique_ptr<program::Executable> compile(const program::Source& source,
                                               std::shared_ptr<const program::WeightSet> weights,
                                               const program::CompileOptions& options) override {
    return std::make_unique<WholeSteps>(source, Owning::compile(source, std::move(weights), options),
                                        channel_, options.max_outputs);
  }

 private:
  backend::Channel channel_;
};

TEST(Ranks, MayExchangeByThemselvesInWholeSteps) {
  for (const char* name : {"glm-q4_k_m", "lite-q4_k_m-yarn", "qwen2", "v3-groups"}) {
    const Golden golden = read_case(case_of(name));
    for (const auto& [count, deal] :
         {std::pair{2, backend::Deal::Parts}, {3, backend::Deal::Parts}, {2, backend::Deal::Layers}}) {
      const int port = free_port();
      const auto make = [&, count = count](int rank) {
        return std::make_shared<WholeStepsBackend>(rank_options(rank, count, port));
      };
      const Ranks by_hosts(golden.model, count, one_thread, {backend::Exchange::ByHosts, deal}),
          by_themselves(golden.model, count, make, {backend::Exchange::ByDevices, deal});
      for (const int64_t rows : {1, 7})
        EXPECT_EQ(logits_of(golden, by_themselves.backend(), rows),
                  logits_of(golden, by_hosts.backend(), rows))
            << name << ", " << count << " ranks, " << rows << " rows";
    }
  }
}

// Followers begin a step while the one before has not ended.
TEST(Ranks, MayHaveTwoStepsInFlight) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const int port = free_port();
  const Ranks ranks(
      path, 2, [&](int rank) { return std::make_shared<WholeStepsBackend>(rank_options(rank, 2, port)); },
      {backend::Exchange::ByDevices});
  const auto executable = ranks.backend().compile(model.program, model.weights, {.max_rows = 4});
  ASSERT_EQ(executable->facts().steps_in_flight, 2);
  std::vector<engine::Batch> batches;
  for (int32_t i = 0; i < 5; ++i) {
    const int32_t pages[] = {0};
    engine::Batch& batch = batches.emplace_back(1, 1, 1);
    batch.set_pages(0, pages);
    batch.add(1 + 7 * i, i, 0, i == 4);
  }
  std::optional<program::Ticket> before;
  for (const engine::Batch& batch : batches) {
    const program::Ticket ticket = executable->submit(batch.step());
    if (before) executable->collect(*before);
    before = ticket;
  }
  const program::StepResult last = executable->collect(*before);
  const std::vector<float> logits(last.outputs[0].logits.begin(), last.outputs[0].logits.end());
  for (const engine::Batch& batch : batches) {
    const program::StepResult result = run_step(*executable, batch.step());
    if (&batch == &batches.back())
      EXPECT_EQ(logits, std::vector<float>(result.outputs[0].logits.begin(), result.outputs[0].logits.end()));
  }
}

// --- who does not fit ---

TEST(Ranks, RefuseOtherBuildsFilesAndKernels) {
  const auto refusal = [](const std::function<void(backend::RankIdentity&)>& change) {
    return meet_two([&](backend::ChannelOptions& second) { change(second.identity); });
  };
  for (const std::string& side : refusal([](auto& id) { id.build = "0.1.9"; }))
    EXPECT_THAT(side, testing::AllOf(testing::StartsWith("rank 1 ("),
                                     testing::HasSubstr("is another build: 0.1.9, rank 0 is test")));
  for (const std::string& side : refusal([](auto& id) { id.model = "other"; }))
    EXPECT_THAT(side, testing::HasSubstr("has another model file than rank 0"));
  for (const std::string& side : refusal([](auto& id) { id.kernels = "matmul, avx512; rope, avx2"; }))
    EXPECT_THAT(side, testing::HasSubstr("has other kernels than rank 0: rope, avx2"));
  for (const std::string& side : refusal([](auto&) {})) EXPECT_EQ(side, "");
}

TEST(Ranks, WaitForLateOnesAndSaySo) {
  std::vector<std::string> told;
  const auto sides = meet_two(
      {},
      [&](backend::ChannelOptions& first) {
        first.tell = [&told](const std::string& line) { told.push_back(line); };
      },
      std::chrono::milliseconds(2500));
  EXPECT_EQ(sides, (std::vector<std::string>{"", ""}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], testing::StartsWith("waiting for rank 1 at 127.0.0.1:"));
}

TEST(Ranks, GiveUpWaitingInTheEnd) {
  backend::ChannelOptions options = rank_options(0, 2, free_port());
  options.patience_s = 1;
  EXPECT_THAT(error_of([&] { backend::Channel channel(std::move(options)); }),
              testing::StartsWith("waited 1 s for rank 1 at 127.0.0.1:"));
  options = rank_options(1, 2, free_port());
  options.patience_s = 1;
  EXPECT_THAT(error_of([&] { backend::Channel channel(std::move(options)); }),
              testing::StartsWith("waited 1 s for rank 0 at 127.0.0.1:"));
}

// Strangers that say nothing, or something else, or that they are a rank that is there or cannot be: they are
// closed, and the ranks meet.
TEST(Ranks, PassOverStrangers) {
  std::vector<std::string> told;
  const int port = free_port();
  const auto sides = meet_two(
      {},
      [&](backend::ChannelOptions& first) {
        first.launch.port = port;
        first.tell = [&told](const std::string& line) { told.push_back(line); };
      },
      std::chrono::milliseconds(300),
      [&] {
        const auto say = [&](std::span<const std::byte> bytes) {
          backend::Socket socket;
          while (socket.empty()) socket = backend::Socket::connect_to("", port);
          socket.write(bytes);
          socket.shut();
        };
        say({});
        say(std::as_bytes(std::span<const char>("GET / HTTP/1.1\r\n\r\n")));
        const auto hello = [&](const backend::Packet& packet) {
          backend::Socket socket;
          while (socket.empty()) socket = backend::Socket::connect_to("", port);
          socket.write_frame(backend::Frame::Hello, packet.data());
          socket.read_frame(1 << 16);
        };
        hello(backend::Packet().add(int64_t{2}).add(int64_t{0}).add(int64_t{7}).add(int64_t{2}));
        hello(backend::Packet()
                  .add(int64_t{2})
                  .add(int64_t{0})
                  .add(int64_t{1})
                  .add(int64_t{2})
                  .add(int64_t{1} << 60));
      });
  EXPECT_EQ(sides, (std::vector<std::string>{"", ""}));
  ASSERT_EQ(told.size(), 4u);
  EXPECT_EQ(told[0], "a connection that is no rank's was closed");
  EXPECT_EQ(told[1], "a connection that is no rank's was closed");
  EXPECT_EQ(told[2], "rank 7 of 2 came, where there are 2 ranks");
  EXPECT_EQ(told[3], "a packet of another rank is too short");
}

// --- who is lost ---

TEST(Ranks, HearWhyOneOfThemCannotGoOn) {
  std::string heard[3];
  run_ranks(3, [&](int rank, backend::Channel& channel) {
    if (rank == 1) channel.abort("out of memory");
    std::vector<float> all(3);
    heard[rank] = error_of([&] {
      for (int i = 0; i < 1000; ++i) channel.gather(all, std::vector<int64_t>{1, 1, 1});
    });
  });
  EXPECT_EQ(heard[1], "out of memory");
  for (const int other : {0, 2}) {
    EXPECT_THAT(heard[other], testing::StartsWith("rank 1 ("));
    EXPECT_THAT(heard[other], testing::EndsWith("): out of memory"));
  }
}

TEST(Ranks, AStepEndsWithAnErrorWhenOneIsGone) {
  const std::string path = source_path("models/fairy-tales.gguf");
  const model::Model model = model::Model::load(path);
  const Ranks ranks(path, 2, one_thread);
  const auto executable = ranks.backend().compile(model.program, model.weights, {.max_rows = 4});
  ranks.follower(1).abort("its disk is gone");
  engine::Batch batch(1, 1, 1);
  const int32_t pages[] = {0};
  batch.set_pages(0, pages);
  batch.add(1, 0, 0, true);
  EXPECT_THAT(error_of([&] {
                for (int i = 0; i < 10'000; ++i) run_step(*executable, batch.step());
              }),
              testing::EndsWith("): its disk is gone"));
}

TEST(Ranks, GatherBitsOfEveryRank) {
  std::vector<float> got[3];
  run_ranks(3, [&](int rank, backend::Channel& channel) {
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{1, 0, 0}, {0, 0, 0}, {2, 100'000, 3}, {0, 5, 1'000'000}}) {
      int64_t first = 0, total = 0;
      for (int r = 0; r < 3; ++r) {
        if (r == rank) first = total;
        total += counts[static_cast<size_t>(r)];
      }
      std::vector<float> all(static_cast<size_t>(total), -1.0f);
      for (int64_t i = first; i < first + counts[static_cast<size_t>(rank)]; ++i)
        all[static_cast<size_t>(i)] = static_cast<float>(i);
      channel.gather(all, counts);
      got[rank].insert(got[rank].end(), all.begin(), all.end());
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] != static_cast<float>(i)) {
          ADD_FAILURE() << "rank " << rank << " has " << all[i] << " at " << i;
          break;
        }
      }
    }
  });
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
}

// --- by what variables ---

std::optional<backend::Launch> launch(std::map<std::string, std::string> variables) {
  return backend::read_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, ReadsWhatStartersSay) {
  EXPECT_FALSE(launch({}));
  EXPECT_FALSE(launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  auto one =
      launch({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->rank, 2);
  EXPECT_EQ(one->ranks, 4);
  EXPECT_EQ(one->address, "10.0.0.1");
  EXPECT_EQ(one->port, 1234);
  EXPECT_TRUE(one->several_hosts());
  one = launch({{"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(one);
  EXPECT_TRUE(one->open_mpi);
  EXPECT_EQ(one->local_ranks, 2);
  EXPECT_EQ(one->local_rank, 1);
  EXPECT_FALSE(one->several_hosts());
  one = launch({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_NNODES", "1"}, {"SLURM_LOCALID", "3"}});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->rank, 3);
  EXPECT_EQ(one->local_ranks, 4);
  EXPECT_EQ(launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})->starter, "mpiexec");
}

TEST(Launch, NumbersRanksOfThisHostWhereNobodyDoes) {
  for (const char* address : {"", "127.0.0.1", "localhost", "::1"}) {
    const auto one = launch({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", address}});
    ASSERT_TRUE(one);
    EXPECT_EQ(one->local_rank, 2) << address;
    EXPECT_EQ(one->local_ranks, 4) << address;
    EXPECT_FALSE(one->several_hosts()) << address;
  }
  const auto told = launch({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}});
  ASSERT_TRUE(told);
  EXPECT_EQ(told->local_rank, 0);
  EXPECT_EQ(launch({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}})->local_rank, 0);
}

TEST(Launch, RefusesWhatMakesNoSense) {
  const struct {
    const char *rank, *size, *expected;
  } cases[] = {{"2", "2", "RANK=2: expected a number from 0 to 1"},
               {"-1", "2", "RANK=-1: expected a number from 0 to 1"},
               {"x", "2", "RANK=x: expected a number from 0 to 1"},
               {"0", "2x", "WORLD_SIZE=2x: expected a number from 1 to 2147483647"},
               {"0", "65", "WORLD_SIZE=65: 64 ranks at most"}};
  for (const auto& c : cases)
    EXPECT_EQ(error_of([&] { launch({{"RANK", c.rank}, {"WORLD_SIZE", c.size}}); }), c.expected);
}

}  // namespace
}  // namespace sluice::test
