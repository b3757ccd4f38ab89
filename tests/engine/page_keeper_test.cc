// Pages that leave the device and come back, through an engine: an answer is what computing all of its tokens
// anew gives, wherever its pages were meanwhile.
#include "engine/page_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/places/places_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/clock.h"
#include "engine/batcher.h"
#include "model/model.h"
#include "store/folder.h"
#include "support/recorder.h"
#include "support/script_executable.h"
#include "support/two_caches.h"

namespace sluice::engine {
namespace {

using program::Kept;
using program::kPageRows;
using test::OwnFolder;
using test::Recorder;
using Tokens = std::vector<int32_t>;

constexpr int64_t kContext = 512;

TEST(BringingPays, WhereReadingIsQuickerThanComputing) {
  EXPECT_TRUE(bringing_pays({}, 10, 10, 1 << 20)) << "nothing is known";
  EXPECT_TRUE(bringing_pays({.read_seconds_per_byte = 1}, 10, 10, 1 << 20));
  // 64 rows of 1 ms against 1 MiB from the disk at 50 MB/s (21 ms), and at 10 MB/s (105 ms).
  PageRates rates{.read_seconds_per_byte = 1 / 50e6, .compute_seconds_per_row = 1e-3};
  EXPECT_TRUE(bringing_pays(rates, 10, 10, 1 << 20));
  rates.read_seconds_per_byte = 1 / 10e6;
  EXPECT_FALSE(bringing_pays(rates, 10, 10, 1 << 20));
  EXPECT_TRUE(bringing_pays(rates, 10, 6, 1 << 20)) << "the others are in memory";
  rates.copy_seconds_per_byte = 1 / 40e6;
  EXPECT_FALSE(bringing_pays(rates, 10, 6, 1 << 20)) << "and have to get to the device";
  EXPECT_TRUE(bringing_pays(rates, 10, 0, 1 << 20));
}

enum class On : uint8_t { Ref, Cpu, Places };

/// A program with two paged caches and a state, or the bundled model; on a backend, with a store.
struct Server {
  const bool states;
  const test::TwoCaches toy{5};
  std::optional<model::Model> model;
  text::Tokenizer tokenizer = test::byte_tokenizer();
  std::unique_ptr<program::Backend> backend;
  EngineOptions options;
  std::unique_ptr<program::Executable> executable;
  std::unique_ptr<store::PageStore> store;
  std::unique_ptr<Batcher> batcher;
  RequestId last_id = 0;

