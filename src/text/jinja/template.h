// Chat templates: parse once, render often. The Jinja language as Hugging Face transformers runs it.
// Knows nothing of models or messages: variables go in, text comes out. A template is a stranger's program:
// whatever it does, it ends in text or in a TemplateError, within the limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sluice::text::jinja {

/// What one rendering may use.
struct Limits {
#ifdef SLUICE_SANITIZED
  static constexpr double kMostSeconds = 60;
#else
  static constexpr double kMostSeconds = 5;
#endif
  int64_t steps = 50'000'000;               ///< evaluated nodes, list items passed, and 64 bytes of text each
  double seconds = kMostSeconds;            ///< of the thread's processor time
  int depth = 1000;                         ///< nested evaluations; a macro call is some ten of them
  size_t output_bytes = size_t{64} << 20;   ///< of the rendered text
  size_t memory_bytes = size_t{512} << 20;  ///< of all values alive at once
};

/// The local time that strftime_now() formats.
std::tm local_time();

struct RenderOptions {
  Limits limits;
  std::function<std::tm()> clock = local_time;
};

/// A template that cannot be parsed, or that failed: what() is "line N: MESSAGE".
class TemplateError : public Error {
 public:
  TemplateError(int line, const std::string& message, bool raised);
  /// 1 is the first line of the template.
  int line() const { return line_; }
  /// Without the line; exactly the template's own words if it called raise_exception.
  const std::string& message() const { return message_; }
  /// The template called raise_exception: it refuses this conversation.
  bool raised() const { return raised_; }

 private:
  int line_;
  std::string message_;
  bool raised_;
};

/// A parsed template. Immutable: threads may render one at the same time.
class Template {
 public:
  /// Templates of real models have some 20 KB at most.
  static constexpr size_t kMaxSourceBytes = size_t{1} << 20;

  /// Throws TemplateError that names the line.
  static Template parse(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  /// The text for these variables (an object; null becomes none, key order is kept).
  /// Throws TemplateError: the template's own failure, or a limit that it reached.
  std::string render(const nlohmann::ordered_json& variables, const RenderOptions& options = {}) const;

 private:
  struct Impl;
  explicit Template(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace sluice::text::jinja
