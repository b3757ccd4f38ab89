#include "text/call_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/json_text.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool is_result(const Json& message) { return message["role"] == "tool" || message["role"] == "function"; }

std::string text_of(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return {};
  return content->is_string() ? content->get<std::string>() : dumped(*content);
}

std::string call_text(const Json& call) {
  const Json& function = call.contains("function") ? call["function"] : call;
  const Json arguments = function.value("arguments", Json::object());
  return fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                     dumped(function.value("name", Json())),
                     arguments.is_string() ? arguments.get<std::string>() : dumped(arguments));
}

std::string tools_text(const Json& tools) {
  std::string list;
  for (const Json& tool : tools) list += dumped(tool) + "\n";
  return "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
         "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n" +
         list +
         "</tools>\n\nFor each function call, return a json object with function name and arguments within "
         "<tool_call></tool_call> XML tags:\n<tool_call>\n"
         "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
}

void append_text(Json& message, std::string_view text) {
  std::string content = text_of(message);
  if (!content.empty()) content += "\n\n";
  message["content"] = content.append(text);
}

// Whether anything of a conversation is about calls.
bool calls_anything(const Json& messages) {
  for (const Json& message : messages)
    if (message.contains("tool_calls") || is_result(message)) return true;
  return false;
}

/// The name of a schema's type; of several the first that is not null. Empty: it says none.
std::string type_word(const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) return {};
  if (type->is_string()) return *type == "null" ? "" : type->get<std::string>();
  if (type->is_array())
    for (const Json& one : *type)
      if (one.is_string() && one != "null") return one.get<std::string>();
  return {};
}

/// The first of a schema's alternatives that is more than null, or the schema.
const Json& first_alternative(const Json& schema) {
  if (!type_word(schema).empty()) return schema;
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto list = schema.find(key);
    if (list == schema.end() || !list->is_array()) continue;
    for (const Json& one : *list)
      if (one.is_object() && !type_word(one).empty()) return one;
  }
  return schema;
}

Json schema_in_plain_words(const Json& given) {
  if (!given.is_object()) return {{"type", "string"}};
  const Json& schema = first_alternative(given);
  const auto is = [&](const char* key, Json::value_t type) {
    return schema.contains(key) && schema[key].type() == type;
  };
  const bool has_properties = is("properties", Json::value_t::object);
  std::string type = type_word(schema);
  if (type.empty()) type = has_properties ? "object" : schema.contains("items") ? "array" : "string";
  Json plain = {{"type", type}};
  for (const Json* from : {&schema, &given})
    if (const auto words = from->find("description"); words != from->end() && words->is_string())
      plain["description"] = *words;
  if (is("enum", Json::value_t::array) && !schema["enum"].empty()) plain["enum"] = schema["enum"];
  if (type == "array")
    plain["items"] = schema_in_plain_words(schema.contains("items") ? schema["items"] : Json());
  if (type != "object") return plain;
  plain["properties"] = Json::object();
  if (has_properties)
    for (const auto& [name, property] : schema["properties"].items())
      plain["properties"][name] = schema_in_plain_words(property);
  plain["required"] = Json::array();
  if (is("required", Json::value_t::array))
    for (const Json& name : schema["required"])
      if (name.is_string()) plain["required"].push_back(name);
  return plain;
}

}  // namespace

void write_calls_as_text(Json& messages, const Json& tools, bool knows_system) {
  const bool any_tools = tools.is_array() && !tools.empty();
  if (!any_tools && !calls_anything(messages)) return;
  Json out = Json::array();
  bool behind_result = false;  // a user's message goes on in the one of the results: turns alternate
  for (Json& message : messages) {
    if (is_result(message)) {
      const std::string text = fmt::format("<tool_response>\n{}\n</tool_response>", text_of(message));
      if (behind_result)
        out.back()["content"] = text_of(out.back()) + "\n" + text;
      else
        out.push_back({{"role", "user"}, {"content", text}});
      behind_result = true;
      continue;
    }
    if (std::exchange(behind_result, false) && message["role"] == "user") {
      append_text(out.back(), text_of(message));
      continue;
    }
    if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array()) {
      std::string text;
      for (const Json& call : *calls) text += (text.empty() ? "" : "\n") + call_text(call);
      append_text(message, text);
      message.erase("tool_calls");
    }
    out.push_back(std::move(message));
  }
  if (any_tools) {
    const char* role = knows_system ? "system" : "user";
    if (out.empty() || out.front()["role"] != role)
      out.insert(out.begin(), Json{{"role", role}, {"content", tools_text(tools)}});
    else if (knows_system)
      append_text(out.front(), tools_text(tools));
    else
      out.front()["content"] = tools_text(tools) + "\n\n" + text_of(out.front());
  }
  messages = std::move(out);
}