  Server(On on, bool with_states, const EngineOptions& given, quant::Type cache = quant::Type::F16)
      : states(with_states), options(given) {
    if (on == On::Ref) backend = backend::make_ref_backend();
    if (on == On::Cpu) backend = backend::make_cpu_backend({.threads = 1});
    if (on == On::Places)
      backend = backend::make_places_backend(
          {{backend::make_cpu_backend({.threads = 1}), 1}, {backend::make_cpu_backend({.threads = 1}), 1}});
    if (!states) model = model::Model::load(SLUICE_SOURCE_DIR "/models/fairy-tales.gguf", cache);
    if (!states) tokenizer = model::load_tokenizer(model->file);
    const program::CompileOptions compile{.max_rows = options.max_rows,
                                          .max_outputs = options.outputs(),
                                          .cache_pages = options.pages,
                                          .batch_invariant = true,
                                          .state_slots = options.state_slots};
    executable = states ? backend->compile(toy.program, toy.weights(), compile)
                        : backend->compile(model->program, model->weights, compile);
  }
  /// Pages go to so much memory, and to a folder if there is one.
  void open_store(int64_t ram_pages, const std::optional<std::filesystem::path>& folder,
                  const std::string& identity = "model") {
    program::PageCopier& copier = *executable->copier();
    store::StoreOptions to;
    to.identity = identity + copier.format();
    to.slot_bytes = std::max(copier.bytes(Kept::Page), copier.bytes(Kept::State));
    to.ram_bytes = ram_pages * to.slot_bytes;
    if (folder) to.disk = store::FolderOptions{.path = *folder, .least_free_bytes = 0};
    to.memory = [&copier](int64_t bytes) { return copier.memory(bytes); };
    store = std::make_unique<store::PageStore>(to);
    // A thread gets its memory, and before that nothing is kept.
    std::optional<store::PageStore::Slot> slot;
    while (!(slot = store->begin(store::root_key("probe"))))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    store->give_up(*slot);
  }
  /// Begins with nothing on the device.
  void start() {
    batcher.reset();
    batcher = std::make_unique<Batcher>(*executable, tokenizer, options, store.get());
  }
  void run() {
    do {
      batcher->scheduler().check();
    } while (batcher->step() || batcher->moves_pages());
    batcher->scheduler().check();
  }
  std::shared_ptr<Recorder> add(const Tokens& prompt, int64_t answer, uint64_t group = 0) {
    Request request{.prompt = prompt, .max_tokens = answer, .ignore_end = true, .group = {group, group}};
    request.sampling.temperature = 0;
    auto listener = std::make_shared<Recorder>();
    batcher->add(++last_id, std::move(request), listener, now_ns());
    return listener;
  }
  std::shared_ptr<Recorder> answer(const Tokens& prompt, int64_t tokens, uint64_t group = 0) {
    auto listener = add(prompt, tokens, group);
    run();
    return listener;
  }
};

EngineOptions options(int64_t pages, int32_t sequences = 1) {
  return {.context = kContext,
          .max_sequences = sequences,
          .max_rows = 64,
          .pages = pages,
          .state_slots = 8 * sequences,
          .timeless = true};
}

Tokens prompt_of(uint32_t seed, int64_t count) {
  std::mt19937 random(seed);
  Tokens tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

struct Where {
  On on;
  bool states;
  quant::Type cache = quant::Type::F16;
};

class PageKeeperOn : public testing::TestWithParam<Where> {
 protected:
  Server make(int64_t pages, int32_t sequences = 1) const {
    return {GetParam().on, GetParam().states, options(pages, sequences), GetParam().cache};
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, PageKeeperOn,
                         testing::Values(Where{On::Ref, true}, Where{On::Cpu, true}, Where{On::Cpu, false},
                                         Where{On::Cpu, false, quant::Type::Q8_0}, Where{On::Places, false}),
                         [](const auto& given) {
                           const Where& where = given.param;
                           const std::string on = where.on == On::Ref   ? "Ref"
                                                  : where.on == On::Cpu ? "Cpu"
                                                                        : "Places";
                           return on + (where.states ? "States" : "Bundled") +
                                  (where.cache == quant::Type::Q8_0 ? "Q8" : "");
                         });

TEST_P(PageKeeperOn, AnswersAfterARestartAreTheSame) {
  const OwnFolder own;
  Server server = make(8);
  server.start();
  std::map<uint32_t, Tokens> expected;
  for (const uint32_t seed : {1u, 2u}) expected[seed] = server.answer(prompt_of(seed, 300), 40)->tokens;
  server.open_store(0, own.path());
  server.start();
  for (const uint32_t seed : {1u, 2u})
    EXPECT_EQ(server.answer(prompt_of(seed, 300), 40)->tokens, expected[seed]);
  server.batcher.reset(), server.store.reset();
  EXPECT_GE(test::page_files(own.path()).size(), 10u);

  server.open_store(0, own.path());
  server.start();
  for (const uint32_t seed : {1u, 2u}) {
    const auto again = server.answer(prompt_of(seed, 300), 40);
    EXPECT_EQ(again->tokens, expected[seed]);
    EXPECT_EQ(again->result.cached_tokens, 256) << "of 300 tokens all whole pages";
  }
  EngineStats stats;
  server.batcher->snapshot(stats);
  EXPECT_TRUE(stats.has_store);
  EXPECT_EQ(stats.brought_pages_total, 8);
}

TEST_P(PageKeeperOn, AnAnswersPagesAreFoundByTheNextTurn) {
  const OwnFolder own;
  Server server = make(8);
  server.open_store(0, own.path());
  server.start();
  Tokens turn = prompt_of(1, 100);
  const Tokens answer = server.answer(turn, 200)->tokens;
  turn.insert(turn.end(), answer.begin(), answer.end());
  server.batcher.reset(), server.store.reset();
  server.open_store(0, own.path());
  server.start();
  const Tokens next = server.answer(turn, 5)->tokens;
  // Of an answer whose state is in single snapshots, whose last row is of the last whole page.
  EXPECT_GE(server.batcher->scheduler().cache().cached_pages(), 4);
  server.store->clear();
  server.start();
  const auto anew = server.answer(turn, 5);
  EXPECT_EQ(anew->result.cached_tokens, 0);
  EXPECT_EQ(next, anew->tokens);
}

TEST_P(PageKeeperOn, PagesThatLeaveTheDeviceGoToMemory) {
  Server server = make(8);
  server.open_store(64, {});
  server.start();
  std::map<uint32_t, Tokens> expected;
  for (uint32_t seed = 0; seed < 5; ++seed) expected[seed] = server.answer(prompt_of(seed, 300), 10)->tokens;
  EXPECT_EQ(server.store->stats().disk_pages, 0);
  EXPECT_GT(server.store->stats().ram_pages, 12) << "5 prompts of 4 pages, of which the device has 8";
  for (uint32_t seed = 0; seed < 5; ++seed) {
    const auto again = server.answer(prompt_of(seed, 300), 10);
    EXPECT_EQ(again->tokens, expected[seed]) << seed;
    EXPECT_EQ(again->result.cached_tokens, 256) << seed;
  }
}

// Pages that the device has, and a state that it had to give up: the state alone comes back.
TEST(PageKeeper, ASnapshotComesBackToPagesThatAreThere) {
  for (const bool disk : {false, true}) {
    const OwnFolder own;
    EngineOptions few = options(60);
    few.state_slots = 4;
    Server server(On::Cpu, true, few);
    const auto read_others = [&] {
      for (uint32_t seed = 2; seed < 6; ++seed) server.answer(prompt_of(seed, 300), 10);
    };
    server.start();
    const Tokens expected = server.answer(prompt_of(1, 300), 10)->tokens;
    read_others();
    EXPECT_EQ(server.answer(prompt_of(1, 300), 10)->result.cached_tokens, 0) << "there is no store";
    server.open_store(disk ? 0 : 64, disk ? std::optional(own.path()) : std::nullopt);
    server.start();
    server.answer(prompt_of(1, 300), 10);
    read_others();
    const auto again = server.answer(prompt_of(1, 300), 10);
    EXPECT_EQ(again->tokens, expected);
    EXPECT_EQ(again->result.cached_tokens, 256);
    EngineStats stats;
    server.batcher->snapshot(stats);
    EXPECT_EQ(stats.brought_pages_total, 0) << "all pages were there";
  }
}

// Several sequences at once, more than there is room for, that begin alike or not, and some of which go.
TEST_P(PageKeeperOn, ManySequencesAreAsGoodAsAlone) {
  const int rounds = GetParam().states ? 12 : 2;  // the bundled model takes its time
  const OwnFolder own;
  std::map<uint32_t, Tokens> expected;
  Server server = make(20, 4);
  const auto prompt = [](uint32_t which) {
    Tokens tokens = prompt_of(which % 3, 200);
    const Tokens rest = prompt_of(100 + which, 20 + 13 * (which % 9));
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  };
  for (uint32_t which = 0; which < 12; ++which) {
    server.start();
    expected[which] = server.answer(prompt(which), 30)->tokens;
  }
  std::mt19937 random(3);
  for (int round = 0; round < rounds; ++round) {
    server.batcher.reset(), server.store.reset();
    server.open_store(round % 3 == 0 ? 64 : 0, round % 3 == 0 ? std::nullopt : std::optional(own.path()));
    server.start();
    std::map<uint32_t, std::shared_ptr<Recorder>> heard;
    for (int i = 0; i < 24; ++i) {
      const uint32_t which = random() % 12;
      const auto listener = server.add(prompt(which), 30);
      const RequestId id = server.last_id;
      for (uint32_t steps = random() % 8; steps > 0; --steps) {
        server.batcher->step();
        server.batcher->scheduler().check();
      }
      if (random() % 5 == 0) {
        server.batcher->cancel(id);
      } else {
        heard[which] = listener;
      }
      if (random() % 40 == 0) server.batcher->clear_cache();
      server.batcher->scheduler().check();
    }
    server.run();
    for (const auto& [which, listener] : heard) EXPECT_EQ(listener->tokens, expected[which]) << which;
  }
}

TEST(PageKeeper, GroupsAndModelsHaveTheirOwnPages) {
  const OwnFolder own;
  Server server(On::Cpu, false, options(8));
  const auto restart = [&](const std::string& identity) {
    server.batcher.reset(), server.store.reset();
    server.open_store(0, own.path(), identity);
    server.start();
  };
  restart("model");
  server.answer(prompt_of(1, 200), 2, 7);
  restart("model");
  EXPECT_EQ(server.answer(prompt_of(1, 200), 2, 8)->result.cached_tokens, 0) << "another one's";
  restart("model");
  EXPECT_EQ(server.answer(prompt_of(1, 200), 2, 7)->result.cached_tokens, 192);
  restart("other model");
  EXPECT_EQ(server.answer(prompt_of(1, 200), 2, 7)->result.cached_tokens, 0);
  restart("model");
  server.batcher->clear_cache();
  EXPECT_EQ(server.answer(prompt_of(1, 200), 2, 7)->result.cached_tokens, 0);
}

// Who shares most of a last page that nobody uses goes on in it: what the page was is kept before.
TEST(PageKeeper, AWholePageThatIsWrittenToIsKeptAsItWas) {
  const Tokens first = prompt_of(1, 128);
  Tokens other(first.begin(), first.begin() + 98), next = first;  // 34 of the last page's 64
  const Tokens more = prompt_of(2, 20);
  other.insert(other.end(), more.begin(), more.end());
  next.insert(next.end(), more.begin(), more.end());
  for (const bool disk : {false, true}) {
    const OwnFolder own;
    Server server(On::Cpu, false, options(8));
    server.start();
    const Tokens expected = server.answer(next, 30)->tokens;
    server.open_store(64, disk ? std::optional(own.path()) : std::nullopt);
    server.start();
    server.answer(first, 1);
    EXPECT_EQ(server.answer(other, 3)->result.cached_tokens, 98);
    for (const uint32_t seed : {3u, 4u}) server.answer(prompt_of(seed, 400), 1);  // take its place
    const auto again = server.answer(next, 30);
    EXPECT_EQ(again->tokens, expected) << disk;
    EXPECT_EQ(again->result.cached_tokens, 128) << disk;
  }
}

TEST(PageKeeper, DamagedPagesAreComputedAnew) {
  const OwnFolder own;
  Server server(On::Cpu, false, options(8));
  server.start();
  const Tokens expected = server.answer(prompt_of(1, 400), 20)->tokens;
  for (size_t which = 0; which < 6; ++which) {
    std::filesystem::remove_all(own.path());
    server.open_store(0, own.path());
    server.start();
    server.answer(prompt_of(1, 400), 1);
    server.batcher.reset(), server.store.reset();
    // The file of page `which`.
    program::PageCopier& copier = *server.executable->copier();
    store::PageKey key = store::root_key("model" + copier.format());
    const Tokens prompt = prompt_of(1, 400);
    for (size_t page = 0; page <= which; ++page)
      key = store::page_key(key, 0, std::span(prompt).subspan(page * kPageRows, kPageRows));
    for (const auto& file : test::page_files(own.path()))
      if (file.filename() == key.hex()) std::filesystem::resize_file(file, 1000);
    server.open_store(0, own.path());
    server.start();
    const auto again = server.answer(prompt_of(1, 400), 20);
    EXPECT_EQ(again->tokens, expected);
    EXPECT_EQ(again->result.cached_tokens, static_cast<int64_t>(which) * kPageRows);
    EXPECT_EQ(server.store->stats().damaged_total, 1);
    server.batcher.reset(), server.store.reset();
  }
}

TEST(PageKeeper, AnEngineWritesBehindAndReadsAhead) {
  const OwnFolder own;
  Server server(On::Cpu, false, options(8));
  server.open_store(0, own.path());
  const auto ask = [&](Engine& engine) {
    Request request{.prompt = prompt_of(1, 300), .max_tokens = 10, .ignore_end = true};
    request.sampling.temperature = 0;
    auto listener = std::make_shared<Recorder>();
    engine.submit(std::move(request), listener);
    listener->wait();
    return listener;
  };
  Tokens expected;
  {
    Engine engine(*server.executable, server.tokenizer, server.options, server.store.get());
    expected = ask(engine)->tokens;
    const int64_t end = now_ns();
    while (engine.stats().store.disk_pages < 4 && now_ns() - end < 10'000'000'000)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(server.store->stats().disk_pages, 4) << "though nobody asks for anything more";
    EXPECT_LT(now_ns() - end, 1'000'000'000);
  }
  {
    Engine engine(*server.executable, server.tokenizer, server.options, server.store.get());
    const auto again = ask(engine);
    EXPECT_EQ(again->tokens, expected);
    EXPECT_EQ(again->result.cached_tokens, 256);
    std::atomic<bool> done = false;
    engine.clear_cache([&] { done = true; });
    while (!done) std::this_thread::yield();
    EXPECT_EQ(ask(engine)->result.cached_tokens, 0);
  }
}

}  // namespace
}  // namespace sluice::engine
