#include "text/message_form.h"

#include <array>
#include <utility>

#include "text/exact_json.h"

namespace sluice::text {
namespace {

using Json = nlohmann::ordered_json;

// A template is a stranger's program: this many steps show a few short messages many times over.
constexpr int64_t kProbeSteps = 1'000'000;

// Words that no template has in it. The name of a call has nine letters and digits, as some templates ask.
constexpr const char* kWords = "sluicewords";
constexpr const char* kMoreWords = "sluiceothers";
constexpr const char* kProbeName = "sluicename";
constexpr const char* kArguments = R"({"sluicekey": "sluicevalue"})";

Json message(const char* role, const Json& content) { return {{"role", role}, {"content", content}}; }

Json call_message(const Json& content, const Json& arguments) {
  Json out = message("assistant", content);
  out["tool_calls"] = {{{"id", "callslu01"},
                        {"type", "function"},
                        {"function", {{"name", kProbeName}, {"arguments", arguments}}}}};
  return out;
}

Json result_message(const Json& content) {
  return {{"role", "tool"}, {"tool_call_id", "callslu01"}, {"name", kProbeName}, {"content", content}};
}

/// The variable where a conversation has none.
Json no_tools(bool is_a_list) { return is_a_list ? Json::array() : Json(); }

/// Renders small conversations.
class Probe {
 public:
  Probe(const jinja::Template& chat_template, const Json& variables, Json no_tools = nullptr)
      : template_(chat_template), variables_(variables), no_tools_(std::move(no_tools)) {
    options_.limits.steps = kProbeSteps;
  }

  /// The prompt, or nothing: the template fails or refuses.
  std::string render(Json messages, Json tools = nullptr) const {
    Json variables = variables_;
    variables["messages"] = std::move(messages);
    variables["tools"] = tools.is_null() ? no_tools_ : std::move(tools);
    variables["documents"] = nullptr;
    variables["add_generation_prompt"] = true;
    try {
      return template_.render(variables, options_);
    } catch (const jinja::TemplateError&) {
      return {};
    }
  }
  bool shows(Json messages, const char* words) const {
    return render(std::move(messages)).find(words) != std::string::npos;
  }

