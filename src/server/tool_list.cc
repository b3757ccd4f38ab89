#include "server/tool_list.h"

#include "server/fields.h"
#include "text/exact_json.h"
#include "text/json_text.h"

namespace sluice::server {

namespace {

Json function_tool(const std::string& name, const Json* description, const Json* parameters) {
  Json function = {{"name", name}};
  if (description && description->is_string()) function["description"] = *description;
  if (parameters) function["parameters"] = *parameters;
  return {{"type", "function"}, {"function", std::move(function)}};
}

std::string required_name(Fields& tool) {
  const auto name = tool.string("name");
  if (!name) bad_field(tool.path_of("name"), "is missing");
  return *name;
}

void leave_out(const Fields& tool, const std::string& type, LeftOut& left_out) {
  left_out.push_back(fmt::format("{}: {} cannot run here", tool.path(), text::json_quote(type)));
}

Json string_schema(const char* description) { return {{"type", "string"}, {"description", description}}; }

/// A tool that takes any text is a function with one argument.
Json custom_tool(Fields& tool, const std::string& name) {
  std::string description = tool.string("description").value_or("");
  Json input = string_schema("the tool's whole input, as plain text");
  if (const Json* form = tool.object("format")) {
    Fields format(*form, tool.path_of("format"));
    const Json* inner = format.object("grammar");  // chat completions put it one level deeper
    Fields grammar(inner ? *inner : *form, inner ? format.path_of("grammar") : format.path());
    if (const auto definition = grammar.string("definition"))
      description += fmt::format("\n\nThe input follows this grammar ({}):\n{}",
                                 grammar.string("syntax").value_or("lark"), *definition);
  }
  const Json parameters = {
      {"type", "object"}, {"properties", {{"input", std::move(input)}}}, {"required", {"input"}}};
  const Json text = std::move(description);
  return function_tool(name, &text, &parameters);
}

Json local_shell_tool() {
  const Json description = "Runs a command in a shell and returns its output.";
  const Json parameters = {
      {"type", "object"},
      {"properties",
       {{"command",
         {{"type", "array"}, {"items", {{"type", "string"}}}, {"description", "program and arguments"}}},
        {"working_directory", string_schema("where it runs")},
        {"timeout_ms", {{"type", "integer"}, {"description", "milliseconds after which it is ended"}}}}},
      {"required", {"command"}}};
  return function_tool("local_shell", &description, &parameters);
}

Json enum_schema(std::initializer_list<const char*> values) {
  Json list = Json::array();
  for (const char* value : values) list.push_back(value);
  return {{"type", "string"}, {"enum", std::move(list)}};
}

Json range_schema() {
  return {{"type", "array"},
          {"items", {{"type", "integer"}}},
          {"description", "first and last line; -1: the end"}};
}

/// Anthropic's tools that a client runs itself, whose schemas its models know by heart; null: none of those.
Json well_known_tool(const std::string& type, const std::string& name) {
  Json description, properties, required = {"command"};
  if (type.starts_with("bash_")) {
    description = "Runs a command in a bash shell that stays open.";
    properties = {{"command", string_schema("the command")},
                  {"restart", {{"type", "boolean"}, {"description", "true: a new shell"}}}};
    required = Json::array();
  } else if (type.starts_with("text_editor_")) {
    description = "Views, creates and edits text files.";
    required.push_back("path");
    properties = {{"command", enum_schema({"view", "create", "str_replace", "insert"})},
                  {"path", string_schema("file or directory")},
                  {"file_text", string_schema("create: the file's text")},
                  {"old_str", string_schema("str_replace: the text to replace, once in the file")},
                  {"new_str", string_schema("str_replace: what takes its place")},
                  {"insert_line", {{"type", "integer"}, {"description", "insert: the line after which"}}},
                  {"insert_text", string_schema("insert: the text")},
                  {"view_range", range_schema()}};
  } else if (type.starts_with("memory_")) {
    description = "Keeps notes in files below /memories.";
    properties = {{"command", enum_schema({"view", "create", "str_replace", "insert", "delete", "rename"})},
                  {"path", string_schema("file or directory below /memories")},
                  {"file_text", string_schema("create: the file's text")},
                  {"old_str", string_schema("str_replace: the text to replace")},
                  {"new_str", string_schema("str_replace: what takes its place")},
                  {"insert_line", {{"type", "integer"}, {"description", "insert: the line after which"}}},
                  {"insert_text", string_schema("insert: the text")},
                  {"old_path", string_schema("rename: the old path")},
                  {"new_path", string_schema("rename: the new path")},
                  {"view_range", range_schema()}};
  } else {
    return nullptr;
  }
  const Json parameters = {
      {"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
  return function_tool(name, &description, &parameters);
}

/// A function whose fields stand in `tool` itself, or in its "function".
Json flat_function(Fields& tool, const std::string& name) {
  return function_tool(name, tool.any("description"), tool.object("parameters"));
}

/// Arguments as an object; what is none is empty.
Json parsed_object(const std::string& arguments) {
  Json parsed = text::is_json(arguments) ? text::parse_exact(arguments) : Json();
  return parsed.is_object() ? parsed : Json::object();
}

/// What local_shell is to run, in the types that its clients read: a model may have written others.
Json shell_action(const std::string& arguments) {
  const Json given = parsed_object(arguments);
  Json action = {{"type", "exec"}, {"command", Json::array()}, {"env", Json::object()}};
  for (const char* name : {"working_directory", "user"})
    if (given.contains(name) && given[name].is_string()) action[name] = given[name];
  if (given.contains("timeout_ms") && given["timeout_ms"].is_number_unsigned())
    action["timeout_ms"] = given["timeout_ms"];
  const auto text_of = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : text::dump_exact(value);
  };
  if (const auto env = given.find("env"); env != given.end() && env->is_object())
    for (const auto& [name, value] : env->items()) action["env"][name] = text_of(value);
  const auto command = given.find("command");
  if (command != given.end() && command->is_array())
    for (const Json& word : *command) action["command"].push_back(text_of(word));
  else if (command != given.end() && command->is_string())
    action["command"] = {"bash", "-lc", *command};
  return action;
}

}  // namespace

CallItem call_item(const ToolOrigin& origin, const std::string& text) {
  CallItem item;
  const auto in_space = [&origin](Json json) {
    if (!origin.space.empty()) json["namespace"] = origin.space;
    return json;
  };
  if (origin.kind == ToolOrigin::Kind::Custom) {
    item.type = "custom_tool_call", item.id_prefix = "ctc_", item.event = "response.custom_tool_call_input";
    item.begun = in_space({{"name", origin.name}, {"input", ""}});
    item.whole = {{"input", text}};
    item.done = {{"input", text}};
  } else if (origin.kind == ToolOrigin::Kind::LocalShell) {
    item.type = "local_shell_call", item.id_prefix = "lsh_";
    item.begun = item.whole = {{"action", shell_action(text)}};
  } else if (origin.kind == ToolOrigin::Kind::ToolSearch) {
    const Json parsed = parsed_object(text);
    item.type = "tool_search_call", item.id_prefix = "tsc_";
    item.begun = item.whole = {{"execution", "client"}, {"arguments", parsed}};
  } else {
    item.type = "function_call", item.id_prefix = "fc_", item.event = "response.function_call_arguments";
    item.begun = in_space({{"name", origin.name}, {"arguments", ""}});
    item.whole = {{"arguments", text}};
    item.done = {{"name", origin.name}, {"arguments", text}};
  }
  return item;
}

std::string name_in_space(const std::string& space, const std::string& name) {
  std::string flat = space;
  if (!flat.empty() && !flat.ends_with("__")) flat += "__";
  flat += name;
  for (char& c : flat) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (!plain) c = '_';
  }
  return flat;
}

Json chat_tools(const Json& list, ToolOrigins& origins, LeftOut& left_out) {
  Json tools = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    Fields tool(list[i], fmt::format("tools[{}]", i));
    const std::string type = tool.string("type").value_or("function");
    if (const Json* function = tool.object("function")) {
      Fields inner(*function, tool.path_of("function"));
      required_name(inner);
      inner.object("parameters");
      tools.push_back(list[i]);
      tools.back()["type"] = "function";
    } else if (const Json* custom = tool.object("custom")) {
      Fields inner(*custom, tool.path_of("custom"));
      const std::string name = required_name(inner);
      tools.push_back(custom_tool(inner, name));
      origins[name] = {ToolOrigin::Kind::Custom, name, ""};
    } else if (type == "function" || (tool.any("name") && tool.object("parameters"))) {
      tools.push_back(flat_function(tool, required_name(tool)));
    } else {
      leave_out(tool, type, left_out);
    }
  }
  return tools;
}

