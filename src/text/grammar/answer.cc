// Whole answers: reasoning, then content or tool calls, each in the way of the model's output format.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/constraint.h"
#include "text/exact_json.h"
#include "text/grammar/follower.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/schema.h"
#include "text/json_text.h"
#include "text/tool_types.h"

namespace sluice::text {
namespace {

using namespace grammar;  // NOLINT: this file speaks of little else

/// A tool of the request.
struct Tool {
  std::string name;
  const Json* parameters;
};

/// An argument in a tagged call.
struct Argument {
  std::string key;
  uint32_t rule;
  bool required;
};

class AnswerBuilder {
 public:
  AnswerBuilder(const AnswerPlace& place, const CallRule& calls)
      : place_(place),
        calls_(calls),
        budget_(place.most_steps),
        builder_(budget_),
        json_(builder_, JsonStringKind::Any),
        tags_(place.format != nullptr ? place.format->tags : CallTags()),
        tagged_json_(builder_, json_string_kind_without(tags_.value_close), value_breaks(tags_)) {
    if (!place.vocabulary) fail("no vocabulary");
  }

  JsonRules& json() { return json_; }
  GrammarBuilder& builder() { return builder_; }

  /// The answer whose content is of this rule; none: calls alone. `to_the_letter`: no white space may stand
  /// before the content, as it else may where whoever reads the answer of a chat takes it away.
  std::unique_ptr<TokenConstraint> finish(std::optional<uint32_t> content, bool to_the_letter = false) {
    if (place_.format != nullptr && place_.format->channels) return finish_channels(content);
    Nfa nfa(budget_);
    uint32_t at = nfa.add_state();
    if (place_.format != nullptr && place_.starts_in_thinking && place_.format->thinks)
      at = append_reasoning(nfa, at);
    const bool spaced = place_.format != nullptr;
    const uint32_t spaces =
        spaced ? nfa.append(*repeat(characters({{'\n', '\n'}, {' ', ' '}}), 0, 2), at) : at;
    const uint32_t end = nfa.add_state();
    if (content) nfa.add_call(to_the_letter ? at : spaces, *content, end);
    if (calls_.when != CallRule::When::Never) nfa.add_epsilon(append_calls(nfa, spaces), end);
    nfa.accepting = end;
    return follow(std::move(nfa));
  }

 private:
  /// The same of channels: messages of reasoning, then one of content or a call.
  std::unique_ptr<TokenConstraint> finish_channels(std::optional<uint32_t> content) {
    const OutputFormat& format = *place_.format;
    Nfa nfa(budget_);
    const uint32_t start = nfa.add_state(), message = nfa.add_state(), end = nfa.add_state();
    nfa.accepting = end;
    const auto reason = [&](uint32_t from) {
      from = append(nfa, without({format.think_close}, budget_), from);
      nfa.add_epsilon(append_text(nfa, "<|end|><|start|>assistant", from), message);
    };
    if (place_.starts_in_thinking) {
      reason(start);
    } else {
      nfa.add_epsilon(start, message);
    }
    reason(append_text(nfa, format.think_open, message));
    if (content) nfa.add_call(append_text(nfa, kFinalHeader, message), *content, end);
    if (calls_.when != CallRule::When::Never) nfa.add_epsilon(append_calls(nfa, message), end);
    return follow(std::move(nfa));
  }

  std::unique_ptr<TokenConstraint> follow(Nfa nfa) {
    const uint32_t root = builder_.add_rule("the answer");
    builder_.define(root, std::move(nfa));
    auto compiled = std::make_shared<CompiledGrammar>(place_.vocabulary, builder_.finish(root));
    auto follower = std::make_unique<Follower>(std::move(compiled));
    follower->warm_up();
    return follower;
  }

  static std::vector<std::string_view> value_breaks(const CallTags& tags) {
    std::vector<std::string_view> breaks;
    for (const std::string_view tag : tags.value_breaks)
      if (!tag.empty()) breaks.push_back(tag);
    return breaks;
  }

  // Text with tags "<|...|>" in it.
  uint32_t append_text(Nfa& nfa, std::string_view text, uint32_t from) {
    while (!text.empty()) {
      const bool is_tag = text.starts_with("<|");
      const size_t end = std::min(is_tag ? text.find("|>") + 2 : text.find("<|"), text.size());
      const std::string_view part = text.substr(0, end);
      from = is_tag ? append_tag(nfa, part, from) : nfa.append_bytes(part, from);
      text.remove_prefix(end);
    }
    return from;
  }

