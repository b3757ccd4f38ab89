// Whole answers: reasoning, then content or tool calls, each in the way of the model's output format.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/constraint.h"
#include "text/grammar/follower.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/schema.h"
#include "text/json_text.h"
#include "text/tool_types.h"

namespace sluice::text {
namespace {

using namespace grammar;  // NOLINT: this file speaks of little else

// States, edges and steps of one request's grammar: about half a second and 100 MB at most.
constexpr int64_t kMostWork = 4'000'000;

/// A tool of the request.
struct Tool {
  std::string name;
  const Json* parameters;
};

class AnswerBuilder {
 public:
  AnswerBuilder(const AnswerPlace& place, const CallRule& calls)
      : place_(place),
        calls_(calls),
        budget_(kMostWork),
        builder_(budget_),
        json_(builder_, JsonStringKind::Any),
        tagged_json_(builder_, JsonStringKind::WithoutValueClose) {
    if (!place.vocabulary) fail("no vocabulary");
  }

  JsonRules& json() { return json_; }
  GrammarBuilder& builder() { return builder_; }

  /// The answer whose content is of this rule; none: calls alone.
  std::unique_ptr<TokenConstraint> finish(std::optional<uint32_t> content) {
    Nfa nfa(budget_);
    uint32_t at = nfa.add_state();
    if (place_.format != nullptr && place_.starts_in_thinking && place_.format->thinks)
      at = append_reasoning(nfa, at);
    at = nfa.append(*repeat(characters({{'\n', '\n'}, {' ', ' '}}), 0, 2), at);
    const uint32_t end = nfa.add_state();
    if (content) nfa.add_call(at, *content, end);
    if (calls_.when != CallRule::When::Never) nfa.add_epsilon(append_calls(nfa, at), end);
    nfa.accepting = end;
    const uint32_t root = builder_.add_rule("the answer");
    builder_.define(root, std::move(nfa));
    auto compiled = std::make_shared<CompiledGrammar>(place_.vocabulary, builder_.finish(root));
    auto follower = std::make_unique<Follower>(std::move(compiled));
    follower->warm_up();
    return follower;
  }

 private:
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
    std::vector<std::string_view> tags = {kThinkClose};
    if (place_.format->calls != CallSyntax::None) tags.push_back(place_.format->call_open);
    from = append(nfa, without(tags, Writing::Plain, budget_), from);
    return append_tag(nfa, kThinkClose, from);
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
    std::vector<Tool> all = tools();
    const uint32_t call = builder_.add_rule("tool call");
    Nfa one(budget_);
    const uint32_t start = one.add_state();
    one.accepting = one.add_state();
    for (const Tool& tool : all) {
      constexpr std::string_view kNotInNames = " \t\n\v\f\r<>{}\"'`";
      if (tool.name.empty() || tool.name.find_first_of(kNotInNames) != std::string::npos)
        fail("tools: \"{}\": calls cannot hold a name with white space, quotes or brackets", tool.name);
      try {
        const uint32_t opened = append_tag(one, format->call_open, start);
        const uint32_t written = format->calls == CallSyntax::Tagged ? append_tagged(one, tool, opened)
                                                                     : append_json(one, tool, opened);
        one.add_epsilon(append_tag(one, format->call_close, written), one.accepting);
      } catch (const Error& error) {
        fail("tools: {}: {}", tool.name, error.what());
      }
    }
    builder_.define(call, std::move(one));
    from = append_tag(nfa, format->section_open, from);
    from = append_line_end(nfa, from);
    uint32_t behind = nfa.add_state();
    nfa.add_call(from, call, behind);
    if (calls_.parallel) nfa.add_call(append_line_end(nfa, behind), call, behind);
    if (!format->section_close.empty())
      behind = append_tag(nfa, format->section_close, append_line_end(nfa, behind));
    return behind;
  }

  uint32_t arguments_rule(const Tool& tool) {
    if (tool.parameters == nullptr) return json_.any_object();
    schemas_.push_back(std::make_unique<SchemaCompiler>(*tool.parameters, json_));
    // Arguments are an object, whatever the schema says.
    static const Json kObject = Json::parse(R"({"type": "object"})");
    return schemas_.back()->rule_of({{tool.parameters}, {&kObject}});
  }

  // name<arg_key>key</arg_key><arg_value>value</arg_value>... Line ends may stand between the tags.
  uint32_t append_tagged(Nfa& nfa, const Tool& tool, uint32_t from) {
    from = append_line_end(nfa, nfa.append_bytes(tool.name, from));
    if (tool.parameters == nullptr) return from;
    schemas_.push_back(std::make_unique<SchemaCompiler>(*tool.parameters, tagged_json_));
    SchemaCompiler& schema = *schemas_.back();
    const ToolTypes types(Json::array({{{"name", tool.name}, {"parameters", *tool.parameters}}}));
    for (const SchemaCompiler::Property& property : schema.properties()) {
      if (property.key.find("</arg_key>") != std::string::npos || trimmed(property.key) != property.key ||
          property.key.empty())
        fail("$.properties: \"{}\": calls cannot hold this name", property.key);
      uint32_t at = append_tag(nfa, "<arg_key>", from);
      at = append_tag(nfa, "</arg_key>", nfa.append_bytes(property.key, at));
      at = append_tag(nfa, "<arg_value>", append_line_end(nfa, at));
      // Whoever reads the call takes text for a string wherever the schema may mean one (typed_value).
      const TypeSet read_as = types.types(tool.name, property.key);
      if (read_as == 0 || (read_as & kString) != 0) {
        const Dfa text = schema.plain_text(property.items);
        if (text.states.empty() && property.required)
          fail("$.properties.{}: its type cannot be told, so that calls cannot hold it", property.key);
        at = append(nfa, text, at);
      } else {
        const uint32_t behind = nfa.add_state();
        nfa.add_call(at, schema.rule_of(property.items), behind);
        at = behind;
      }
      at = append_line_end(nfa, append_tag(nfa, kValueClose, at));
      if (!property.required) nfa.add_epsilon(from, at);
      from = at;
    }
    return from;
  }

  // {"name": ..., "arguments": {...}}, or the name, a separator and the arguments.
  uint32_t append_json(Nfa& nfa, const Tool& tool, uint32_t from) {
    const OutputFormat& format = *place_.format;
    const uint32_t arguments = arguments_rule(tool), end = nfa.add_state();
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
  JsonRules tagged_json_;  ///< of what stands between <arg_value> and </arg_value>
  std::vector<std::unique_ptr<SchemaCompiler>> schemas_;
};

}  // namespace

std::unique_ptr<TokenConstraint> json_schema_constraint(const Json& schema, const AnswerPlace& place,
                                                        const CallRule& calls) {
  AnswerBuilder answer(place, calls);
  uint32_t content = 0;
  SchemaCompiler compiler(schema, answer.json());
  try {
    content = compiler.rule();
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
  return answer.finish(content);
}

std::unique_ptr<TokenConstraint> tool_call_constraint(const AnswerPlace& place, const CallRule& calls) {
  if (calls.when != CallRule::When::Required) fail("tools: calls must be required here");
  return AnswerBuilder(place, calls).finish(std::nullopt);
}

}  // namespace sluice::text
