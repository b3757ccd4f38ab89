#include "cli/number_list.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/error.h"

namespace sluice::cli {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;
constexpr size_t kMostNumbers = 1000;

class Reader {
 public:
  Reader(const std::string& flag, const std::string& text, int64_t least)
      : flag_(flag), text_(text), left_(text), least_(least) {}

  std::vector<int64_t> read() {
    do item();
    while (take(','));
    if (!left_.empty()) wrong();
    return numbers_;
  }

 private:
  [[noreturn]] void wrong() const {
    throw UsageError(fmt::format(
        "{} {}: expected numbers from {} to 2^30 as \"1,2,4\", \"first-last\", \"first-last+step\" or "
        "\"first-last*factor\"",
        flag_, text_, least_));
  }

  bool take(char wanted) {
    if (left_.empty() || left_.front() != wanted) return false;
    left_.remove_prefix(1);
    return true;
  }

  int64_t number(int64_t least) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value);
    if (error != std::errc() || left_.front() == '-' || value < least || value > kLargest) wrong();
    left_.remove_prefix(static_cast<size_t>(end - left_.data()));
    return value;
  }

  void add(int64_t value) {
    if (numbers_.size() == kMostNumbers) {
      throw UsageError(fmt::format("{} {}: more than {} numbers", flag_, text_, kMostNumbers));
    }
    numbers_.push_back(value);
  }

  void item() {
    const int64_t first = number(least_);
    if (!take('-')) return add(first);
    const int64_t last = number(first);
    if (take('*')) {
      const int64_t factor = number(2);
      for (int64_t value = first; value <= last; value *= factor) {
        add(value);
        if (value == 0) break;  // all its multiples are 0
      }
      return;
    }
    const int64_t step = take('+') ? number(1) : 1;
    for (int64_t value = first; value <= last; value += step) add(value);
  }

  const std::string &flag_, &text_;
  std::string_view left_;
  int64_t least_;
  std::vector<int64_t> numbers_;
};

}  // namespace

std::vector<int64_t> number_list(const std::string& flag, const std::string& text, int64_t least) {
  return Reader(flag, text, least).read();
}

}  // namespace sluice::cli
