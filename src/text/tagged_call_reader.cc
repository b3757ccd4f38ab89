// Calls whose arguments stand between tags, as GLM and Qwen3-Coder write them. With its first value a call is
// open: what is written of a string is handed on at once, other values when they are whole.
//
// Why failures cost linear time all the same: after one, reading begins again behind the opening tag, so
// bytes may be read again by the next attempts. How an attempt goes on from behind a closing tag depends on
// that place alone, so the places that an attempt has passed before it failed are remembered, and later
// attempts fail when they come to one. A call that is open never goes back before its last value.
#include <algorithm>
#include <unordered_set>
#include <vector>

#include "text/call_reader.h"
#include "text/json_stream.h"
#include "text/json_text.h"

namespace sluice::text {
namespace {

/// Bytes at the end of the text that may be the beginning of the tag. Every byte of a value is asked: places
/// where the tag's first one does not stand are passed over.
size_t partial_tag(std::string_view text, std::string_view tag) {
  if (tag.empty()) return 0;
  const std::string_view end = text.substr(text.size() - std::min(text.size(), tag.size() - 1));
  size_t at = end.find(tag.front());
  while (at != std::string_view::npos && !tag.starts_with(end.substr(at))) at = end.find(tag.front(), at + 1);
  return at == std::string_view::npos ? 0 : end.size() - at;
}

class TaggedReader : public CallReader {
 public:
  TaggedReader(const OutputFormat& format, const ToolTypes& tools)
      : CallReader(format, tools),
        key_closes_(format.tags.key_close),
        value_closes_(format.tags.value_close) {
    for (const std::string_view tag : tags_.value_breaks)
      if (!tag.empty()) value_breaks_.emplace_back(tag);
  }

  Status read(const TextWindow& text, size_t limit) override;
  bool finish(const TextWindow& text, size_t limit, bool turn_ended) override;
  void give_up() override { dead_.insert(passed_.begin(), passed_.end()); }

 private:
  enum class Phase : uint8_t { BeforeName, Name, AfterPart, Key, AfterKey, BeforeValue, Value, AfterBody };
  enum class Step : uint8_t { Again, More, Failed, Done };

  void restart() override;
  Step step(const TextWindow& text, size_t limit);
  Step read_before_name(const TextWindow& text, size_t limit);
  Step read_name(const TextWindow& text, size_t limit);
  Step read_tag_after_part(const TextWindow& text, size_t limit);
  Step read_value_open(const TextWindow& text, size_t limit);
  Step read_key(const TextWindow& text, size_t limit);
  Step read_key_in_tag(const TextWindow& text, size_t limit);
  Step open_value();
  Step read_before_value(const TextWindow& text, size_t limit);
  Step read_value(const TextWindow& text, size_t limit);
  Step read_after_body(const TextWindow& text, size_t limit);
  void end_value(const TextWindow& text, size_t end);
  void cut_value(const TextWindow& text, size_t limit);
  size_t held_back(std::string_view text) const;
  size_t closing_tail(std::string_view text) const;
  // Hands on what is certain of a value that is a string, up to `limit`.
  void stream_value(const TextWindow& text, size_t limit);
  void end_arguments() { arguments_ += count_ == 0 ? "{}" : "}"; }
  // Goes on behind a closing tag, unless that is known to lead nowhere.
  Step enter(Phase phase, size_t place);

  const CallTags& tags_ = format_.tags;
  TagPlaces key_closes_, value_closes_;
  std::vector<TagPlaces> value_breaks_;
  std::unordered_set<size_t> dead_;  ///< places behind closing tags from where no call can be completed
  size_t last_passed_ = 0;

