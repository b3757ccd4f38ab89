// JSON from outside whose numbers keep their digits. A number that neither an integer of 64 bits nor a double
// holds (18446744073709551616, 1e400, 0.1 with thirty digits) stands in a value as its text, and is written
// as it came. Half a surrogate pair, which JavaScript writes where it cuts a text, becomes U+FFFD. Knows JSON
// only.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::text {

/// Tells `events` what stands in a JSON text, one thing after the other; whether that was all of it. Now and
/// then it looks whether anybody still waits (base/interruption.h).
bool read_json(std::string_view text, nlohmann::json_sax<nlohmann::ordered_json>& events);

/// The value of a JSON text as nlohmann makes it. Throws what nlohmann's parser throws. Who calls that
/// instead has one compiled for himself, which takes a second.
nlohmann::ordered_json parse_plain(std::string_view text);

/// A text that is to be JSON, mended so that nlohmann's parser can read it.
class ExactJson {
 public:
  /// `text` outlives it.
  explicit ExactJson(std::string_view text);
  /// For a check before values are made; offsets may differ from the original's behind long numbers.
  std::string_view text() const { return mended_ ? std::string_view(*mended_) : original_; }
  /// Throws what nlohmann's parser throws.
  nlohmann::ordered_json value() const;

 private:
  std::string_view original_;
  std::optional<std::string> mended_;  ///< where something had to be mended
  bool has_numbers_ = false;           ///< some stand there as marked strings
};

/// The value of a JSON text. Throws what nlohmann's parser throws.
nlohmann::ordered_json parse_exact(std::string_view text);

/// The digits of a number that is kept as text; nothing: any other value.
std::optional<std::string_view> number_text(const nlohmann::ordered_json& value);

/// The value with numbers that every reader knows: those kept as text become the nearest double.
nlohmann::ordered_json with_nearest_numbers(nlohmann::ordered_json value);

/// As JSON text: compact, or with spaces behind commas and colons, as Python writes it. What is not UTF-8
/// becomes U+FFFD.
std::string dump_exact(const nlohmann::ordered_json& value, bool spaced = false);

}  // namespace sluice::text
