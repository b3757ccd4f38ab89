#include "backend/places/places_executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "backend/places/expert_slots.h"
#include "backend/places/places_backend.h"
#include "base/check.h"
#include "base/clock.h"
#include "program/op_info.h"

namespace sluice::backend::places {

using namespace program;  // the waist is this room's whole vocabulary

/// By whom the ops of a program that was cut are run: places have bindings of their own.
std::vector<BoundKernel> kernels_of(const Program& program) {
  std::vector<BoundKernel> list;
  for (const Op& op : program.ops()) {
    list.push_back(info(op).across_places
                       ? BoundKernel{"exchange", "src/backend/places/exchange.cc", 1}
                       : BoundKernel{fmt::format("place {}", op.place), __FILE__, __LINE__});
  }
  return list;
}

namespace {

/// Copies what every place keeps, one behind the other. Each place's copies have the same numbers: it makes
/// one for each of these.
class PlacesCopier : public PageCopier {
 public:
  explicit PlacesCopier(const Executables& executables) {
    for (const auto& executable : executables) {
      if (executable == nullptr) continue;
      PageCopier* const copier = executable->copier();
      CHECK(copier != nullptr, "a place that copies no pages");
      places_.push_back(copier);
    }
  }
  int64_t bytes(Kept what) const override {
    int64_t bytes = 0;
    for (const PageCopier* place : places_) bytes += place->bytes(what);
    return bytes;
  }
  std::string format() const override {
    std::string text;
    for (const PageCopier* place : places_) text += (text.empty() ? "" : " + ") + place->format();
    return text;
  }
  std::shared_ptr<std::byte[]> memory(int64_t bytes) const override { return places_.front()->memory(bytes); }
  CopyTicket begin_read(Kept what, int32_t index, std::byte* to) override {
    CopyTicket last{};
    for (PageCopier* place : places_) last = place->begin_read(what, index, to), to += place->bytes(what);
    return last;
  }
  CopyTicket begin_write(Kept what, int32_t index, const std::byte* from) override {
    CopyTicket last{};
    for (PageCopier* place : places_)
      last = place->begin_write(what, index, from), from += place->bytes(what);
    return last;
  }
  bool ended(CopyTicket copy) override {
    return std::ranges::all_of(places_, [copy](PageCopier* place) { return place->ended(copy); });
  }
  void wait(CopyTicket copy) override {
    for (PageCopier* place : places_) place->wait(copy);
  }