 private:
  const jinja::Template& template_;
  const Json& variables_;
  Json no_tools_;
  jinja::RenderOptions options_;
};

Json with_call(const Json& content, const Json& arguments) {
  return Json::array({message("user", "hello"), call_message(content, arguments), result_message("done")});
}

void find_call_form(const Probe& probe, MessageForm& form) {
  const auto shows_object = [&](const Json& content) {
    const std::string prompt = probe.render(with_call(content, parse_plain(kArguments)));
    // In single quotes: that is no JSON, the template meant to join a text.
    return prompt.find(kProbeName) != std::string::npos && prompt.find("sluicekey") != std::string::npos &&
           prompt.find("sluicevalue") != std::string::npos && prompt.find("'sluicekey'") == std::string::npos;
  };
  const auto shows_text = [&](const Json& content) {
    const std::string prompt = probe.render(with_call(content, kArguments));
    return prompt.find(kProbeName) != std::string::npos && prompt.find(kArguments) != std::string::npos;
  };
  const bool text_at_all = shows_text("") || shows_text(nullptr);
  if (shows_object("")) {
    form.takes_broken_arguments = shows_text("");
  } else if (shows_object(nullptr)) {
    form.null_beside_calls = true;
    form.takes_broken_arguments = shows_text(nullptr);
  } else if (text_at_all) {
    form.arguments_as_text = form.takes_broken_arguments = true;
    form.null_beside_calls = !shows_text("");
  } else {
    return;  // no calls, or in no form that is known here
  }
  form.shows_calls = true;
  const Json arguments = form.arguments_as_text ? Json(kArguments) : parse_plain(kArguments);
  const std::string beside = probe.render(with_call(kWords, arguments));
  if (beside.find(kWords) != std::string::npos && beside.find(kProbeName) != std::string::npos) return;
  const Json empty = form.null_beside_calls ? Json() : Json("");
  const std::string apart = probe.render(
      Json::array({message("user", "hello"), message("assistant", kWords), call_message(empty, arguments),
                   result_message("done"), message("assistant", "bye")}));
  form.text_before_calls =
      apart.find(kWords) != std::string::npos && apart.find(kProbeName) != std::string::npos;
}

void find_ids(const Probe& probe, MessageForm& form) {
  if (!form.shows_calls) return;
  const Json arguments = form.arguments_as_text ? Json(kArguments) : parse_plain(kArguments);
  Json conversation = with_call(form.null_beside_calls ? Json() : Json(""), arguments);
  conversation[1]["tool_calls"][0]["id"] = conversation[2]["tool_call_id"] = "call_of_more_than_nine";
  form.nine_letter_ids = !probe.shows(std::move(conversation), kProbeName);
}

/// Under which key a message's reasoning is shown, beside a call at least.
void find_reasoning(const Probe& probe, MessageForm& form) {
  if (!form.shows_calls) return;
  const Json arguments = form.arguments_as_text ? Json(kArguments) : parse_plain(kArguments);
  const auto with = [&](const std::string& key, const Json& content) {
    Json conversation = with_call(content, arguments);
    conversation[1][key] = kWords;
    return conversation;
  };
  const Json empty = form.null_beside_calls ? Json() : Json("");
  if (probe.shows(with(form.reasoning_key, empty), kWords) || !probe.shows(with("thinking", empty), kWords))
    return;
  form.reasoning_key = "thinking";
  form.text_or_reasoning = !probe.shows(with("thinking", kMoreWords), kWords);
}

void find_parts(const Probe& probe, const MessageForm& form, std::set<std::string>& parts) {
  const Json part = Json::array({{{"type", "text"}, {"text", kWords}}});
  const Json arguments = form.arguments_as_text ? Json(kArguments) : parse_plain(kArguments);
  const Json empty = form.null_beside_calls ? Json() : Json("");
  const auto look = [&](const char* role, const auto& conversation) {
    if (!probe.shows(conversation(Json(kWords)), kWords) && probe.shows(conversation(part), kWords))
      parts.insert(role);
  };
  look("user", [](const Json& content) { return Json::array({message("user", content)}); });
  const bool user = parts.contains("user");
  const Json hello = user ? Json::array({{{"type", "text"}, {"text", "hello"}}}) : Json("hello");
  look("system", [&](const Json& content) {
    return Json::array({message("system", content), message("user", hello)});
  });
  look("assistant", [&](const Json& content) {
    return Json::array({message("user", hello), message("assistant", content), message("user", hello)});
  });
  look("tool", [&](const Json& content) {
    return Json::array({message("user", hello), call_message(empty, arguments), result_message(content)});
  });
}

void find_turns(const Probe& probe, MessageForm& form) {
  const auto content = [&](const char* role, const std::string& text) {
    const bool parts = form.parts.contains(role);
    return message(role, parts ? Json::array({{{"type", "text"}, {"text", text}}}) : Json(text));
  };
  const auto shows_both = [&](const Json& messages) {
    const std::string prompt = probe.render(messages);
    return prompt.find(kWords) != std::string::npos && prompt.find(kMoreWords) != std::string::npos;
  };
  const std::string joined = std::string(kWords) + "\n\n" + kMoreWords;
  const bool shows_joined = shows_both(Json::array({content("user", joined)}));
  form.turns_alternate =
      shows_joined && !shows_both(Json::array({content("user", kWords), content("user", kMoreWords)}));
  const Json hello = content("user", "hello");
  const auto after_silence = [&](const char* said) {
    return shows_both(Json::array({hello, content("assistant", said), content("user", joined)}));
  };
  form.nobody_silent = !after_silence("") && after_silence(" ");
  const Json user = content("user", "hello");
  const Json two = Json::array({content("system", kWords), content("system", kMoreWords), user});
  const Json later = Json::array(
      {content("system", kWords), user, content("assistant", "hello"), content("system", kMoreWords), user});
  if (shows_both(two) && shows_both(later)) return;
  form.one_system_message = shows_both(Json::array({content("system", joined), user}));
  form.system_in_user_message = !form.one_system_message && shows_joined;
}

void find_lone_results(const Probe& probe, MessageForm& form) {
  if (!form.shows_calls) return;
  const auto shows = [&](bool with_calls) {
    MessageForm tried = form;
    tried.results_need_calls = with_calls;
    Json talk = Json::array({message("user", "hello"), result_message(kWords)});
    put_in_form(tried, talk);
    return probe.shows(std::move(talk), kWords);
  };
  form.results_need_calls = !shows(false) && shows(true);
}

/// Where turns alternate, a text before a call is a turn that needs another one behind the result: whether
/// that shows it.
void find_text_before_calls(const Probe& probe, MessageForm& form) {
  if (!form.turns_alternate || !form.shows_calls || form.text_before_calls) return;
  const auto shows = [&](bool apart) {
    MessageForm tried = form;
    tried.text_before_calls = apart;
    Json talk = with_call(kWords, parse_plain(kArguments));
    talk.push_back(message("assistant", "bye"));
    put_in_form(tried, talk);
    const std::string prompt = probe.render(std::move(talk));
    return prompt.find(kWords) != std::string::npos && prompt.find(kProbeName) != std::string::npos;
  };
  form.text_before_calls = !shows(false) && shows(true);
}

void find_tool_form(const Probe& probe, MessageForm& form) {
  const bool parts = form.parts.contains("user");
  const Json hello = parts ? Json::array({{{"type", "text"}, {"text", "hello"}}}) : Json("hello");
  const auto renders = [&](const char* without) {
    Json function = {{"name", kProbeName},
                     {"description", kWords},
                     {"parameters", {{"type", "object"}, {"properties", Json::object()}}}};
    function.erase(without);
    const Json tools = Json::array({{{"type", "function"}, {"function", std::move(function)}}});
    return !probe.render(Json::array({message("user", hello)}), tools).empty();
  };
  form.needs_description = !renders("description");
  form.needs_parameters = !renders("parameters");
}

/// All system messages become one text: the first message, or the beginning of the first user's.
void join_system(Json& messages, bool in_user_message) {
  std::string all;
  Json others = Json::array();
  for (Json& one : messages) {
    if (one["role"] != "system") {
      others.push_back(std::move(one));
      continue;
    }
    const auto& text = one["content"].get_ref<const std::string&>();
    if (!all.empty() && !text.empty()) all += "\n\n";
    all += text;
  }
  if (others.size() == messages.size()) {
    messages = std::move(others);
    return;
  }
  messages = Json::array();
  bool placed = false;
  if (!in_user_message) {
    messages.push_back(message("system", all));
    placed = true;
  }
  for (Json& one : others) {
    if (!placed && one["role"] == "user") {
      one["content"] = all + "\n\n" + one["content"].get<std::string>();
      placed = true;
    }
    messages.push_back(std::move(one));
  }
  if (!placed) messages.push_back(message("user", all));
}

/// Adds what the same speaker says next.
void join_turns(Json& turn, const Json& next) {
  for (const char* key : {"content", "reasoning_content"}) {
    const auto more = next.find(key);
    if (more == next.end() || *more == "") continue;
    std::string text = turn.value(key, "");
    if (!text.empty()) text += "\n\n";
    turn[key] = text + more->get<std::string>();
  }
}

/// Templates that want user and assistant in turn count neither calls nor their results. Of two in a row one
/// is made; where calls stand between, or the assistant speaks first, the other says a space: some templates
/// refuse who says nothing.
void alternate_turns(Json& messages) {
  Json out = Json::array();
  std::string due = "user";
  for (Json& one : messages) {
    const std::string role = one["role"];
    const bool is_turn = role == "user" || (role == "assistant" && !one.contains("tool_calls"));
    if (is_turn && role != due) {
      if (!out.empty() && out.back()["role"] == role && !out.back().contains("tool_calls")) {
        join_turns(out.back(), one);
        continue;
      }
      out.push_back(message(due.c_str(), " "));
    }
    if (is_turn) due = role == "user" ? "assistant" : "user";
    out.push_back(std::move(one));
  }
  messages = std::move(out);
}

/// An id of nine letters and digits, always the same for the same one.
std::string nine_letter_id(const std::string& id) {
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  if (id.size() == 9 && id.find_first_not_of(kLetters) == std::string::npos) return id;
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char letter : id) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3u;
  std::string letters;
  for (int i = 0; i < 9; ++i, hash /= kLetters.size()) letters += kLetters[hash % kLetters.size()];
  return letters;
}

void shorten_ids(Json& one) {
  const auto shorten = [](Json& holder, const char* name) {
    if (const auto id = holder.find(name); id != holder.end() && id->is_string())
      *id = nine_letter_id(id->get<std::string>());
  };
  shorten(one, "tool_call_id");
  if (one.contains("tool_calls"))
    for (Json& call : one["tool_calls"]) shorten(call, "id");
}

/// A result whose call a client has cut off gets one that says nothing.
void add_lacking_calls(Json& messages) {
  Json out = Json::array();
  bool behind_call = false;
  for (Json& one : messages) {
    const bool is_result = one["role"] == "tool";
    if (is_result && !behind_call) {
      Json call = call_message("", Json::object());
      Json& made = call["tool_calls"][0];
      if (one.contains("tool_call_id")) made["id"] = one["tool_call_id"];
      made["function"]["name"] = one.value("name", Json()).is_string() ? one["name"] : Json("tool");
      out.push_back(std::move(call));
    }
    behind_call = is_result || one.contains("tool_calls");
    out.push_back(std::move(one));
  }
  messages = std::move(out);
}

/// What a message with calls says becomes a message before it, with its reasoning (unless that has a key of
/// its own beside calls).
void set_text_apart(const MessageForm& form, Json& messages) {
  Json out = Json::array();
  for (Json& one : messages) {
    if (one.contains("tool_calls") && one["content"] != "") {
      out.push_back(message("assistant", std::exchange(one["content"], "")));
      const auto reasoning = one.find("reasoning_content");
      if (reasoning != one.end() && form.reasoning_key == "reasoning_content") {
        out.back()["reasoning_content"] = std::move(*reasoning);
        one.erase("reasoning_content");
      }
    }
    out.push_back(std::move(one));
  }
  messages = std::move(out);
}

void put_calls(const MessageForm& form, Json& one) {
  for (Json& call : one["tool_calls"]) {
    Json& function = call.contains("function") ? call["function"] : call;
    Json& arguments = function["arguments"];
    if (form.arguments_as_text && function.contains("arguments_text")) arguments = function["arguments_text"];
    if (form.arguments_as_text && !arguments.is_string()) arguments = dump_exact(arguments, true);
    function.erase("arguments_text");
    if (!form.takes_broken_arguments && arguments.is_string())
      arguments = Json::object({{"arguments", std::move(arguments)}});
  }
  if (form.null_beside_calls && one["content"] == "") one["content"] = nullptr;
}

}  // namespace