  Phase phase_ = Phase::BeforeName;
  size_t begin_ = 0;       ///< of the name, key or value at hand
  size_t values_end_ = 0;  ///< behind the last whole value
  size_t body_end_ = 0;    ///< behind the tag that closes the body
  size_t count_ = 0;       ///< of arguments
  std::string key_;
  TypeSet types_ = 0;     ///< of the value at hand
  StringText string_{0};  ///< the value at hand
  size_t handed_on_ = 0;  ///< of the value
  std::vector<size_t> passed_;
};

void TaggedReader::restart() {
  if (at_ >= last_passed_) dead_.clear();
  key_closes_.forget_before(at_);
  value_closes_.forget_before(at_);
  for (TagPlaces& breaks : value_breaks_) breaks.forget_before(at_);
  phase_ = Phase::BeforeName;
  count_ = 0;
  passed_.clear();
}

CallReader::Status TaggedReader::read(const TextWindow& text, size_t limit) {
  Step next = Step::Again;
  while (next == Step::Again) next = step(text, limit);
  if (next == Step::More) return Status::More;
  if (next == Step::Done) {
    end_arguments();
    return Status::Done;
  }
  if (!opened_) {
    give_up();
    return Status::Failed;
  }
  // Only the closing tag lacks where something else follows a value; an argument where a key has none.
  const bool whole = phase_ == Phase::AfterPart;
  at_ = values_end_;
  if (whole) end_arguments();
  return whole ? Status::Done : Status::Broken;
}

TaggedReader::Step TaggedReader::step(const TextWindow& text, size_t limit) {
  switch (phase_) {
    case Phase::BeforeName: return read_before_name(text, limit);
    case Phase::Name: return read_name(text, limit);
    case Phase::AfterPart: return read_tag_after_part(text, limit);
    case Phase::Key: return read_key(text, limit);
    case Phase::AfterKey: return read_value_open(text, limit);
    case Phase::BeforeValue: return read_before_value(text, limit);
    case Phase::Value: return read_value(text, limit);
    case Phase::AfterBody: return read_after_body(text, limit);
  }
  return Step::Failed;
}

TaggedReader::Step TaggedReader::read_before_name(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  if (!tags_.name_open.empty()) {
    const TagMatch open = pass_tag(text, limit, tags_.name_open);
    if (open != TagMatch::Full) return open == TagMatch::Partial ? Step::More : Step::Failed;
  }
  begin_ = at_;
  phase_ = Phase::Name;
  return Step::Again;
}

TaggedReader::Step TaggedReader::read_name(const TextWindow& text, size_t limit) {
  if (!pass_name(text, limit)) return Step::More;
  name_ = text.view(begin_, at_);
  if (name_.empty() || !is_welcome(name_)) return Step::Failed;
  const TagMatch close = tags_.name_close.empty() ? TagMatch::Full : pass_tag(text, limit, tags_.name_close);
  if (close != TagMatch::Full) return close == TagMatch::Partial ? Step::More : Step::Failed;
  phase_ = Phase::AfterPart;
  return Step::Again;
}

TaggedReader::Step TaggedReader::read_tag_after_part(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch close = pass_tag(text, limit, format_.call_close);
  if (close == TagMatch::Full) return Step::Done;
  const TagMatch body = pass_tag(text, limit, tags_.body_close);
  if (body == TagMatch::Full) {
    body_end_ = at_;
    phase_ = Phase::AfterBody;
    return Step::Again;
  }
  const TagMatch key = pass_tag(text, limit, tags_.key_open);
  if (key == TagMatch::Full) {
    begin_ = at_;
    phase_ = Phase::Key;
    return Step::Again;
  }
  const bool partial = close == TagMatch::Partial || body == TagMatch::Partial || key == TagMatch::Partial;
  return partial ? Step::More : Step::Failed;
}

TaggedReader::Step TaggedReader::read_after_body(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch close = pass_tag(text, limit, format_.call_close);
  if (close == TagMatch::Partial) return Step::More;
  if (close == TagMatch::Full) return Step::Done;
  if (!rules_.opens) return Step::Failed;  // where calls may be mere talk, they are whole
  at_ = body_end_;
  return Step::Done;
}

TaggedReader::Step TaggedReader::read_key(const TextWindow& text, size_t limit) {
  if (tags_.value_open.empty()) return read_key_in_tag(text, limit);
  const size_t end = key_closes_.first_from(begin_, limit, text);
  if (end == TagPlaces::kNone) return Step::More;
  const size_t begin = begin_;
  if (enter(Phase::AfterKey, end + tags_.key_close.size()) == Step::Failed) return Step::Failed;
  key_ = trimmed(text.view(begin, end));
  return key_.empty() ? Step::Failed : Step::Again;
}

// A key that is a part of the tag before its value: no other tag begins there, and no line ends.
TaggedReader::Step TaggedReader::read_key_in_tag(const TextWindow& text, size_t limit) {
  constexpr std::string_view kNotInKeys = "<>\n";
  const char close = tags_.key_close.front();
  while (at_ < limit && text.at(at_) != close && kNotInKeys.find(text.at(at_)) == std::string_view::npos)
    ++at_;
  if (at_ == limit) return Step::More;
  key_ = trimmed(text.view(begin_, at_));
  const TagMatch match = pass_tag(text, limit, tags_.key_close);
  if (match == TagMatch::Partial) return Step::More;
  return key_.empty() || match == TagMatch::None ? Step::Failed : open_value();
}

TaggedReader::Step TaggedReader::read_value_open(const TextWindow& text, size_t limit) {
  if (!skip_space(text, limit)) return Step::More;
  const TagMatch open = pass_tag(text, limit, tags_.value_open);
  if (open == TagMatch::Partial) return Step::More;
  if (open == TagMatch::None) return Step::Failed;
  return open_value();
}

TaggedReader::Step TaggedReader::open_value() {
  opened_ = rules_.opens;
  arguments_ += count_++ == 0 ? '{' : ',';
  arguments_ += json_quote(key_) + ':';
  types_ = tools_.types(name_, key_);
  string_ = StringText(types_);
  begin_ = handed_on_ = at_;
  phase_ = tags_.own_lines ? Phase::BeforeValue : Phase::Value;
  return Step::Again;
}

TaggedReader::Step TaggedReader::read_before_value(const TextWindow& text, size_t limit) {
  if (at_ == limit) return Step::More;
  if (text.at(at_) == '\n') ++at_;
  begin_ = handed_on_ = at_;
  phase_ = Phase::Value;
  return Step::Again;
}

TaggedReader::Step TaggedReader::read_value(const TextWindow& text, size_t limit) {
  size_t end = value_closes_.first_from(begin_, limit, text);
  size_t next = end + tags_.value_close.size();
  for (TagPlaces& breaks : value_breaks_)
    if (const size_t place = breaks.first_from(begin_, limit, text); place < end) end = next = place;
  if (end == TagPlaces::kNone) {
    if (opened_) stream_value(text, limit - held_back(text.view(handed_on_, limit)));
    return Step::More;
  }
  if (enter(Phase::AfterPart, next) == Step::Failed) return Step::Failed;
  values_end_ = at_;
  end_value(text, end);
  return Step::Again;
}

void TaggedReader::end_value(const TextWindow& text, size_t end) {
  if (tags_.own_lines && end > begin_ && text.at(end - 1) == '\n') --end;
  if (handed_on_ == begin_) {
    arguments_ += typed_value(text.view(begin_, end), types_);
  } else {
    stream_value(text, end);
    arguments_ += '"';
  }
}

// At the end of the text, what may be the beginning of a tag that closes the value, and tags that close the
// call, should the model end its turn behind them.
size_t TaggedReader::held_back(std::string_view text) const {
  size_t partial = 0;
  for (const std::string_view tag : {tags_.value_close, tags_.body_close, format_.call_close,
                                     tags_.value_breaks[0], tags_.value_breaks[1]})
    partial = std::max(partial, partial_tag(text, tag));
  std::string_view rest = text.substr(0, text.size() - partial);
  rest.remove_suffix(closing_tail(rest));
  if (tags_.own_lines && rest.ends_with('\n')) rest.remove_suffix(1);
  return text.size() - rest.size();
}

// How much of the end of the text is tags that close the call, with white space behind them.
size_t TaggedReader::closing_tail(std::string_view text) const {
  constexpr size_t kMostSpace = 16;
  std::string_view rest = text;
  for (const std::string_view tag : {format_.call_close, tags_.body_close}) {
    if (tag.empty()) continue;
    const size_t tail = std::min(rest.size(), tag.size() + kMostSpace);
    const std::string_view end = rest.substr(rest.size() - tail);
    if (trimmed(end).ends_with(tag)) rest.remove_suffix(tail - end.rfind(tag));
  }
  return text.size() - rest.size();
}

void TaggedReader::stream_value(const TextWindow& text, size_t limit) {
  if (handed_on_ == begin_ && !string_.is_string(text.view(begin_, limit))) return;
  if (handed_on_ == limit) return;
  const std::string quoted = json_quote(text.view(handed_on_, limit));
  arguments_.append(quoted, handed_on_ == begin_ ? 0 : 1);
  arguments_.pop_back();  // the closing quote
  handed_on_ = limit;
}

// Tells of a list or object that is cut what would otherwise have waited for its end.
void TaggedReader::cut_value(const TextWindow& text, size_t limit) {
  const std::string_view value = trimmed(text.view(begin_, limit));
  const TypeSet type = value.starts_with('[') ? kArray : value.starts_with('{') ? kObject : kOtherType;
  if (handed_on_ != begin_ || (types_ & type) == 0) return;
  JsonStream json;
  for (const char c : value)
    if (json.read(c, arguments_) != JsonStream::Status::More) break;
}

TaggedReader::Step TaggedReader::enter(Phase phase, size_t place) {
  if (!opened_) {
    if (dead_.contains(place)) return Step::Failed;
    passed_.push_back(place);
    if (place > last_passed_) last_passed_ = place;
  }
  at_ = place;
  phase_ = phase;
  return Step::Again;
}

bool TaggedReader::finish(const TextWindow& text, size_t limit, bool turn_ended) {
  if (phase_ == Phase::Name) name_ = text.view(begin_, at_);
  if (phase_ == Phase::Value && opened_ && turn_ended) {
    const size_t tail = closing_tail(text.view(handed_on_, limit));
    if (tail > 0) {
      end_value(text, limit - tail);  // what closes the call closes the value, too
      end_arguments();
      return true;
    }
  }
  if (phase_ == Phase::AfterBody) {
    end_arguments();
    return true;
  }
  const std::string_view rest = text.view(at_, limit);
  const bool closes = phase_ == Phase::AfterPart &&
                      (format_.call_close.starts_with(rest) || tags_.body_close.starts_with(rest));
  const bool has_name = phase_ == Phase::Name || (phase_ == Phase::AfterPart && count_ == 0);
  if (phase_ == Phase::Value && opened_) cut_value(text, limit);
  if (!turn_ended || !(closes || phase_ == Phase::Name)) return false;
  if (has_name && !tools_.declares(name_)) return false;
  end_arguments();
  return true;
}

}  // namespace

std::unique_ptr<CallReader> make_tagged_reader(const OutputFormat& format, const ToolTypes& tools) {
  return std::make_unique<TaggedReader>(format, tools);
}

}  // namespace sluice::text