 private:
  std::vector<PageCopier*> places_;
};

/// A step of so many rows at the beginning of a cache, of a program like this.
class TrialStep {
 public:
  TrialStep(const Program& program, int64_t rows)
      : want_{.logits = program.output() != kNoTensor},
        tokens_(static_cast<size_t>(rows), 0),
        places_(static_cast<size_t>(rows)),
        pages_(static_cast<size_t>((rows + kPageRows - 1) / kPageRows)) {
    for (size_t r = 0; r < places_.size(); ++r) places_[r] = static_cast<int32_t>(r);
    for (size_t p = 0; p < pages_.size(); ++p) pages_[p] = static_cast<int32_t>(p);
    // Different tokens, which select different experts.
    for (size_t r = 0; r < tokens_.size(); ++r) tokens_[r] = static_cast<int32_t>(r % kTokens);
    last_[0] = static_cast<int32_t>(rows - 1);
    // So do different numbers, where it begins with some.
    for (const TensorId id : inputs(program)) {
      std::vector<float>& values = begins_with_[id];
      values.resize(tokens_.size() * static_cast<size_t>(program[id].heads() * program[id].columns()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 251) / 125 - 1;
    }
  }
  /// How long it takes.
  TimedRows run(Executable& executable) const {
    for (const auto& [id, values] : begins_with_)
      executable.poke(id, static_cast<int64_t>(tokens_.size()), values);
    const int64_t begin = now_ns();
    run_step(executable, {.input = {.tokens = tokens_,
                                    .positions = places_,
                                    .sequences = sequences_,
                                    .slots = places_,
                                    .page_tables = pages_,
                                    .pages_per_sequence = static_cast<int32_t>(pages_.size()),
                                    .output_rows = last_,
                                    .states = states_},
                          .wants = std::span(&want_, 1)});
    return {static_cast<double>(tokens_.size()), 1e-9 * static_cast<double>(now_ns() - begin)};
  }

 private:
  static constexpr size_t kTokens = 256;  // every vocabulary has as many

  Want want_;
  std::map<TensorId, std::vector<float>> begins_with_;
  std::vector<int32_t> tokens_, places_, pages_;
  std::vector<int32_t> sequences_ = std::vector<int32_t>(tokens_.size(), 0);
  int32_t last_[1];
  StateSlots states_[1];
};

/// Runs the places in turn, each up to where it has to wait for others. All is done in submit().
class PlacesExecutable : public Executable, public ExpertCounts {
 public:
  PlacesExecutable(Sides sides, Executables executables, const CompileOptions& options, Streamed streamed,
                   std::shared_ptr<void> slots_owner)
      : program_(std::move(sides.whole)),
        executables_(std::move(executables)),
        copier_(executables_),
        streamed_(std::move(streamed.executable)),
        uncut_tensors_(streamed.tensors),
        exchange_(program_, options),
        next_part_(executables_.size()),
        slots_owner_(std::move(slots_owner)) {
    if (!sides.slotted.empty()) {
      slots_.emplace(std::move(sides.slotted), Source{program_, sides.weights}, *executables_.front(),
                     options.max_rows, slots_owner_ != nullptr);
      int64_t most = 0;
      for (const SlottedExperts& one : slots_->slotted())
        most = std::max(most, program_[one.sum].columns() * options.max_rows);
      zeros_.resize(static_cast<size_t>(most));
    }
    const Op* before = nullptr;
    for (const Op& op : program_.ops()) {
      if (info(op).across_places) {
        if (before != nullptr && together(*before, op)) {
          meetings_.back().ops.push_back(&op);
        } else {
          add_meeting(op);
        }
      }
      before = &op;
    }
    find_deals();
    if (gives_logits())
      logits_.resize(static_cast<size_t>(options.max_outputs * program_[program_.output()].columns()));
    outputs_.reserve(static_cast<size_t>(options.max_outputs));
    if (streamed_ == nullptr) return;
    if (slots_) slots_->lend_to(*streamed_);
    // What the smaller steps are made for is all that they can run.
    const int64_t most = options.max_rows + 1;
    const int64_t room = options.cache_pages * kPageRows;
    stream_rows_ =
        streamed.from_rows > 0
            ? std::min(streamed.from_rows, most)
            : measured_stream_rows(most, options.context > 0 ? std::min(room, options.context) : room);
  }

  Facts facts() const override { return {.stream_rows = streamed_ != nullptr ? stream_rows_ : 0}; }

  Ticket submit(const Step& step) override {
    result_ = {};
    is_unread_ = false;
    const Step rows{.input = step.input};
    was_streamed_ = streamed_ != nullptr && step.input.rows() >= stream_rows_;
    if (was_streamed_) {
      const std::span<const Want> wants = gives_logits() ? std::span<const Want>() : step.wants;
      result_ = run_step(*streamed_, {.input = step.input, .wants = wants, .stop = step.stop});
      if (slots_ && !result_.stopped) slots_->count_step(*streamed_, step.input.rows());
      return {};
    }
    std::ranges::fill(next_part_, 0);
    for (Meeting& meeting : meetings_) {
      if (step.stop != nullptr && step.stop->load(std::memory_order_relaxed)) {
        result_.stopped = true;
        return {};
      }
      run_up_to(meeting, rows);
      exchange(meeting, step.input);
    }
    for (size_t place = 0; place < executables_.size(); ++place) {
      if (executables_[place] != nullptr) run_next(place, rows);
    }
    is_unread_ = true;
    fetch_logits(step.input.outputs());
    return {};
  }
  StepResult collect(Ticket) override { return result_; }