MessageForm form_of_template(const jinja::Template& chat_template, const Json& variables) {
  MessageForm form;
  const Json hello = Json::array({message("user", "hello")});
  form.tools_are_a_list = Probe(chat_template, variables).render(hello).empty() &&
                          !Probe(chat_template, variables, no_tools(true)).render(hello).empty();
  const Probe probe(chat_template, variables, no_tools(form.tools_are_a_list));
  find_call_form(probe, form);
  find_ids(probe, form);
  find_reasoning(probe, form);
  find_parts(probe, form, form.parts);
  find_turns(probe, form);
  find_text_before_calls(probe, form);
  find_lone_results(probe, form);
  find_tool_form(probe, form);
  return form;
}

std::string call_shape(const jinja::Template& chat_template, const Json& variables, const MessageForm& form,
                       std::string_view open, std::string_view close) {
  if (!form.shows_calls || open.empty() || close.empty()) return {};
  const Json arguments = form.arguments_as_text ? Json(kArguments) : parse_plain(kArguments);
  const Json empty = form.null_beside_calls ? Json() : Json("");
  std::string text = Probe(chat_template, variables, no_tools(form.tools_are_a_list))
                         .render(Json::array({message("user", "hello"), call_message(empty, arguments)}));
  const size_t begin = text.find(open), end = text.rfind(close);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  text = text.substr(begin, end + close.size() - begin);
  const size_t name = text.find(kProbeName), first = text.find(R"({"sluicekey")"),
               last = text.find('}', first);
  if (name == std::string::npos || first == std::string::npos || last == std::string::npos || first < name)
    return {};
  text.replace(first, last + 1 - first, "tool_call_arguments");
  return text.replace(name, std::string_view(kProbeName).size(), "tool_call_name");
}

