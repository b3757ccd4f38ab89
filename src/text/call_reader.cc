// Why failures cost linear time all the same: after one, reading begins again behind the opening tag, so
// bytes may be read again by the next attempts. Tagged: how an attempt goes on from behind a closing tag
// depends on that place alone, so the places that an attempt has passed before it failed are remembered, and
// later attempts fail when they come to one. Json: an opening tag inside a JSON object can only stand in a
// string. For the attempt that begins there the quotes change their meaning, so of all attempts that are
// alive at one byte, no two agree on whether it is in a string: there are at most two.
#include "text/call_reader.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/json_text.h"

namespace sluice::text {

bool CallReader::skip_space(const TextWindow& text, size_t limit) {
  while (at_ < limit && is_space(text.at(at_))) ++at_;
  return at_ < limit;
}

TagMatch CallReader::pass_tag(const TextWindow& text, size_t limit, std::string_view tag) {
  const TagMatch match = match_tag(text.view(at_, limit), tag);
  if (match == TagMatch::Full) at_ += tag.size();
  return match;
}

bool CallReader::pass_name(const TextWindow& text, size_t limit) {
  constexpr std::string_view kNotInNames = " \t\n\v\f\r<>{}\"'`";
  while (at_ < limit && kNotInNames.find(text.at(at_)) == std::string_view::npos) ++at_;
  return at_ < limit;
}

namespace {

constexpr std::string_view kKeyOpen = "<arg_key>", kKeyClose = "</arg_key>";
constexpr std::string_view kValueOpen = "<arg_value>", kValueClose = "</arg_value>";

class TaggedReader : public CallReader {
 public:
  TaggedReader(const OutputFormat& format, const ToolTypes& tools) : format_(format), tools_(tools) {}

  void start(size_t begin, bool only_declared) override;
  Status read(const TextWindow& text, size_t limit) override;
  void give_up() override { dead_.insert(passed_.begin(), passed_.end()); }
  ToolCall call(const TextWindow& text) const override;

 private:
  enum class Phase { BeforeName, Name, AfterPart, Key, AfterKey, Value };
  struct Argument {
    size_t key_begin, key_end, value_begin, value_end;
  };
  enum class Step { Again, More, Failed, Done };

  Step step(const TextWindow& text, size_t limit);
  Step read_name(const TextWindow& text, size_t limit);
  Step read_tag_after_part(const TextWindow& text, size_t limit);
  Step read_value_open(const TextWindow& text, size_t limit);
  Step read_key(const TextWindow& text, size_t limit);
  Step read_value(const TextWindow& text, size_t limit);
  // Goes on behind a closing tag, unless that is known to lead nowhere.
  Step enter(Phase phase, size_t place);

  const OutputFormat& format_;
  const ToolTypes& tools_;
  TagPlaces key_closes_{kKeyClose}, value_closes_{kValueClose};
  std::unordered_set<size_t> dead_;  ///< places behind closing tags from where no call can be completed
  size_t last_passed_ = 0;

