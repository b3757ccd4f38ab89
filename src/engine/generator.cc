#include "engine/generator.h"

#include <memory>

#include "base/clock.h"

namespace sluice::engine {

namespace {

/// Hands text on and keeps the result.
struct Reader : Listener {
  const std::function<bool(std::string_view)>& on_text;
  const std::function<void(int64_t, int64_t)>& on_read;
  bool cancelled = false, ended = false;
  Result result;

  Reader(const std::function<bool(std::string_view)>& text, const std::function<void(int64_t, int64_t)>& read)
      : on_text(text), on_read(read) {}
  void on_prompt(RequestId, int64_t done, int64_t total) override {
    if (on_read) on_read(done, total);
  }
  void on_token(const TokenEvent& event) override {
    if (!cancelled) cancelled = !on_text(event.text);  // a step may draw several tokens
  }
  void on_end(RequestId, std::string_view text, const Result& how) override {
    ended = true;
    result = how;
    if (!text.empty() && !cancelled) on_text(text);
  }
};

}  // namespace

Generator::Generator(program::Executable& executable, const text::Tokenizer& tokenizer, int64_t context,
                     int64_t max_rows, int64_t shallow_rows, int64_t draft_tokens,
                     program::Executable* predictor, bool look_up, bool timeless)
    : context_(context),
      batcher_(executable, tokenizer,
               {.context = context,
                .max_sequences = 1,
                .max_rows = max_rows,
                .shallow_rows = shallow_rows,
                .pages = KvPool::pages_for(context),
                .max_waiting = 1,
                .draft_tokens = draft_tokens,
                .look_up = look_up,
                .predictor = predictor,
                .timeless = timeless}) {}

Result Generator::run(const Request& request, const std::function<bool(std::string_view)>& on_text,
                      const std::atomic<bool>* cancel,
                      const std::function<void(int64_t, int64_t)>& on_prompt) {
  batcher_.validate(request);
  const auto reader = std::make_shared<Reader>(on_text, on_prompt);
  const RequestId id = ++last_id_;
  try {
    batcher_.add(id, request, reader, now_ns());
    while (!reader->ended) {
      batcher_.step(cancel);
      if (reader->cancelled || (cancel != nullptr && cancel->load())) batcher_.cancel(id);
    }
  } catch (...) {  // what the reader throws: nothing of the request may be left
    batcher_.cancel(id);
    throw;
  }
  if (reader->result.finish == Finish::Error) throw Error(reader->result.error);
  return reader->result;
}

}  // namespace sluice::engine