  // A tag is one token where the vocabulary has a control token for it, and else its bytes.
  uint32_t append_tag(Nfa& nfa, std::string_view tag, uint32_t from) {
    const int32_t token = place_.vocabulary->impl().control(tag);
    if (tag.empty()) return from;
    if (token < 0) return nfa.append_bytes(tag, from);
    const uint32_t to = nfa.add_state();
    const Symbol symbol = builder_.tag(token);
    nfa.add_edge(from, symbol, symbol, to);
    return to;
  }

  uint32_t append_line_end(Nfa& nfa, uint32_t from) {
    return nfa.append(*optional(characters({{'\n', '\n'}})), from);
  }

  // Anything up to the tag that closes reasoning; no call may begin there.
  uint32_t append_reasoning(Nfa& nfa, uint32_t from) {
    std::vector<std::string_view> tags = {place_.format->think_close};
    if (place_.format->calls != CallSyntax::None) tags.push_back(place_.format->call_open);
    if (!tags_.name_open.empty()) tags.push_back(tags_.name_open);
    from = append(nfa, without(tags, budget_), from);
    return append_tag(nfa, place_.format->think_close, from);
  }

  std::vector<Tool> tools() const {
    std::vector<Tool> out;
    if (calls_.tools == nullptr || !calls_.tools->is_array() || calls_.tools->empty())
      fail("tools: expected a list of tools");
    ToolTypes check(*calls_.tools);  // throws for what are no tools
    for (const Json& tool : *calls_.tools) {
      const Json& function = tool.contains("function") ? tool["function"] : tool;
      Tool found{function["name"].get<std::string>(), nullptr};
      if (function.contains("parameters") && !function["parameters"].is_null())
        found.parameters = &function["parameters"];
      const bool is_double =
          std::any_of(out.begin(), out.end(), [&](const Tool& t) { return t.name == found.name; });
      if (!is_double && (calls_.only.empty() || calls_.only == found.name)) out.push_back(std::move(found));
    }
    if (out.empty()) fail("tools: there is no tool \"{}\"", calls_.only);
    return out;
  }

  uint32_t append_calls(Nfa& nfa, uint32_t from) {
    const OutputFormat* format = place_.format;
    if (format == nullptr || format->calls == CallSyntax::None)
      fail("tools: the model's chat template has no form for tool calls, so none can be required");
    const std::vector<Tool> all = tools();
    json_.prepare();
    const bool tagged = format->calls == CallSyntax::Tagged;
    if (tagged) tagged_json_.prepare();
    const uint32_t call = builder_.add_rule("tool call");
    Nfa one(budget_);
    const uint32_t start = one.add_state();
    one.accepting = one.add_state();
    std::string skipped;
    size_t left = all.size(), callable = 0;
    for (const Tool& tool : all) {
      constexpr std::string_view kNotInNames = " \t\n\v\f\r<>{}\"'`";
      const int64_t parts = std::max<int64_t>(2, static_cast<int64_t>(left--) / 4);
      if (tool.name.empty() || tool.name.find_first_of(kNotInNames) != std::string::npos) {
        skipped =
            fmt::format("\"{}\": calls cannot hold a name with white space, quotes or brackets", tool.name);
        note(skipped);
        continue;
      }
      ++callable;
      const uint32_t opened = format->listed ? start : append_tag(one, format->call_open, start);
      const uint32_t written = tagged ? append_tagged(one, tool, arguments(tool, parts), opened)
                                      : append_json(one, tool, arguments_rule(tool, parts), opened);
      // A message's end is the answer's.
      const std::string_view close =
          format->channels || format->listed ? std::string_view() : format->call_close;
      one.add_epsilon(append_tag(one, close, written), one.accepting);
    }
    if (callable == 0) fail("tools: {}", skipped);
    builder_.define(call, std::move(one));
    if (format->listed) return append_list(nfa, from, call);
    from = append_tag(nfa, format->section_open, from);
    if (!format->channels) from = append_line_end(nfa, from);
    uint32_t behind = nfa.add_state();
    nfa.add_call(from, call, behind);
    if (calls_.parallel && !format->channels) nfa.add_call(append_line_end(nfa, behind), call, behind);
    if (!format->section_close.empty())
      behind = append_tag(nfa, format->section_close, append_line_end(nfa, behind));
    return behind;
  }

  uint32_t append_list(Nfa& nfa, uint32_t from, uint32_t call) {
    const OutputFormat& format = *place_.format;
    const uint32_t behind = nfa.add_state();
    nfa.add_call(nfa.append_bytes("[", append_tag(nfa, format.call_open, from)), call, behind);
    if (calls_.parallel) nfa.add_call(json_.append_space(nfa, nfa.append_bytes(",", behind)), call, behind);
    return append_tag(nfa, format.call_close, nfa.append_bytes("]", behind));
  }