  Phase phase_ = Phase::BeforeName;
  bool only_declared_ = false;
  size_t name_begin_ = 0;
  std::string name_;
  std::vector<Argument> arguments_;
  std::vector<size_t> passed_;
};

void TaggedReader::start(size_t begin, bool only_declared) {
  if (begin >= last_passed_) dead_.clear();
  key_closes_.forget_before(begin);
  value_closes_.forget_before(begin);
  phase_ = Phase::BeforeName;
  only_declared_ = only_declared;
  at_ = begin;
  arguments_.clear();
  passed_.clear();
}

CallReader::Status TaggedReader::read(const TextWindow& text, size_t limit) {
  Step next = Step::Again;
  while (next == Step::Again) next = step(text, limit);
  if (next == Step::More) return Status::More;
  if (next == Step::Done) return Status::Done;
  give_up();
  return Status::Failed;
}

TaggedReader::Step TaggedReader::step(const TextWindow& text, size_t limit) {
  switch (phase_) {
    case Phase::BeforeName:
      if (!skip_space(text, limit)) return Step::More;
      name_begin_ = at_;
      phase_ = Phase::Name;
      return Step::Again;
    case Phase::Name: return read_name(text, limit);
    case Phase::AfterPart: return read_tag_after_part(text, limit);
    case Phase::Key: return read_key(text, limit);
    case Phase::AfterKey: return read_value_open(text, limit);
    case Phase::Value: return read_value(text, limit);
  }
  return Step::Failed;
}

TaggedReader::Step TaggedReader::read_name(const TextWindow& text, size_t limit) {
  if (!pass_name(text, limit)) return Step::More;
  name_ = text.view(name_begin_, at_);
  if (name_.empty() || (only_declared_ && !tools_.declares(name_))) return Step::Failed;
  phase_ = Phase::AfterPart;
  return Step::Again;
}

TaggedReader::Step TaggedReader::read_tag_after_part(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch close = pass_tag(text, limit, format_.call_close);
  if (close == TagMatch::Full) return Step::Done;
  const TagMatch key = pass_tag(text, limit, kKeyOpen);
  if (key == TagMatch::Full) {
    arguments_.push_back({.key_begin = at_});
    phase_ = Phase::Key;
    return Step::Again;
  }
  return close == TagMatch::Partial || key == TagMatch::Partial ? Step::More : Step::Failed;
}

TaggedReader::Step TaggedReader::read_key(const TextWindow& text, size_t limit) {
  Argument& argument = arguments_.back();
  argument.key_end = key_closes_.first_from(argument.key_begin, limit, text);
  if (argument.key_end == TagPlaces::kNone) return Step::More;
  if (trimmed(text.view(argument.key_begin, argument.key_end)).empty()) return Step::Failed;
  return enter(Phase::AfterKey, argument.key_end + kKeyClose.size());
}

TaggedReader::Step TaggedReader::read_value_open(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch open = pass_tag(text, limit, kValueOpen);
  if (open == TagMatch::Partial) return Step::More;
  if (open == TagMatch::None) return Step::Failed;
  arguments_.back().value_begin = at_;
  phase_ = Phase::Value;
  return Step::Again;
}

TaggedReader::Step TaggedReader::read_value(const TextWindow& text, size_t limit) {
  Argument& argument = arguments_.back();
  argument.value_end = value_closes_.first_from(argument.value_begin, limit, text);
  if (argument.value_end == TagPlaces::kNone) return Step::More;
  return enter(Phase::AfterPart, argument.value_end + kValueClose.size());
}

TaggedReader::Step TaggedReader::enter(Phase phase, size_t place) {
  if (dead_.contains(place)) return Step::Failed;
  passed_.push_back(place);
  if (place > last_passed_) last_passed_ = place;
  at_ = place;
  phase_ = phase;
  return Step::Again;
}

ToolCall TaggedReader::call(const TextWindow& text) const {
  std::unordered_map<std::string_view, size_t> last;  // of a key given twice, the last value counts
  const auto key_of = [&](const Argument& a) { return trimmed(text.view(a.key_begin, a.key_end)); };
  for (size_t i = 0; i < arguments_.size(); ++i) last[key_of(arguments_[i])] = i;
  ToolCall call{name_, "{"};
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const std::string_view key = key_of(arguments_[i]);
    if (last[key] != i) continue;
    if (call.arguments.size() > 1) call.arguments += ',';
    call.arguments += json_quote(key) + ':';
    const std::string_view value = text.view(arguments_[i].value_begin, arguments_[i].value_end);
    call.arguments += typed_value(value, tools_.types(name_, key));
  }
  call.arguments += '}';
  return call;
}

class JsonReader : public CallReader {
 public:
  JsonReader(const OutputFormat& format, const ToolTypes& tools) : format_(format), tools_(tools) {}

  void start(size_t begin, bool only_declared) override;
  Status read(const TextWindow& text, size_t limit) override;
  bool lacks_only_close() const override { return phase_ == Phase::FenceClose || phase_ == Phase::Close; }
  ToolCall call(const TextWindow&) const override { return call_; }

 private:
  enum class Phase { BeforeName, Name, Separator, Body, FencedName, FenceOpen, Object, FenceClose, Close };
  enum class Step { Again, More, Failed, Done };

  Step step(const TextWindow& text, size_t limit);
  Step read_name(const TextWindow& text, size_t limit, Phase next);
  Step read_tag(const TextWindow& text, size_t limit, std::string_view tag, Phase next);
  Step read_body(const TextWindow& text, size_t limit);
  Step read_object(const TextWindow& text, size_t limit);
  // What a whole object says; false when that is no call.
  bool take_object(std::string_view object);
  bool take_arguments(std::string_view json);
  void take_name(std::string_view written);

