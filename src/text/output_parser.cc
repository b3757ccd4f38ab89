// A walk over the text from bracket to bracket. What stands before a decided place has been put out and is
// forgotten; only an attempt at a call can send the walk back, to right behind the call's opening tag.
#include "text/output_parser.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/call_reader.h"
#include "text/json_text.h"
#include "text/stream.h"
#include "text/text_window.h"

namespace sluice::text {
namespace {

// One channel's text: parts trimmed, empty ones dropped, the rest joined by newlines.
class Channel {
 public:
  struct Piece {
    std::string text;
    size_t left = 0;      ///< bytes at the end of what was added that are held back
    bool joined = false;  ///< a newline joins it to the part before
  };
  // Adds text to the present part and returns what it lets out.
  Piece add(std::string_view text) {
    const size_t first = part_empty_ ? text.find_first_not_of(kSpace) : 0;
    const size_t last = text.find_last_not_of(kSpace);
    Piece out;
    if (last == std::string_view::npos) {
      if (!part_empty_) space_ += text;
      return out;
    }
    out.joined = part_empty_ && !empty_;
    if (out.joined) out.text += '\n';
    out.text += std::exchange(space_, {});
    out.text += text.substr(first, last + 1 - first);
    space_ = text.substr(last + 1);
    out.left = space_.size();
    empty_ = part_empty_ = false;
    return out;
  }
  void end_part() {
    space_.clear();
    part_empty_ = true;
  }
  /// What comes goes on with a part that somebody else has begun.
  void go_on() { empty_ = part_empty_ = false; }

 private:
  bool empty_ = true, part_empty_ = true;
  std::string space_;  ///< at the end of the part, as far as it is known
};

}  // namespace

struct OutputParser::Impl {
  const OutputFormat& format;
  ToolTypes tools;
  std::unique_ptr<CallReader> own, json;  ///< of the format's form, and of JSON where models slip into it
  CallReader* reader = nullptr;           ///< that is at work; null: no calls

  Utf8Stream utf8;
  TextWindow text;
  size_t at = 0;  ///< what stands before has been decided
  bool at_start = true;
  bool thinking;
  bool in_call = false;      ///< the reader is at work on a call whose opening tag stands at `at`
  std::string_view opening;  ///< which is this
  bool bare = false;         ///< no tag says that it is one: it counts if it is of a declared tool
  bool told = false;         ///< of which there were events
  bool only_calls = true;    ///< no content so far: where calls have no tag
  bool incomplete = false;
  bool in_header;  ///< of channels: of a message
  TagPlaces think_closes{format.think_close};
  Channel reasoning, content;
  std::vector<OutputEvent> events;

  Impl(const OutputFormat& format_in, const nlohmann::ordered_json& tools_in, bool starts_in_thinking)
      : format(format_in),
        tools(tools_in),
        thinking(starts_in_thinking && format_in.thinks),
        in_header(format_in.channels && !thinking) {
    if (tools.empty()) return;
    own = CallReader::make(format, tools);
    if (!format.tags.name_open.empty()) json = make_json_reader(format, tools);
    reader = own.get();
  }

