#include "text/call_reader.h"

#include "text/json_text.h"

namespace sluice::text {

std::unique_ptr<CallReader> CallReader::make(const OutputFormat& format, const ToolTypes& tools) {
  switch (format.calls) {
    case CallSyntax::None: return nullptr;
    case CallSyntax::Tagged: return make_tagged_reader(format, tools);
    case CallSyntax::Json: return make_json_reader(format, tools);
  }
  return nullptr;
}

void CallReader::start(size_t begin, Rules rules) {
  at_ = begin;
  rules_ = rules;
  opened_ = more_ = false;
  name_.clear();
  arguments_.clear();
  restart();
}

void CallReader::start(size_t begin, Rules rules, std::string_view name) {
  start(begin, rules);
  take_name(name);
}

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
  const char behind = format_.separator.empty() ? '<' : format_.separator.front();
  while (at_ < limit && text.at(at_) != behind && kNotInNames.find(text.at(at_)) == std::string_view::npos)
    ++at_;
  return at_ < limit;
}

}  // namespace sluice::text