  void note(const std::string& line) const {
    if (place_.notes != nullptr) place_.notes->push_back("tools: " + line);
  }

  /// Makes rules with one part of what may be spent; false: that did not go, and they are gone again. What is
  /// wrong with one tool must not keep others from being called.
  template <typename Make>
  bool attempt(const Tool& tool, int64_t parts, const Make& make) {
    const Budget whole = budget_, part = budget_.part(parts);
    const uint32_t first = builder_.size();
    std::vector<std::string> notes;
    bool done = false;
    budget_ = part;
    try {
      make(SchemaRule{Unkept::Unbound, &notes});
      done = true;
    } catch (const Error& error) {
      builder_.forget(first);
      notes.push_back(fmt::format("{}; its arguments are left unbound", error.what()));
    }
    const Budget left = std::exchange(budget_, whole);
    budget_.settle(part, left, done);
    for (const std::string& line : notes) note(tool.name + ": " + line);
    return done;
  }

  uint32_t arguments_rule(const Tool& tool, int64_t parts) {
    if (tool.parameters == nullptr) return json_.any_object();
    uint32_t rule = 0;
    const auto make = [&](const SchemaRule& schema_rule) {
      SchemaCompiler schema(*tool.parameters, json_, schema_rule);
      // Arguments are an object, whatever the schema says.
      static const Json kObject = parse_plain(R"({"type": "object"})");
      rule = schema.rule_of({{tool.parameters}, {&kObject}});
    };
    return attempt(tool, parts, make) ? rule : json_.any_object();
  }

  /// None: any arguments.
  std::optional<std::vector<Argument>> arguments(const Tool& tool, int64_t parts) {
    if (tool.parameters == nullptr) return std::vector<Argument>();
    std::vector<Argument> out;
    const auto make = [&](const SchemaRule& schema_rule) {
      SchemaCompiler schema(*tool.parameters, tagged_json_, schema_rule);
      const ToolTypes types(Json::array({{{"name", tool.name}, {"parameters", *tool.parameters}}}));
      for (const SchemaCompiler::Property& property : schema.properties()) {
        const std::vector<std::string_view> ends = not_in_keys();
        const bool holds = std::none_of(ends.begin(), ends.end(), [&](std::string_view end) {
          return property.key.find(end) != std::string::npos;
        });
        const bool fits = holds && trimmed(property.key) == property.key && !property.key.empty();
        // Whoever reads the call takes text for a string wherever the schema may mean one (typed_value).
        const TypeSet read_as = types.types(tool.name, property.key);
        std::optional<uint32_t> rule;
        if (fits)
          rule = read_as == 0 || (read_as & kString) != 0 ? schema.plain_rule(property.items)
                                                          : schema.rule_of(property.items);
        if (rule)
          out.push_back({property.key, *rule, property.required});
        else if (property.required)
          fail("$.properties.{}: calls cannot hold {}", property.key,
               fits ? "values whose type cannot be told" : "this name");
      }
    };
    return attempt(tool, parts, make) ? std::optional(std::move(out)) : std::nullopt;
  }

  // name<arg_key>key</arg_key><arg_value>value</arg_value>..., or with another format's tags. Line ends may
  // stand between the tags.
  uint32_t append_tagged(Nfa& nfa, const Tool& tool, const std::optional<std::vector<Argument>>& arguments,
                         uint32_t from) {
    if (!tags_.name_open.empty()) from = append_tag(nfa, tags_.name_open, append_line_end(nfa, from));
    from = append_tag(nfa, tags_.name_close, nfa.append_bytes(tool.name, from));
    from = append_line_end(nfa, from);
    if (!arguments) {
      const uint32_t behind = append_argument(
          nfa, from,
          [&](uint32_t at) {
            const ExpressionPtr any = repeat(any_character(), 1);
            const Dfa key = intersection(automaton(*any, budget_), without(not_in_keys(), budget_), budget_);
            return append(nfa, key, at);
          },
          tagged_json_.plain_string(std::nullopt, 0, kNoLimit));
      nfa.add_epsilon(behind, from);
    } else {
      for (const Argument& argument : *arguments) {
        const uint32_t behind = append_argument(
            nfa, from, [&](uint32_t at) { return nfa.append_bytes(argument.key, at); }, argument.rule);
        if (!argument.required) nfa.add_epsilon(from, behind);
        from = behind;
      }
    }
    if (tags_.body_close.empty()) return from;
    return append_line_end(nfa, append_tag(nfa, tags_.body_close, from));
  }

  // What ends a key that is a part of its tag ends it anywhere.
  std::vector<std::string_view> not_in_keys() const {
    if (!tags_.value_open.empty()) return {tags_.key_close};
    return {"<", ">", "\n", tags_.key_close};
  }

