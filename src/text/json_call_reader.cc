// Calls whose arguments are a JSON object, alone behind the tool's name or in an object with it. Once the
// name and the arguments' brace are there a call is open, and arguments are handed on as they are written.
//
// Why failures cost linear time all the same: an opening tag inside a JSON object can only stand in a string.
// For the attempt that begins there the quotes change their meaning, so of all attempts that are alive at one
// byte, no two agree on whether it is in a string: there are at most two. A call that is open never goes
// back.
#include <algorithm>

#include "text/call_reader.h"
#include "text/json_stream.h"
#include "text/json_text.h"

namespace sluice::text {
namespace {

constexpr std::string_view kArgumentKeys[] = {"arguments", "parameters", "args", "input"};
// What else stands in a call that no tag announces.
constexpr std::string_view kOtherKeys[] = {"type", "id"};

template <size_t N>
bool is_one_of(std::string_view word, const std::string_view (&words)[N]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

/// Arguments that are no object as JSON has it: a string that holds one, or none at all.
std::string arguments_of(std::string_view value) {
  const std::string inside = value.starts_with('"') ? json_unquote(value) : std::string(value);
  const std::string_view json = trimmed(inside);
  if (json == "null" || json.empty()) return "{}";
  return json.front() == '{' && is_json(json) ? json_compact(json) : std::string();
}

class JsonReader : public CallReader {
 public:
  JsonReader(const OutputFormat& format, const ToolTypes& tools) : CallReader(format, tools) {}

  Status read(const TextWindow& text, size_t limit) override;
  bool finish(const TextWindow& text, size_t limit, bool turn_ended) override;

 private:
  enum class Phase : uint8_t {
    BeforeName,
    Name,
    Separator,
    Id,
    Body,
    FencedName,
    FenceOpen,
    Null,
    Value,   ///< the arguments alone
    Object,  ///< name and arguments in an object
    FenceClose,
    Close,
  };
  enum class Step : uint8_t { Again, More, Failed, Done };

  void restart() override;
  void take_name(std::string_view name) override {
    name_ = plain_name(name);
    phase_ = Phase::Body;
  }
  Step step(const TextWindow& text, size_t limit);
  Step read_name(const TextWindow& text, size_t limit, Phase next);
  Step read_tag(const TextWindow& text, size_t limit, std::string_view tag, Phase next);
  Step read_separator(const TextWindow& text, size_t limit);
  Step read_fence_open(const TextWindow& text, size_t limit);
  Step read_body(const TextWindow& text, size_t limit);
  Step read_value(const TextWindow& text, size_t limit);
  Step read_object(const TextWindow& text, size_t limit);
  Step read_close(const TextWindow& text, size_t limit);
  Step end_value();
  Step end_object();
  // Sees to what one byte of the object brought; false: this is no call.
  bool take_part(char byte, bool was_key, bool is_end);
  bool end_member();
  void open() { opened_ = opened_ || (rules_.opens && !name_.empty() && has_arguments_); }
  std::string_view plain_name(std::string_view written) const;

  Phase phase_ = Phase::BeforeName;
  bool older_ = false, fenced_ = false, in_list_ = false;
  bool has_arguments_ = false, arguments_end_ = false;
  size_t name_begin_ = 0;
  JsonStream json_;
  std::string part_;  ///< what the byte at hand brought
  std::string key_, value_;
  bool in_value_ = false, streams_ = false;
};

void JsonReader::restart() {
  phase_ = format_.separator.empty() ? Phase::Body : Phase::BeforeName;
  in_list_ = in_list_ && rules_.goes_on;
  older_ = fenced_ = has_arguments_ = arguments_end_ = in_value_ = streams_ = false;
  json_ = {};
  key_.clear();
  value_.clear();
}

CallReader::Status JsonReader::read(const TextWindow& text, size_t limit) {
  Step next = Step::Again;
  while (next == Step::Again) next = step(text, limit);
  if (next == Step::More) return Status::More;
  if (next == Step::Done) return Status::Done;
  if (!opened_) return Status::Failed;
  return arguments_end_ ? Status::Done : Status::Broken;
}

JsonReader::Step JsonReader::step(const TextWindow& text, size_t limit) {
  switch (phase_) {
    case Phase::BeforeName:
      if (!skip_space(text, limit)) return Step::More;
      name_begin_ = at_;
      phase_ = Phase::Name;
      return Step::Again;
    case Phase::Name: return read_name(text, limit, Phase::Separator);
    case Phase::Separator: return read_separator(text, limit);
    case Phase::Id:
      if (!pass_name(text, limit)) return Step::More;
      return read_tag(text, limit, format_.separator, Phase::Body);
    case Phase::Body: return read_body(text, limit);
    case Phase::FencedName: return read_name(text, limit, Phase::FenceOpen);
    case Phase::FenceOpen: return read_fence_open(text, limit);
    case Phase::Null: return read_tag(text, limit, "null", Phase::Close);
    case Phase::Value: return read_value(text, limit);
    case Phase::Object: return read_object(text, limit);
    case Phase::FenceClose: return read_tag(text, limit, "```", Phase::Close);
    case Phase::Close: return read_close(text, limit);
  }
  return Step::Failed;
}

JsonReader::Step JsonReader::read_name(const TextWindow& text, size_t limit, Phase next) {
  if (!pass_name(text, limit)) return Step::More;
  name_ = plain_name(text.view(name_begin_, at_));
  if (name_.empty()) return Step::Failed;
  phase_ = next;
  return Step::Again;
}

JsonReader::Step JsonReader::read_tag(const TextWindow& text, size_t limit, std::string_view tag,
                                      Phase next) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch match = pass_tag(text, limit, tag);
  if (match == TagMatch::Partial) return Step::More;
  if (match == TagMatch::None) return Step::Failed;
  phase_ = next;
  return Step::Again;
}

JsonReader::Step JsonReader::read_separator(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  if (!format_.id_tag.empty()) {
    const TagMatch id = pass_tag(text, limit, format_.id_tag);
    if (id == TagMatch::Partial) return Step::More;
    if (id == TagMatch::Full) {
      phase_ = Phase::Id;
      return Step::Again;
    }
  }
  if (text.at(at_) == '{' && format_.call_close.empty() && tools_.declares(name_)) {  // it lacks
    phase_ = Phase::Body;
    return Step::Again;
  }
  return read_tag(text, limit, format_.separator, Phase::Body);
}

// Models write a fence with and without the language, or none.
JsonReader::Step JsonReader::read_fence_open(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  if (text.at(at_) != '{') {
    TagMatch fence = pass_tag(text, limit, "```json");
    if (fence == TagMatch::None) fence = pass_tag(text, limit, "```");
    if (fence == TagMatch::Partial) return Step::More;
    if (fence == TagMatch::None) return Step::Failed;
    fenced_ = true;
  }
  phase_ = Phase::Body;
  return Step::Again;
}

// An object, or nothing where the name is known already, or the older form: name and fenced object.
JsonReader::Step JsonReader::read_body(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  const char first = text.at(at_);
  if (format_.separator.empty()) {
    if (first == '[' && !in_list_) {
      in_list_ = true;
      ++at_;
      return Step::Again;
    }
    phase_ = Phase::Object;
    return first == '{' ? Step::Again : Step::Failed;
  }
  const bool older =
      name_ == "function" && !older_ && std::string_view("{\"<`").find(first) == std::string_view::npos;
  if (older) {
    older_ = true;
    name_begin_ = at_;
    phase_ = Phase::FencedName;
    return Step::Again;
  }
  if (!is_welcome(name_)) return Step::Failed;
  if (first == '{' || first == '"') {
    has_arguments_ = first == '{';
    open();
    phase_ = Phase::Value;
    return Step::Again;
  }
  if (first == '`' && !fenced_) {
    phase_ = Phase::FenceOpen;
    return Step::Again;
  }
  if (fenced_ || (first != '<' && first != 'n')) return Step::Failed;
  arguments_ = "{}";
  phase_ = first == 'n' ? Phase::Null : Phase::Close;
  return Step::Again;
}

JsonReader::Step JsonReader::read_value(const TextWindow& text, size_t limit) {
  std::string& out = has_arguments_ ? arguments_ : value_;
  while (at_ < limit) {
    const JsonStream::Status status = json_.read(text.at(at_), out);
    if (status == JsonStream::Status::Failed) return Step::Failed;
    ++at_;
    if (status == JsonStream::Status::Done) return end_value();
  }
  return Step::More;
}

JsonReader::Step JsonReader::end_value() {
  if (!has_arguments_) arguments_ = arguments_of(value_);
  if (!has_arguments_ && arguments_.empty()) return Step::Failed;
  arguments_end_ = true;
  phase_ = fenced_ ? Phase::FenceClose : Phase::Close;
  return Step::Again;
}

JsonReader::Step JsonReader::read_object(const TextWindow& text, size_t limit) {
  while (at_ < limit) {
    const bool was_key = json_.at_key();
    part_.clear();
    const JsonStream::Status status = json_.read(text.at(at_), part_);
    const bool is_end = status == JsonStream::Status::Done;
    if (status == JsonStream::Status::Failed || !take_part(text.at(at_), was_key, is_end)) {
      // Behind whole arguments a brace may lack.
      if (!opened_ || !arguments_end_) return Step::Failed;
      phase_ = Phase::Close;
      return Step::Again;
    }
    ++at_;
    if (is_end) return end_object();
  }
  return Step::More;
}

bool JsonReader::take_part(char byte, bool was_key, bool is_end) {
  const bool is_outer = json_.depth() == 1;
  if (is_outer && json_.at_key()) {
    key_ += part_;
  } else if (is_outer && was_key) {  // the colon
    key_ = json_unquote(key_);
    in_value_ = true;
    const bool is_known = key_ == "name" || is_one_of(key_, kArgumentKeys) || is_one_of(key_, kOtherKeys);
    return is_known || !format_.call_open.empty();
  } else if (is_end || (is_outer && byte == ',' && !json_.in_string())) {
    part_.pop_back();
    value_ += part_;
    return end_member();
  } else if (in_value_) {
    if (value_.empty() && !streams_ && !has_arguments_ && part_ == "{" && is_one_of(key_, kArgumentKeys)) {
      streams_ = has_arguments_ = true;
      open();
    }
    (streams_ ? arguments_ : value_) += part_;
    if (streams_ && is_outer) {
      streams_ = false;
      arguments_end_ = true;
    }
  }
  return true;
}

bool JsonReader::end_member() {
  const std::string key = std::exchange(key_, {}), value = std::exchange(value_, {});
  if (!std::exchange(in_value_, false)) return true;
  if (key == "name" && value.starts_with('"') && !opened_) {
    name_ = json_unquote(value);
    if (!is_welcome(name_)) return false;
    open();
  }
  if (!has_arguments_ && !arguments_end_ && is_one_of(key, kArgumentKeys)) {
    arguments_ = arguments_of(value);
    arguments_end_ = true;
    return !arguments_.empty();
  }
  return true;
}

JsonReader::Step JsonReader::end_object() {
  if (name_.empty()) return Step::Failed;
  if (!arguments_end_) arguments_ = "{}";
  arguments_end_ = true;
  phase_ = Phase::Close;
  return Step::Again;
}

JsonReader::Step JsonReader::read_close(const TextWindow& text, size_t limit) {
  arguments_end_ = true;
  if (format_.call_close.empty() && !in_list_) return Step::Done;
  if (!skip_space(text, limit)) return Step::More;
  const char next = text.at(at_);
  if (in_list_) {
    if (next != ',' && next != ']') return Step::Failed;
    ++at_;
    more_ = next == ',';
    in_list_ = more_;
    return more_ ? Step::Done : Step::Again;
  }
  if (next == '}') {  // a brace too many
    ++at_;
    return Step::Again;
  }
  if (next == '{' && format_.separator.empty()) {
    more_ = true;
    return Step::Done;
  }
  const TagMatch close = pass_tag(text, limit, format_.call_close);
  if (close == TagMatch::Partial) return Step::More;
  return close == TagMatch::Full ? Step::Done : Step::Failed;
}

bool JsonReader::finish(const TextWindow& text, size_t, bool turn_ended) {
  if (phase_ == Phase::Name || phase_ == Phase::FencedName) {
    const std::string_view written = text.view(name_begin_, at_);
    name_ = format_.name_prefix.starts_with(written) ? std::string_view() : plain_name(written);
  }
  if (phase_ == Phase::Body && turn_ended && !format_.separator.empty() && tools_.declares(name_)) {
    arguments_ = "{}";
    return true;
  }
  const bool lacks_only_close = phase_ == Phase::FenceClose || phase_ == Phase::Close;
  return lacks_only_close || (turn_ended && opened_ && arguments_end_);
}

// A name is written with the prefix of the format and a number, or without one of them.
std::string_view JsonReader::plain_name(std::string_view written) const {
  if (format_.name_prefix.empty() || tools_.declares(written)) return written;
  if (written.starts_with(format_.name_prefix)) written.remove_prefix(format_.name_prefix.size());
  if (tools_.declares(written)) return written;
  const size_t last = written.find_last_not_of("0123456789");
  const bool numbered = last != std::string_view::npos && written[last] == ':';
  return numbered ? written.substr(0, last) : written;
}

}  // namespace

std::unique_ptr<CallReader> make_json_reader(const OutputFormat& format, const ToolTypes& tools) {
  return std::make_unique<JsonReader>(format, tools);
}

}  // namespace sluice::text