  Channel& channel() { return thinking ? reasoning : content; }
  void put(std::string_view piece);
  void tell_call();
  void end_call();
  void advance(bool last, bool turn_ended = false);
  bool pass_start(bool last);
  bool walk(bool last);
  bool walk_untagged(bool last);
  bool walk_header(bool last);
  bool walk_message(bool last);
  void take_header(std::string_view header);
  bool pass_tag(bool last);
  TagMatch pass_section(std::string_view rest);
  void begin_call(std::string_view tag, bool another = false);
  bool read_call(bool last, bool turn_ended);
  bool end_in_call(size_t limit, bool turn_ended);
  bool try_json();
  void refuse_call();
  std::vector<OutputEvent> take_events() { return std::exchange(events, {}); }
};

// Takes the text that stands at `at`.
void OutputParser::Impl::put(std::string_view piece) {
  Channel::Piece out = channel().add(piece);
  if (out.text.empty()) return;
  const auto kind = thinking ? OutputEvent::Kind::Reasoning : OutputEvent::Kind::Content;
  if (out.joined || events.empty() || events.back().kind != kind)
    events.push_back({.kind = kind, .joined = out.joined});
  events.back().text += out.text;
  events.back().end = at + piece.size() - out.left;
}

// Says what is known of the call.
void OutputParser::Impl::tell_call() {
  if (!std::exchange(told, true)) {
    channel().end_part();
    events.push_back({.kind = OutputEvent::Kind::Call, .text = reader->name()});
  }
  std::string piece = reader->take_arguments();
  if (piece.empty()) return;
  if (events.empty() || events.back().kind != OutputEvent::Kind::Arguments)
    events.push_back({.kind = OutputEvent::Kind::Arguments});
  events.back().text += piece;
}

void OutputParser::Impl::end_call() {
  tell_call();
  events.push_back({.kind = OutputEvent::Kind::CallEnd});
  in_call = false;
}

// Decides as much as can be decided; all that is left when no more text comes (`last`).
void OutputParser::Impl::advance(bool last, bool turn_ended) {
  if (at_start && !format.channels && !pass_start(last)) return;
  while (in_call ? read_call(last, turn_ended) : walk(last)) {
  }
  text.drop_before(at);
}

// A tag that only repeats what the prompt said, at the very start. False: undecided yet.
bool OutputParser::Impl::pass_start(bool last) {
  while (at < text.end() && is_space(text.at(at))) ++at;
  if (at == text.end()) return last;
  const std::string_view rest = text.view(at, text.end());
  const TagMatch open = format.thinks ? match_tag(rest, format.think_open) : TagMatch::None;
  const TagMatch close = format.thinks && !thinking ? match_tag(rest, format.think_close) : TagMatch::None;
  if (!last && (open == TagMatch::Partial || close == TagMatch::Partial)) return false;
  if (open == TagMatch::Full) at += format.think_open.size();
  if (close == TagMatch::Full) at += format.think_close.size();
  thinking = thinking || open == TagMatch::Full;
  at_start = false;
  return true;
}

// Puts out text up to the next tag and passes that. False: the rest is undecided or there is none.
bool OutputParser::Impl::walk(bool last) {
  if (format.channels) return in_header ? walk_header(last) : walk_message(last);
  if (reader && format.call_open.empty() && only_calls && !thinking) return walk_untagged(last);
  const std::string_view rest = text.view(at, text.end());
  const size_t bracket = rest.find(format.bracket);
  put(rest.substr(0, bracket));
  at = bracket == std::string_view::npos ? text.end() : at + bracket;
  return at < text.end() && pass_tag(last);
}

// Where calls have no tag they stand in place of the content, one behind the other.
bool OutputParser::Impl::walk_untagged(bool last) {
  while (at < text.end() && is_space(text.at(at))) ++at;
  if (at == text.end()) return false;
  const TagMatch section = pass_section(text.view(at, text.end()));
  if (section == TagMatch::Full) return true;
  if (section == TagMatch::Partial && !last) return false;
  if (text.at(at) == '{' || text.at(at) == '[')
    begin_call({});
  else if (text.at(at) == ';' && told)
    ++at;
  else
    only_calls = false;
  return true;
}

// What a header may begin with: the rest of one whose beginning the prompt has, or all of one.
constexpr std::string_view kHeaderStarts[] = {kChannelTag, kStartTag, "<|message|>", "<|constrain|>", "to="};
constexpr size_t kLongestHeader = 512;

// Passes a message's header. What cannot be one is content.
bool OutputParser::Impl::walk_header(bool last) {
  while (at < text.end() && is_space(text.at(at))) ++at;
  const std::string_view rest = text.view(at, text.end());
  if (rest.empty()) return false;
  const size_t end = rest.substr(0, kLongestHeader).find(format.separator);
  bool is_header = false;
  for (const std::string_view start : kHeaderStarts)
    is_header = is_header || match_tag(rest, start) != TagMatch::None;
  if (is_header && end == std::string_view::npos && rest.size() < kLongestHeader) {
    if (!last) return false;
    if (rest.front() == '<' || rest.starts_with("to=")) {  // cut off: it says nothing yet
      at = text.end();
      return false;
    }
  }
  in_header = false;
  if (!is_header || end == std::string_view::npos) {
    thinking = false;
    put(rest.substr(0, 1));
    ++at;
    return true;
  }
  const std::string header(rest.substr(0, end));
  at += end + format.separator.size();
  take_header(header);
  return true;
}

void OutputParser::Impl::take_header(std::string_view header) {
  const auto word_behind = [&](std::string_view tag) {
    const size_t place = header.rfind(tag);
    if (place == std::string_view::npos) return std::string_view();
    const std::string_view word = header.substr(place + tag.size());
    return word.substr(0, word.find_first_of(" <\n"));
  };
  const std::string_view tool = word_behind("to=");
  thinking = word_behind(kChannelTag) == "analysis";
  if (!reader || tool.empty()) return;
  in_call = true;
  told = false;
  bare = !tool.starts_with(format.name_prefix);
  opening = {};
  reader->start(at, {.only_declared = bare, .opens = true}, tool);
}

// Puts out a message's text up to the tag that ends it.
bool OutputParser::Impl::walk_message(bool last) {
  const std::string_view rest = text.view(at, text.end());
  const size_t bracket = rest.find(format.bracket);
  put(rest.substr(0, bracket));
  at = bracket == std::string_view::npos ? text.end() : at + bracket;
  if (at == text.end()) return false;
  const std::string_view behind = text.view(at, text.end());
  bool partial = false;
  for (const std::string_view tag :
       {format.think_close, std::string_view("<|return|>"), format.call_close, kStartTag, kChannelTag}) {
    const TagMatch match = match_tag(behind, tag);
    partial = partial || match == TagMatch::Partial;
    if (match != TagMatch::Full) continue;
    channel().end_part();
    if (tag != kStartTag && tag != kChannelTag) at += tag.size();  // with these a header begins
    in_header = true;
    return true;
  }
  if (partial && !last) return false;
  put(behind.substr(0, 1));
  ++at;
  return true;
}

// Passes a tag that stands around calls.
TagMatch OutputParser::Impl::pass_section(std::string_view rest) {
  TagMatch best = TagMatch::None;
  for (const std::string_view tag :
       {format.section_open, format.section_close, format.other_section_open, format.other_section_close}) {
    const TagMatch match = match_tag(rest, tag);
    if (match == TagMatch::Partial) best = match;
    if (match != TagMatch::Full) continue;
    channel().end_part();
    at += tag.size();
    return match;
  }
  return best;
}

// Passes the bracket at hand with the tag that begins there, if one does.
bool OutputParser::Impl::pass_tag(bool last) {
  const std::string_view rest = text.view(at, text.end());
  const TagMatch think = thinking ? match_tag(rest, format.think_close) : TagMatch::None;
  if (think == TagMatch::Full) {
    thinking = false;
    at += format.think_close.size();
    return true;
  }
  bool partial = think == TagMatch::Partial;
  if (reader) {
    const TagMatch call = match_tag(rest, format.call_open);
    if (call == TagMatch::Full) {
      begin_call(format.call_open);
      return true;
    }
    const TagMatch name = match_tag(rest, format.tags.name_open);
    if (name == TagMatch::Full) {
      begin_call(format.tags.name_open);
      return true;
    }
    if (call == TagMatch::Partial && !last) return false;  // a section's tag may be its beginning
    const TagMatch section = pass_section(rest);
    if (section == TagMatch::Full) return true;
    partial = partial || section == TagMatch::Partial || name == TagMatch::Partial;
  }
  if (partial && !last) return false;
  put(rest.substr(0, 1));
  ++at;
  return true;
}

// another: it stands behind one of the same opening tag.
void OutputParser::Impl::begin_call(std::string_view tag, bool another) {
  in_call = true;
  bare = format.call_open.empty() || (!another && tag != format.call_open);
  told = false;
  opening = tag;
  think_closes.forget_before(at);
  if (!another) reader = own.get();
  // In reasoning models also talk about calls, and without the call's own tag much may look like one.
  reader->start(at + (tag == format.call_open ? tag.size() : 0),
                {.only_declared = thinking || bare, .opens = !thinking, .goes_on = another});
}

// Goes on with a call. False: it is undecided, or it was cut off at the end of the text.
bool OutputParser::Impl::read_call(bool last, bool turn_ended) {
  // In reasoning, nothing reaches beyond the tag that closes it.
  const size_t close =
      thinking && !format.channels ? think_closes.first_from(at, text.end(), text) : TagPlaces::kNone;
  const size_t limit = close == TagPlaces::kNone ? text.end() : close;
  const CallReader::Status status = reader->read(text, limit);
  if (reader->opened()) tell_call();
  switch (status) {
    case CallReader::Status::Failed:
      if (!try_json()) refuse_call();
      return true;
    case CallReader::Status::Done:
      end_call();
      at = reader->end();
      if (reader->more()) begin_call({}, true);
      return true;
    case CallReader::Status::Broken:
      incomplete = true;
      in_call = false;
      break;
    case CallReader::Status::More:
      if (thinking && !format.channels && limit < text.end()) {
        reader->give_up();
        refuse_call();
        return true;
      }
      return last && end_in_call(limit, turn_ended);
  }
  at = reader->end();
  return true;
}

// The text ends within a call. True: what looked like one is text.
bool OutputParser::Impl::end_in_call(size_t limit, bool turn_ended) {
  if (reader->finish(text, limit, turn_ended)) {
    end_call();
    at = limit;
    return false;
  }
  if ((thinking && !format.channels) || (bare && !tools.declares(reader->name()))) {
    reader->give_up();
    refuse_call();
    return true;
  }
  incomplete = true;
  in_call = false;
  const bool is_tag = trimmed(text.view(at + opening.size(), limit)).empty();
  if (!reader->name().empty())
    tell_call();
  else if (!is_tag)
    put(text.view(at, limit));
  at = limit;
  return false;
}

// Reads the call as JSON if it may be that behind the format's own tag.
bool OutputParser::Impl::try_json() {
  if (!json || reader == json.get() || opening != format.call_open) return false;
  size_t begin = at + opening.size();
  while (begin < text.end() && is_space(text.at(begin))) ++begin;
  if (begin == text.end() || text.at(begin) != '{') return false;
  reader = json.get();
  reader->start(begin, {.only_declared = thinking, .opens = !thinking});
  return true;
}

// The opening tag is text, and reading goes on behind it.
void OutputParser::Impl::refuse_call() {
  in_call = only_calls = false;
  put(opening);
  at += opening.size();
}

OutputParser::OutputParser(const OutputFormat& format, const nlohmann::ordered_json& tools,
                           bool starts_in_thinking)
    : impl_(std::make_unique<Impl>(format, tools, starts_in_thinking)) {}
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;
OutputParser::~OutputParser() = default;

std::vector<OutputEvent> OutputParser::push(std::string_view bytes) {
  impl_->text.append(impl_->utf8.push(bytes));
  impl_->advance(false);
  return impl_->take_events();
}

std::vector<OutputEvent> OutputParser::finish(bool turn_ended) {
  impl_->text.append(impl_->utf8.finish());
  impl_->advance(true, turn_ended);
  return impl_->take_events();
}

void OutputParser::go_on() {
  impl_->at_start = impl_->in_header = false;
  impl_->channel().go_on();
}
bool OutputParser::thinking() const { return impl_->thinking; }
bool OutputParser::incomplete() const { return impl_->incomplete; }

void ParsedOutput::add(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::Reasoning: reasoning_content += event.text; break;
      case OutputEvent::Kind::Content: content += event.text; break;
      case OutputEvent::Kind::Call: tool_calls.push_back({.name = event.text, .arguments = {}}); break;
      case OutputEvent::Kind::Arguments: tool_calls.back().arguments += event.text; break;
      case OutputEvent::Kind::CallEnd: tool_calls.back().whole = true; break;
    }
  }
}

ParsedOutput parse_output(const OutputFormat& format, const nlohmann::ordered_json& tools,
                          bool starts_in_thinking, std::string_view text, size_t chunk_bytes,
                          bool turn_ended) {
  OutputParser parser(format, tools, starts_in_thinking);
  ParsedOutput parsed;
  const size_t step = chunk_bytes == 0 ? text.size() : chunk_bytes;
  for (size_t begin = 0; begin < text.size(); begin += step)
    parsed.add(parser.push(text.substr(begin, step)));
  parsed.add(parser.finish(turn_ended));
  parsed.incomplete = parser.incomplete();
  return parsed;
}

}  // namespace sluice::text