// In the words that DeepSeek's models are trained with.
ToolsText describe_tools(const Json& tools, std::string_view call) {
  ToolsText out{.tools = "## Tools\n\nYou have access to the following tools:\n\n", .how = {}};
  for (const Json& tool : tools) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    const auto member = [&](const char* name, Json otherwise) {
      return function.is_object() && function.contains(name) ? function[name] : std::move(otherwise);
    };
    const auto words = [](const Json& value) {
      return value.is_string() ? value.get<std::string>() : dumped(value);
    };
    out.tools += fmt::format("### {}\nDescription: {}\n\nParameters: {}\n\n", words(member("name", "")),
                             words(member("description", "")), dumped(member("parameters", Json::object())));
  }
  out.how = fmt::format(
      "Call a tool in exactly this form:\n\n{}\n\ntool_call_name is the name of one of the tools, "
      "tool_call_arguments an object of JSON that follows its parameters.",
      call);
  return out;
}

void split_calls(Json& messages) {
  Json out = Json::array();
  for (size_t at = 0; at < messages.size();) {
    Json message = std::move(messages[at++]);
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array() || calls->size() < 2) {
      out.push_back(std::move(message));
      continue;
    }
    std::vector<Json> results;
    while (at < messages.size() && is_result(messages[at])) results.push_back(std::move(messages[at++]));
    const Json all = std::move(*calls);
    for (size_t i = 0; i < all.size(); ++i) {
      message["tool_calls"] = Json::array({all[i]});
      out.push_back(message);
      message["content"] = "";
      message.erase("reasoning_content");
      message.erase("thinking");
      // By its id, else in turn.
      const auto is_its = [&](const Json& result) {
        return all[i].contains("id") && result.contains("tool_call_id") &&
               result["tool_call_id"] == all[i]["id"];
      };
      auto found = std::find_if(results.begin(), results.end(), is_its);
      const bool last = i + 1 == all.size();
      if (found == results.end() && !results.empty() && !results.front().contains("tool_call_id"))
        found = results.begin();
      if (found != results.end()) {
        out.push_back(std::move(*found));
        results.erase(found);
      }
      if (last)
        for (Json& result : results) out.push_back(std::move(result));
    }
  }
  messages = std::move(out);
}

void complete_tools(Json& tools, bool needs_description, bool needs_parameters) {
  if (!tools.is_array()) return;
  for (Json& tool : tools) {
    Json* function = &tool;
    if (tool.is_object() && tool.contains("function")) function = &tool["function"];
    if (!function->is_object()) continue;
    for (const char* key : {"description", "parameters"})
      if (function->contains(key) && (*function)[key].is_null()) function->erase(key);
    if (needs_description && !function->contains("description")) (*function)["description"] = "";
    if (needs_parameters && !function->contains("parameters"))
      (*function)["parameters"] = {{"type", "object"}, {"properties", Json::object()}};
  }
}

Json tools_in_plain_words(const Json& tools) {
  Json plain = Json::array();
  for (const Json& tool : tools) {
    const Json& function = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object()) continue;
    const auto text = [&](const char* key) {
      const auto value = function.find(key);
      return value != function.end() && value->is_string() ? *value : Json("");
    };
    const auto given = function.find("parameters");
    Json parameters = given == function.end() ? Json::object() : *given;
    if (parameters.is_object()) parameters["type"] = "object";
    plain.push_back({{"type", "function"},
                     {"function",
                      {{"name", text("name")},
                       {"description", text("description")},
                       {"parameters", schema_in_plain_words(parameters)}}}});
  }
  return plain;
}

}  // namespace sluice::text