  const OutputFormat& format_;
  const ToolTypes& tools_;
  Phase phase_ = Phase::BeforeName;
  bool only_declared_ = false, fenced_ = false;
  size_t part_begin_ = 0;
  JsonObjectScanner scanner_;
  ToolCall call_;
};

void JsonReader::start(size_t begin, bool only_declared) {
  phase_ = format_.separator.empty() ? Phase::Body : Phase::BeforeName;
  only_declared_ = only_declared;
  fenced_ = false;
  at_ = begin;
  call_ = {};
}

CallReader::Status JsonReader::read(const TextWindow& text, size_t limit) {
  Step next = Step::Again;
  while (next == Step::Again) next = step(text, limit);
  if (next == Step::More) return Status::More;
  return next == Step::Done ? Status::Done : Status::Failed;
}

JsonReader::Step JsonReader::step(const TextWindow& text, size_t limit) {
  switch (phase_) {
    case Phase::BeforeName:
      if (!skip_space(text, limit)) return Step::More;
      part_begin_ = at_;
      phase_ = Phase::Name;
      return Step::Again;
    case Phase::Name: return read_name(text, limit, Phase::Separator);
    case Phase::Separator: return read_tag(text, limit, format_.separator, Phase::Body);
    case Phase::Body: return read_body(text, limit);
    case Phase::FencedName: return read_name(text, limit, Phase::FenceOpen);
    case Phase::FenceOpen: return read_tag(text, limit, "```json", Phase::Body);
    case Phase::Object: return read_object(text, limit);
    case Phase::FenceClose: return read_tag(text, limit, "```", Phase::Close);
    case Phase::Close: {
      if (!skip_space(text, limit)) return Step::More;
      const TagMatch close = pass_tag(text, limit, format_.call_close);
      if (close == TagMatch::Partial) return Step::More;
      return close == TagMatch::Full ? Step::Done : Step::Failed;
    }
  }
  return Step::Failed;
}

JsonReader::Step JsonReader::read_name(const TextWindow& text, size_t limit, Phase next) {
  if (!pass_name(text, limit)) return Step::More;
  take_name(text.view(part_begin_, at_));
  if (call_.name.empty()) return Step::Failed;
  phase_ = next;
  return Step::Again;
}

JsonReader::Step JsonReader::read_tag(const TextWindow& text, size_t limit, std::string_view tag,
                                      Phase next) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch match = pass_tag(text, limit, tag);
  if (match == TagMatch::Partial) return Step::More;
  if (match == TagMatch::None) return Step::Failed;
  fenced_ = fenced_ || phase_ == Phase::FenceOpen;
  phase_ = next;
  return Step::Again;
}

// An object, or nothing where the name is known already, or the older form: name and fenced object.
JsonReader::Step JsonReader::read_body(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  part_begin_ = at_;
  if (text.at(at_) == '{') {
    scanner_ = {};
    phase_ = Phase::Object;
    return Step::Again;
  }
  if (format_.separator.empty() || fenced_) return Step::Failed;
  if (text.at(at_) == '<') {
    if (only_declared_ && !tools_.declares(call_.name)) return Step::Failed;
    call_.arguments = "{}";
    phase_ = Phase::Close;
    return Step::Again;
  }
  if (call_.name != "function") return Step::Failed;
  phase_ = Phase::FencedName;
  return Step::Again;
}

JsonReader::Step JsonReader::read_object(const TextWindow& text, size_t limit) {
  while (at_ < limit) {
    const JsonObjectScanner::Status status = scanner_.read(text.at(at_++));
    if (status == JsonObjectScanner::Status::Failed) return Step::Failed;
    if (status == JsonObjectScanner::Status::More) continue;
    if (!take_object(text.view(part_begin_, at_))) return Step::Failed;
    if (only_declared_ && !tools_.declares(call_.name)) return Step::Failed;
    phase_ = fenced_ ? Phase::FenceClose : Phase::Close;
    return Step::Again;
  }
  return Step::More;
}

bool JsonReader::take_object(std::string_view object) {
  if (!is_json(object)) return false;
  if (!format_.separator.empty()) return take_arguments(object);
  call_.arguments = "{}";
  for (const auto& [key, value] : json_members(object)) {
    if (key == "name" && value.front() == '"') call_.name = json_unquote(value);
    if (key == "arguments" && !take_arguments(value)) return false;
  }
  return !call_.name.empty();
}

// An object, or a string that holds one, as OpenAI's messages have it.
bool JsonReader::take_arguments(std::string_view json) {
  const std::string inside = json.front() == '"' ? json_unquote(json) : std::string();
  if (json.front() == '"') json = trimmed(inside);
  if (json.empty() || json.front() != '{' || !is_json(json)) return false;
  call_.arguments = json_compact(json);
  return true;
}

void JsonReader::take_name(std::string_view written) {
  if (!format_.name_prefix.empty() && written.starts_with(format_.name_prefix)) {
    written.remove_prefix(format_.name_prefix.size());
    const size_t last = written.find_last_not_of("0123456789");
    if (last != std::string_view::npos && last + 1 < written.size() && written[last] == ':')
      written = written.substr(0, last);
  }
  call_.name = written;
}

}  // namespace

std::unique_ptr<CallReader> CallReader::make(const OutputFormat& format, const ToolTypes& tools) {
  switch (format.calls) {
    case CallSyntax::None: return nullptr;
    case CallSyntax::Tagged: return std::make_unique<TaggedReader>(format, tools);
    case CallSyntax::Json: return std::make_unique<JsonReader>(format, tools);
  }
  return nullptr;
}

}  // namespace sluice::text
