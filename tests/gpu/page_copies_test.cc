// Pages of the device's caches in the host's memory, and an engine whose pages leave the device and come
// back.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "store/page_store.h"
#include "support/cuda.h"
#include "support/golden.h"
#include "support/recorder.h"

namespace sluice::test {
namespace {

using namespace program;

class CudaPageCopies : public testing::TestWithParam<quant::Type> {};
INSTANTIATE_TEST_SUITE_P(Caches, CudaPageCopies, testing::Values(quant::Type::F16, quant::Type::Q8_0),
                         [](const auto& type) { return quant::type_info(type.param).name; });

TEST_P(CudaPageCopies, GiveWhatWasWritten) {
  CUDA_OR_SKIP(cuda);
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"), GetParam());
  const auto executable = cuda.compile(model.program, model.weights, {.max_rows = 8, .cache_pages = 40});
  PageCopier& copier = *executable->copier();
  const auto bytes = static_cast<size_t>(copier.bytes(Kept::Page));
  EXPECT_EQ(copier.bytes(Kept::Page), cache_bytes(model.program, {.pages = 1}));
  EXPECT_EQ(copier.bytes(Kept::State), 0);
  const auto memory = copier.memory(static_cast<int64_t>(80 * bytes));
  std::mt19937 random(1);
  std::generate_n(memory.get(), 40 * bytes, [&] { return static_cast<std::byte>(random()); });
  CopyTicket last{};
  for (int page = 0; page < 40; ++page)
    last = copier.begin_write(Kept::Page, page, memory.get() + static_cast<size_t>(page) * bytes);
  for (int page = 39; page >= 0; --page)
    last = copier.begin_read(Kept::Page, page, memory.get() + static_cast<size_t>(40 + page) * bytes);
  copier.wait(last);
  EXPECT_TRUE(copier.ended(last));
  EXPECT_TRUE(std::equal(memory.get(), memory.get() + 40 * bytes, memory.get() + 40 * bytes));
}

TEST_P(CudaPageCopies, AnswersAreTheSameWhereverTheirPagesWere) {
  CUDA_OR_SKIP(cuda);
  const model::Model model = model::Model::load(source_path("models/fairy-tales.gguf"), GetParam());
  const text::Tokenizer tokenizer = model::load_tokenizer(model.file);
  engine::EngineOptions options;
  options.context = 512, options.max_sequences = 4, options.max_rows = 64, options.draft_tokens = 0;
  options.pages = engine::KvPool::pages_for(2 * options.context);
  const auto executable = cuda.compile(model.program, model.weights,
                                       {.max_rows = options.max_rows,
                                        .max_outputs = options.outputs(),
                                        .cache_pages = options.pages,
                                        .batch_invariant = true,
                                        .context = options.context});
  PageCopier& copier = *executable->copier();
  store::StoreOptions to;
  to.identity = copier.format();
  to.slot_bytes = copier.bytes(Kept::Page);
  to.ram_bytes = 200 * to.slot_bytes;
  to.memory = [&copier](int64_t size) { return copier.memory(size); };
  store::PageStore store(to);
  const auto ask = [&](store::PageStore* kept, int64_t& cached) {
    engine::Engine engine(*executable, tokenizer, options, kept);
    std::vector<std::vector<int32_t>> said;
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<Recorder>> answers;
      for (int i = 0; i < 12; ++i) {
        engine::Request request{.prompt = {}, .max_tokens = 70, .ignore_end = true};
        request.sampling.temperature = 0;
        for (int n = 0; n < 200 + i * 5; ++n) request.prompt.push_back(300 + (i * 7 + n * n) % 900);
        answers.push_back(std::make_shared<Recorder>());
        engine.submit(std::move(request), answers.back());
      }
      for (const auto& answer : answers) {
        cached += answer->wait().cached_tokens;
        said.push_back(answer->tokens);
      }
    }
    return said;
  };
  int64_t without = 0, with = 0;
  const auto plain = ask(nullptr, without);
  EXPECT_EQ(ask(&store, with), plain);
  EXPECT_GT(with, without) << "the second round found what had left the device";
  int64_t again = 0;
  EXPECT_EQ(ask(&store, again), plain);
  EXPECT_GT(again, with) << "and the next engine's first one, too";
  EXPECT_GT(store.stats().kept_total, 12 * 3);
}

}  // namespace
}  // namespace sluice::test