void put_in_form(const MessageForm& form, Json& messages) {
  if (form.one_system_message || form.system_in_user_message)
    join_system(messages, form.system_in_user_message);
  if (form.results_need_calls) add_lacking_calls(messages);
  if (form.text_before_calls) set_text_apart(form, messages);
  if (form.turns_alternate) alternate_turns(messages);
  if (form.nobody_silent)
    for (Json& one : messages)
      if (one["role"] == "assistant" && one["content"] == "" && !one.contains("tool_calls"))
        one["content"] = " ";
  Json out = Json::array();
  for (Json& one : messages) {
    if (form.nine_letter_ids) shorten_ids(one);
    if (const auto said = one.find("reasoning_content");
        said != one.end() && form.reasoning_key != "reasoning_content") {
      Json reasoning = std::move(*said);
      one.erase(said);
      if (form.text_or_reasoning && one.contains("tool_calls") && !one["content"].empty() &&
          one["content"] != "") {
        reasoning = reasoning.get<std::string>() + "\n\n" + one["content"].get<std::string>();
        one["content"] = "";
      }
      one[form.reasoning_key] = std::move(reasoning);
    }
    if (one.contains("tool_calls")) put_calls(form, one);
    if (form.parts.contains(one["role"].get<std::string>()) && one["content"].is_string())
      one["content"] = Json::array({{{"type", "text"}, {"text", std::move(one["content"])}}});
    out.push_back(std::move(one));
  }
  messages = std::move(out);
}

}  // namespace sluice::text
