#include "text/thinking_budget.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "text/stream.h"
#include "text/tokenizer.h"

namespace sluice::text {
namespace {

class ThinkingLimit : public TokenConstraint {
 public:
  ThinkingLimit(int64_t tokens, const Tokenizer& tokenizer, const OutputFormat& format, bool thinking,
                std::unique_ptr<TokenConstraint> rest)
      : tokenizer_(&tokenizer),
        close_(tokenizer.encode(std::string(format.think_close) + std::string(format.answer_open), true)),
        left_(tokens),
        state_(thinking ? State::Thinking : State::Opening),
        open_(format.think_open),
        ends_(ends_of(format)),
        rest_(std::move(rest)) {}

  ThinkingLimit(const ThinkingLimit& other)
      : TokenConstraint(other),
        tokenizer_(other.tokenizer_),
        close_(other.close_),
        left_(other.left_),
        closed_(other.closed_),
        state_(other.state_),
        opening_(other.opening_),
        open_(other.open_),
        ends_(other.ends_),
        characters_(other.characters_),
        rest_(other.rest_ ? other.rest_->clone() : nullptr) {}

  bool allowed(std::span<uint32_t> bits) override {
    if (!closes()) return rest_ && rest_->allowed(bits);
    const auto next = static_cast<size_t>(close_[closed_]);
    std::ranges::fill(bits, 0);
    bits[next / 32] = 1u << (next % 32);
    return true;
  }

  bool accept(int32_t token) override {
    const bool closing = closes();
    if (closing && token != close_[closed_]) return false;
    if (rest_ && !rest_->accept(token)) return false;
    if (state_ == State::Over) return true;
    const std::string_view bytes = tokenizer_->bytes(token, true);
    if (state_ == State::Opening) {
      open(bytes);
      return true;
    }
    if (closing)
      ++closed_;
    else
      --left_;
    characters_.push(bytes);
    ends_.push(bytes);
    // The closing tag ends reasoning, and where something comes behind it, that.
    if (ends_.stopped() && (closed_ == 0 || closed_ == close_.size())) state_ = State::Over;
    return true;
  }

  bool may_end() const override { return !rest_ || rest_->may_end(); }
  std::unique_ptr<TokenConstraint> clone() const override { return std::make_unique<ThinkingLimit>(*this); }

 private:
  enum class State { Opening, Thinking, Over };

  static std::vector<std::string> ends_of(const OutputFormat& format) {
    std::vector<std::string> ends = {std::string(format.think_close)};
    if (!format.call_open.empty()) ends.emplace_back(format.call_open);
    return ends;
  }

  /// Whether the closing tag is due, and nothing must be finished first.
  bool closes() const {
    if (state_ != State::Thinking || (left_ > 0 && closed_ == 0) || closed_ == close_.size() ||
        characters_.unfinished())
      return false;
    return !rest_ || rest_->clone()->accept(close_[closed_]);
  }

  /// The answer's first bytes: reasoning begins with its tag, or there is none.
  void open(std::string_view bytes) {
    opening_ += bytes;
    opening_.erase(0, std::min(opening_.find_first_not_of(" \n\r\t"), opening_.size()));
    if (opening_.starts_with(open_))
      state_ = State::Thinking;
    else if (!open_.starts_with(opening_))
      state_ = State::Over;
  }

  const Tokenizer* tokenizer_;
  std::vector<int32_t> close_;  ///< the closing tag
  int64_t left_;                ///< tokens of reasoning that may still come
  size_t closed_ = 0;           ///< how much of the closing tag was imposed
  State state_;
  std::string opening_;
  std::string_view open_;  ///< the tag with which reasoning begins
  StopStream ends_;        ///< of the reasoning: a call ends it too
  Utf8Stream characters_;  ///< of the reasoning
  std::unique_ptr<TokenConstraint> rest_;
};

}  // namespace

std::unique_ptr<TokenConstraint> limit_thinking(int64_t tokens, const Tokenizer& tokenizer,
                                                const OutputFormat& format, bool starts_in_thinking,
                                                std::unique_ptr<TokenConstraint> rest) {
  return std::make_unique<ThinkingLimit>(tokens, tokenizer, format, starts_in_thinking, std::move(rest));
}

}  // namespace sluice::text