  /// What was read has been waited for, and so has its step.
  void peek(TensorId id, int64_t rows, std::span<float> values) override {
    at(id).peek(id, rows, values);
    if (std::exchange(is_unread_, false) && slots_) slots_->end_step();
  }
  /// What a step of so many rows begins with lies where it will run.
  void poke(TensorId id, int64_t rows, std::span<const float> values) override {
    const bool streams = streamed_ != nullptr && rows >= stream_rows_;
    (streams ? *streamed_ : at_place(id)).poke(id, rows, values);
  }
  ExpertUse expert_use() const override { return slots_ ? slots_->use() : ExpertUse{}; }
  PageCopier* copier() override { return &copier_; }
  const Program& program() const override { return program_; }
  std::vector<BoundKernel> bound() const override { return kernels_of(program_); }
  int64_t memory_bytes() const override {
    int64_t bytes = exchange_.bytes() + static_cast<int64_t>(logits_.size() * sizeof(float));
    if (streamed_ != nullptr) bytes += streamed_->memory_bytes();
    for (const auto& executable : executables_)
      bytes += executable != nullptr ? executable->memory_bytes() : 0;
    return bytes;
  }

 private:
  /// An op across places, or copies behind each other, and the places that wait for each other there.
  struct Meeting {
    std::vector<const Op*> ops;
    std::set<size_t> places;
    /// Of a layer whose experts have slots: its selection goes to the second place, and is dealt out.
    std::optional<size_t> deals = {};
    /// The same layer's sum comes back from there, unless nothing was left to it.
    Meeting* selected = nullptr;
    bool has_misses = true;  ///< of one that deals, in this step
  };

  void add_meeting(const Op& op) {
    Meeting meeting{.ops = {&op}, .places = {}};
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      meeting.places.insert(static_cast<size_t>(program_[id].place));
    });
    meetings_.push_back(std::move(meeting));
  }
  /// Where selections of layers with slots go to the second place, and where their sums come back.
  void find_deals() {
    if (!slots_) return;
    const auto copy_of = [&](TensorId id) -> Meeting& {
      const auto is_it = [&](const Op* op) {
        const auto* copy = std::get_if<Copy>(&op->args);
        return copy != nullptr && copy->in.id == id;
      };
      const auto found = std::ranges::find_if(
          meetings_, [&](const Meeting& meeting) { return std::ranges::any_of(meeting.ops, is_it); });
      CHECK(found != meetings_.end(), "nothing copies {}", program_[id].name);
      return *found;
    };
    for (size_t l = 0; l < slots_->slotted().size(); ++l) {
      const SlottedExperts& one = slots_->slotted()[l];
      Meeting& deals = copy_of(one.ids);
      deals.deals = l;
      copy_of(one.there_sum).selected = &deals;
    }
  }
  /// Runs what is before a meeting at its places.
  void run_up_to(const Meeting& meeting, const Step& rows) {
    for (const size_t place : meeting.places) {
      const bool has_nothing = place > 0 && meeting.selected != nullptr && !meeting.selected->has_misses;
      if (has_nothing) {
        ++next_part_[place];
      } else {
        run_next(place, rows);
      }
      next_part_[place] += meeting.ops.size() - 1;  // between copies there is nothing
    }
  }
  void exchange(Meeting& meeting, const StepInput& input) {
    if (meeting.deals) {
      meeting.has_misses =
          slots_->deal(*meeting.deals, exchange_.read_copies(meeting.ops, input, executables_));
      if (meeting.has_misses) exchange_.write_copies(meeting.ops, executables_);
    } else if (meeting.selected != nullptr && !meeting.selected->has_misses) {
      const TensorId sum = slots_->slotted()[*meeting.selected->deals].sum;
      const auto count = static_cast<size_t>(input.rows() * program_[sum].columns());
      executables_.front()->poke(sum, input.rows(), std::span(zeros_).first(count));
    } else if (meeting.ops.size() > 1) {
      exchange_.run_copies(meeting.ops, input, executables_);
    } else {
      exchange_.run(*meeting.ops.front(), input, executables_);
    }
  }
  /// Whether both are copies from one place to another.
  bool together(const Op& before, const Op& op) const {
    const auto *a = std::get_if<Copy>(&before.args), *b = std::get_if<Copy>(&op.args);
    return a != nullptr && b != nullptr && program_[a->in.id].place == program_[b->in.id].place &&
           program_[a->out.id].place == program_[b->out.id].place;
  }