Json responses_tools(const Json& list, ToolOrigins& origins, LeftOut& left_out) {
  using Kind = ToolOrigin::Kind;
  Json tools = Json::array();
  const auto add = [&](Fields& tool, const std::string& space, const auto& self) -> void {
    const auto type = tool.string("type");
    if (!type) bad_field(tool.path_of("type"), "is missing");
    if (*type == "namespace") {
      const std::string inner = required_name(tool);
      const Json* list_of_space = tool.array("tools");
      for (size_t i = 0; list_of_space && i < list_of_space->size(); ++i) {
        Fields one((*list_of_space)[i], fmt::format("{}[{}]", tool.path_of("tools"), i));
        if (space.empty()) self(one, inner, self);
      }
    } else if (*type == "local_shell") {
      tools.push_back(local_shell_tool());
      origins["local_shell"] = {Kind::LocalShell, "local_shell", ""};
    } else if (*type == "tool_search" && tool.string("execution").value_or("") == "client" &&
               tool.object("parameters")) {
      tools.push_back(flat_function(tool, "tool_search"));
      origins["tool_search"] = {Kind::ToolSearch, "tool_search", ""};
    } else if (*type == "custom") {
      const std::string name = required_name(tool), flat = name_in_space(space, name);
      tools.push_back(custom_tool(tool, flat));
      origins[flat] = {Kind::Custom, name, space};
    } else if (*type == "function" && tool.object("function")) {  // as chat completions have it
      Fields inner(*tool.object("function"), tool.path_of("function"));
      tools.push_back(flat_function(inner, required_name(inner)));
    } else if (*type == "function") {
      const std::string name = required_name(tool);
      const std::string flat = space.empty() ? name : name_in_space(space, name);
      tools.push_back(flat_function(tool, flat));
      if (flat != name) origins[flat] = {Kind::Function, name, space};
    } else {
      leave_out(tool, *type, left_out);
    }
  };
  for (size_t i = 0; i < list.size(); ++i) {
    Fields tool(list[i], fmt::format("tools[{}]", i));
    add(tool, "", add);
  }
  return tools;
}

Json anthropic_tools(const Json& list, LeftOut& left_out) {
  Json tools = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    Fields tool(list[i], fmt::format("tools[{}]", i));
    const std::string type = tool.string("type").value_or("custom");
    const Json* schema = tool.object("input_schema");
    if (type == "custom" && !schema) {
      required_name(tool);
      bad_field(tool.path_of("input_schema"), "is missing");
    }
    if (schema) {
      tools.push_back(function_tool(required_name(tool), tool.any("description"), schema));
      continue;
    }
    Json known = well_known_tool(type, tool.string("name").value_or(type.substr(0, type.rfind('_'))));
    if (known.is_null())
      leave_out(tool, type, left_out);
    else
      tools.push_back(std::move(known));
  }
  return tools;
}

}  // namespace sluice::server