  template <typename AppendKey>
  uint32_t append_argument(Nfa& nfa, uint32_t from, const AppendKey& append_key, uint32_t value) {
    uint32_t at = append_tag(nfa, tags_.key_close, append_key(append_tag(nfa, tags_.key_open, from)));
    if (tags_.own_lines)
      at = nfa.append_bytes("\n", at);
    else if (!tags_.value_open.empty())
      at = append_tag(nfa, tags_.value_open, append_line_end(nfa, at));
    uint32_t behind = nfa.add_state();
    nfa.add_call(at, value, behind);
    if (tags_.own_lines) behind = nfa.append_bytes("\n", behind);
    return append_line_end(nfa, append_tag(nfa, tags_.value_close, behind));
  }

  // {"name": ..., "arguments": {...}}, or the name, a separator and the arguments.
  uint32_t append_json(Nfa& nfa, const Tool& tool, uint32_t arguments, uint32_t from) {
    const OutputFormat& format = *place_.format;
    const uint32_t end = nfa.add_state();
    const auto call_to = [&](uint32_t at, uint32_t to) { nfa.add_call(at, arguments, to); };
    if (format.separator.empty()) {
      uint32_t at = append_line_end(nfa, from);
      at = json_.append_space(nfa, nfa.append_bytes("{", at));
      at = json_.append_space(nfa, nfa.append_bytes(":", json_.append_string(nfa, "name", at)));
      at = json_.append_space(nfa, nfa.append_bytes(",", json_.append_string(nfa, tool.name, at)));
      at = json_.append_space(nfa, nfa.append_bytes(":", json_.append_string(nfa, "arguments", at)));
      const uint32_t behind = nfa.add_state();
      call_to(at, behind);
      at = nfa.append_bytes("}", json_.append_space(nfa, behind));
      return append_line_end(nfa, at);
    }
    if (format.channels) {
      const uint32_t to =
          nfa.append_bytes(tool.name, append_text(nfa, "<|channel|>commentary to=functions.", from));
      call_to(append_text(nfa, " <|constrain|>json<|message|>", to), end);
      return end;
    }
    uint32_t at = nfa.append_bytes(format.name_prefix, from);
    at = nfa.append_bytes(tool.name, at);
    if (!format.name_prefix.empty())
      at = nfa.append(*repeat(characters({{'0', '9'}}), 1, 4), nfa.append_bytes(":", at));
    at = append_tag(nfa, format.separator, at);
    call_to(at, end);
    if (format.name == "deepseek") {  // the older form: function, separator, name and fenced arguments
      at = append_tag(nfa, format.separator, nfa.append_bytes("function", from));
      at = nfa.append_bytes("\n```json\n", nfa.append_bytes(tool.name, at));
      const uint32_t behind = nfa.add_state();
      call_to(at, behind);
      nfa.add_epsilon(nfa.append_bytes("\n```", behind), end);
    }
    return end;
  }

  const AnswerPlace& place_;
  const CallRule& calls_;
  Budget budget_;
  GrammarBuilder builder_;
  JsonRules json_;
  CallTags tags_;
  JsonRules tagged_json_;  ///< of the values of tagged calls
};

}  // namespace

std::unique_ptr<TokenConstraint> json_schema_constraint(const Json& schema, const AnswerPlace& place,
                                                        const CallRule& calls, bool strict) {
  AnswerBuilder answer(place, calls);
  uint32_t content = 0;
  try {
    const SchemaRule rule{strict ? Unkept::Error : Unkept::UniqueMayLack, place.notes};
    content = SchemaCompiler(schema, answer.json(), rule).rule();
  } catch (const Error& error) {
    fail("schema: {}", error.what());
  }
  return answer.finish(content);
}

std::unique_ptr<TokenConstraint> json_object_constraint(const AnswerPlace& place, const CallRule& calls) {
  AnswerBuilder answer(place, calls);
  return answer.finish(answer.json().any_object());
}

std::unique_ptr<TokenConstraint> gbnf_constraint(std::string_view grammar, const AnswerPlace& place,
                                                 const CallRule& calls) {
  AnswerBuilder answer(place, calls);
  uint32_t content = 0;
  try {
    content = add_gbnf(grammar, answer.builder());
  } catch (const Error& error) {
    fail("grammar: {}", error.what());
  }
  return answer.finish(content, true);
}

std::unique_ptr<TokenConstraint> tool_call_constraint(const AnswerPlace& place, const CallRule& calls) {
  if (calls.when != CallRule::When::Required) fail("tools: calls must be required here");
  return AnswerBuilder(place, calls).finish(std::nullopt);
}

}  // namespace sluice::text