  /// Where the last step left it. What is there of several places alone, a streamed step does not have.
  Executable& at(TensorId id) {
    if (was_streamed_ && static_cast<size_t>(id) < uncut_tensors_) return *streamed_;
    return at_place(id);
  }
  Executable& at_place(TensorId id) { return *executables_[static_cast<size_t>(program_[id].place)]; }
  /// Otherwise another program has them, which begins with what this one leaves.
  bool gives_logits() const { return program_.output() != kNoTensor; }
  /// What steps of two sizes take over places, and one of the larger size by streaming; each once before, so
  /// that the file's pages and the graphs are there.
  int64_t measured_stream_rows(int64_t most, int64_t room) {
    const int64_t many = std::min({most - 1, room, int64_t{256}}), few = many / 8;
    if (few < 1) return most;
    stream_rows_ = most;
    const TrialStep small(streamed_->program(), few), large(streamed_->program(), many);
    const auto again = [](const TrialStep& step, Executable& executable) {
      const TimedRows first = step.run(executable), second = step.run(executable);
      return TimedRows{first.rows, std::min(first.seconds, second.seconds)};
    };
    const double seconds = again(large, *streamed_).seconds;
    return break_even_rows(again(small, *this), again(large, *this), seconds, most);
  }
  void run_next(size_t place, const Step& step) { executables_[place]->run_part(step, next_part_[place]++); }
  void fetch_logits(int64_t outputs) {
    if (!gives_logits()) return;
    const auto vocabulary = static_cast<size_t>(program_[program_.output()].columns());
    const std::span<float> logits = std::span(logits_).first(static_cast<size_t>(outputs) * vocabulary);
    if (outputs > 0) peek(program_.output(), outputs, logits);
    outputs_.clear();
    for (size_t i = 0; i < static_cast<size_t>(outputs); ++i)
      outputs_.push_back({.logits = logits.subspan(i * vocabulary, vocabulary)});
    result_.outputs = outputs_;
  }

  Program program_;
  Executables executables_;
  PlacesCopier copier_;
  std::unique_ptr<Executable> streamed_;  // after them, whose caches it has
  size_t uncut_tensors_ = 0;              // those that it knows by the same ids
  int64_t stream_rows_ = 0;
  bool was_streamed_ = false;  // the last step
  bool is_unread_ = false;     // the last step, which ran over places: it may still run
  Exchange exchange_;
  std::vector<Meeting> meetings_;
  std::vector<size_t> next_part_;      // by place
  std::shared_ptr<void> slots_owner_;  // while it lives, the slots are nobody else's; or null
  std::optional<ExpertSlots> slots_;   // after the executables, which it fills
  std::vector<float> zeros_;
  std::vector<float> logits_;
  std::vector<RowResult> outputs_;
  StepResult result_;
};

}  // namespace

std::unique_ptr<Executable> make_executable(Sides sides, Executables executables,
                                            const CompileOptions& options, Streamed streamed,
                                            std::shared_ptr<void> slots) {
  return std::make_unique<PlacesExecutable>(std::move(sides), std::move(executables), options,
                                            std::move(streamed), std::move(slots));
}

}  // namespace sluice::backend::places
