#include "server/chat_request.h"

#include <charconv>
#include <random>
#include <set>

#include "text/exact_json.h"
#include "text/jinja/template.h"
#include "text/json_text.h"
#include "text/thinking_budget.h"

namespace sluice::server {

namespace {

constexpr double kMostBias = 1000;
constexpr size_t kMostBiases = 4096;

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

void read_bias(const Json& bias, const std::string& path, int32_t tokens, engine::SamplingParams& sampling) {
  const auto add = [&](const std::string& where, std::string_view id, const Json& value) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token);
    if (error != std::errc() || end != id.data() + id.size() || token < 0 || token >= tokens)
      bad_field(where, "expected a token id from 0 to {}, not {}", tokens - 1, text::json_quote(id));
    if (!value.is_number()) bad_field(where, "expected a number, not {}", json_kind(value));
    const double number = value.get<double>();
    if (!(number >= -kMostBias && number <= kMostBias))
      bad_field(where, "{}, expected {} to {}", number, -kMostBias, kMostBias);
    sampling.logit_bias.emplace_back(token, static_cast<float>(number));
  };
  if (bias.is_structured() && bias.size() > kMostBiases)
    bad_field(path, "{} entries; at most {} are taken", bias.size(), kMostBiases);
  if (bias.is_object()) {
    for (const auto& [id, value] : bias.items()) add(path, id, value);
    return;
  }
  if (!bias.is_array()) bad_field(path, "expected an object of token ids, not {}", json_kind(bias));
  for (size_t i = 0; i < bias.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const Json& pair = bias[i];
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer())
      bad_field(where, "expected [token id, number]");
    add(where, pair[0].dump(), pair[1]);
  }
}

text::CallRule call_rule(const ChatRequest& request) {
  text::CallRule rule;
  rule.parallel = request.parallel_calls;
  if (!request.conversation.tools.is_array() || request.conversation.tools.empty()) return rule;
  rule.tools = &request.conversation.tools;
  rule.when = text::CallRule::When::Instead;
  if (request.tool_choice.kind == ToolChoice::Kind::Required ||
      request.tool_choice.kind == ToolChoice::Kind::Named) {
    rule.when = text::CallRule::When::Required;
    rule.only = request.tool_choice.name;
  }
  return rule;
}

std::unique_ptr<text::TokenConstraint> make_constraint(const AnswerForm& form, const text::AnswerPlace& place,
                                                       const text::CallRule& rule) {
  if (rule.when == text::CallRule::When::Required) return text::tool_call_constraint(place, rule);
  switch (form.kind) {
    case AnswerForm::Kind::Text: break;
    case AnswerForm::Kind::JsonObject: return text::json_object_constraint(place, rule);
    case AnswerForm::Kind::JsonSchema:
      return text::json_schema_constraint(form.schema, place, rule, form.strict);
    case AnswerForm::Kind::Grammar: return text::gbnf_constraint(form.grammar, place, rule);
  }
  return nullptr;
}

/// Says what of a request's schemas its answer is not bound to. Clients chose the words, so they are quoted.
void log_unbound(const Service& service, const std::vector<std::string>& notes) {
  constexpr size_t kMostLines = 20, kMostBytes = 300;
  for (size_t i = 0; service.log && i < std::min(notes.size(), kMostLines); ++i)
    service.log("not bound: " + text::json_quote(notes[i].substr(0, kMostBytes)));
}

}  // namespace

Bound constraint_of(const Service& service, const AnswerForm& form, const text::OutputFormat* format,
                    bool starts_in_thinking, const text::CallRule& rule) {
  std::vector<std::string> notes;
  const text::AnswerPlace place = {service.constraints, format, starts_in_thinking, &notes};
  const bool required = rule.when == text::CallRule::When::Required;
  if (form.kind == AnswerForm::Kind::Text && !required) return {};
  // All that a constraint of this model depends on.
  const Json key = {static_cast<int>(form.kind),
                    form.schema,
                    form.grammar,
                    form.strict,
                    format != nullptr,
                    starts_in_thinking,
                    rule.parallel,
                    static_cast<int>(rule.when),
                    rule.only,
                    rule.tools ? *rule.tools : Json()};
  try {
    auto made = service.constraint_cache->get(key.dump(), [&] { return make_constraint(form, place, rule); });
    log_unbound(service, notes);
    return made;
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    const bool grammar = form.kind == AnswerForm::Kind::Grammar;
    bad_field(required ? "tool_choice" : grammar ? "grammar" : "response_format", "{}", error.what());
  }
}

namespace {

void check_tools(ChatRequest& request) {
  text::Conversation& conversation = request.conversation;
  if (request.tool_choice.kind == ToolChoice::Kind::None) conversation.tools = nullptr;
  const bool any = conversation.tools.is_array() && !conversation.tools.empty();
  if (!any) {
    if (request.tool_choice.kind == ToolChoice::Kind::Required ||
        request.tool_choice.kind == ToolChoice::Kind::Named)
      bad_field("tool_choice", "there are no tools");
    return;
  }
  if (request.tool_choice.kind != ToolChoice::Kind::Named) return;
  for (const Json& tool : conversation.tools) {
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (function.value("name", Json()) == request.tool_choice.name) return;
  }
  bad_field("tool_choice", "there is no tool {}", text::json_quote(request.tool_choice.name));
}

int64_t calls_in(const Json& messages) {
  size_t count = 0;
  for (const Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls != message.end() && calls->is_array()) count += calls->size();
  }
  return static_cast<int64_t>(count);
}

text::ChatPrompt render(const Service& service, text::Conversation conversation) {
  if (!service.chat) throw ApiError(400, "this model has no chat template; /v1/completions takes plain text");
  try {
    return service.chat->render(std::move(conversation));
  } catch (const text::jinja::TemplateError& error) {
    if (error.raised())
      throw ApiError(400, "messages: the chat template refuses them: " + error.message(), "messages");
    throw ApiError(400, fmt::format("messages: the chat template fails: {}", error.what()), "messages");
  } catch (const Error& error) {
    throw bad_request(error);
  }
}

void add_bos(const Service& service, std::vector<int32_t>& tokens) {
  const int32_t bos = service.tokenizer.bos();
  if (service.tokenizer.add_bos() && (tokens.empty() || tokens.front() != bos))
    tokens.insert(tokens.begin(), bos);
}

}  // namespace

void ChatRequest::set_thinking(bool on) {
  Json& arguments = conversation.template_arguments;
  if (arguments.is_null()) arguments = Json::object();
  for (const char* name : {"enable_thinking", "thinking"})  // templates disagree on the name
    if (!arguments.contains(name)) arguments[name] = on;
}

void ChatRequest::read_effort(Fields& fields, const char* name) {
  const auto effort = fields.choice(name, {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (!effort) return;
  set_thinking(*effort != "none");
  if (*effort != "none" && !conversation.template_arguments.contains("reasoning_effort"))
    conversation.template_arguments["reasoning_effort"] = *effort;
}

void ChatRequest::read_thinking_type(Fields& fields) {
  const auto type = fields.choice("type", {"enabled", "disabled", "adaptive", "auto"});
  if (type) set_thinking(*type != "disabled");
  if (const auto tokens = fields.integer("budget_tokens", -1, INT32_MAX)) thinking_budget = *tokens;
  if (const auto clear = fields.boolean("clear_thinking")) {  // whether templates leave out earlier reasoning
    if (conversation.template_arguments.is_null()) conversation.template_arguments = Json::object();
    conversation.template_arguments["clear_thinking"] = *clear;
  }
}

namespace {

/// Samplers of other servers, which clients send switched off. What only shapes one of them is passed over.
void expect_no_other_samplers(Fields& fields) {
  static constexpr struct {
    const char* name;
    double off;
  } kOthers[] = {{"typical_p", 1},
                 {"typ_p", 1},
                 {"top_n_sigma", -1},
                 {"xtc_probability", 0},
                 {"dry_multiplier", 0},
                 {"mirostat", 0},
                 {"dynatemp_range", 0},
                 {"tfs_z", 1},
                 {"top_a", 0},
                 {"epsilon_cutoff", 0},
                 {"eta_cutoff", 0},
                 {"min_tokens", 0},
                 {"length_penalty", 1},
                 {"use_beam_search", 0},
                 {"n_probs", 0},
                 {"min_keep", 0},
                 {"adaptive_target", -1},
                 {"n_keep", 0}};
  for (const auto& [name, off] : kOthers) fields.expect(name, off);
  fields.ignore({"xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
                 "dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "dynatemp_exponent",
                 "adaptive_decay", "early_stopping"});
}

/// Any 64 bits, with a sign or without; -1 is none.
uint64_t read_seed(Fields& fields) {
  const Json* given = fields.any("seed");
  if (const auto digits = given ? text::number_text(*given) : std::nullopt) {  // of more than 63 bits
    uint64_t large = 0;
    const char* const end = digits->data() + digits->size();
    const auto [last, error] = std::from_chars(digits->data(), end, large);
    if (error == std::errc() && last == end) return large;
  }
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  return seed && *seed != -1 ? static_cast<uint64_t>(*seed) : random_seed();
}

}  // namespace

void read_sampling(Fields& fields, const Service& service, engine::SamplingParams& sampling) {
  sampling = service.sampling;
  const auto take = [&](const char* name, double low, double high, auto& value) {
    if (const auto number = fields.number(name, low, high))
      value = static_cast<std::remove_reference_t<decltype(value)>>(*number);
  };
  take("temperature", 0, 1000, sampling.temperature);
  take("top_p", 0, 1, sampling.top_p);
  take("min_p", 0, 1, sampling.min_p);
  take("presence_penalty", -100, 100, sampling.presence_penalty);
  take("frequency_penalty", -100, 100, sampling.frequency_penalty);
  take("repetition_penalty", 0.01, 100, sampling.repeat_penalty);
  take("repeat_penalty", 0.01, 100, sampling.repeat_penalty);
  if (const auto k = fields.integer("top_k", -1, INT32_MAX))
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(*k, 0));  // -1: off, as some servers have it
  if (const auto window = fields.integer("repeat_last_n", -1, engine::SamplingParams::kLongestWindow))
    sampling.penalty_window = static_cast<int32_t>(*window);
  expect_no_other_samplers(fields);
  sampling.seed = read_seed(fields);
  if (const Json* bias = fields.any("logit_bias"))
    read_bias(*bias, fields.path_of("logit_bias"), service.tokenizer.size(), sampling);
}

void read_stops(Fields& fields, std::string_view name, engine::Request& request) {
  constexpr size_t kMostStops = 64, kLongestStop = 4096;
  for (std::string& stop : fields.strings(name)) {
    if (stop.size() > kLongestStop) bad_field(fields.path_of(name), "longer than {} bytes", kLongestStop);
    if (!stop.empty()) request.stops.push_back(std::move(stop));
  }
  if (request.stops.size() > kMostStops) bad_field(fields.path_of(name), "more than {} texts", kMostStops);
}

namespace {

/// The function that a choice names, or nothing: of a kind that cannot run here.
std::optional<std::string> named_function(Fields& fields, const Json& choice) {
  const std::string type = fields.string("type").value_or("function");
  if (type == "local_shell" || type == "shell") return "local_shell";
  if (type != "function" && type != "custom") return {};
  const Json* nested = fields.object(type);
  Fields named(nested ? *nested : choice, nested ? fields.path_of(type) : fields.path());
  const auto name = named.string("name"), space = named.string("namespace");
  if (!name) bad_field(named.path_of("name"), "is missing");
  return space && !space->empty() ? name_in_space(*space, *name) : *name;
}

/// {"mode": ..., "tools": [...]}: the model is shown no others.
void allow_tools(Fields& fields, ChatRequest& request) {
  const auto mode = fields.choice("mode", {"auto", "required"});
  const Json* list = fields.array("tools");
  if (!list) bad_field(fields.path_of("tools"), "is missing");
  fields.finish();
  std::set<std::string> allowed;
  for (size_t i = 0; i < list->size(); ++i) {
    Fields one((*list)[i], fmt::format("{}[{}]", fields.path_of("tools"), i));
    if (const auto name = named_function(one, (*list)[i])) allowed.insert(*name);
  }
  Json tools = Json::array();
  for (Json& tool : request.conversation.tools)
    if (allowed.contains(tool["function"]["name"].get<std::string>())) tools.push_back(std::move(tool));
  request.conversation.tools = std::move(tools);
  if (mode == "required") request.tool_choice = {ToolChoice::Kind::Required};
}

}  // namespace

void take_tool_choice(const Json& value, ChatRequest& request) {
  using Kind = ToolChoice::Kind;
  if (value == "auto") return;
  if (value == "none") return void(request.tool_choice = {Kind::None});
  if (value == "required" || value == "any") return void(request.tool_choice = {Kind::Required});
  if (value.is_string())
    bad_field("tool_choice", "expected auto, none, required or an object that names a function");
  Fields fields(value, "tool_choice");
  const std::string type = fields.string("type").value_or("function");
  if (type == "allowed_tools") {
    const Json* nested = fields.object(type);
    Fields allowed(nested ? *nested : value, nested ? fields.path_of(type) : fields.path());
    allowed.ignore({"type"});
    return allow_tools(allowed, request);
  }
  const auto name = named_function(fields, value);
  if (!name) bad_field(fields.path_of("type"), "{} cannot run here", text::json_quote(type));
  request.tool_choice = {Kind::Named, *name};
}

AnswerForm read_form(const Json& format, const std::string& path) {
  Fields fields(format, path);
  const auto type = fields.choice("type", {"text", "json_object", "json_schema"});
  if (!type) bad_field(fields.path_of("type"), "is missing");
  AnswerForm form;
  if (*type == "json_object") form.kind = AnswerForm::Kind::JsonObject;
  const auto take_schema = [&form](const Json* schema, const std::string& where) {
    if (!schema) bad_field(where, "is missing");
    if (!schema->is_object() && !schema->is_boolean())
      bad_field(where, "expected a JSON schema, not {}", json_kind(*schema));
    form.kind = AnswerForm::Kind::JsonSchema;
    form.schema = *schema;
  };
  if (*type == "json_schema") {
    if (const Json* inner = fields.object("json_schema")) {
      Fields named(*inner, fields.path_of("json_schema"));
      take_schema(named.any("schema"), named.path_of("schema"));
      form.strict = named.boolean("strict").value_or(false);
      named.ignore({"name", "description"});
      named.finish();
    } else {
      take_schema(fields.any("schema"), fields.path_of("schema"));
    }
  } else if (const Json* schema = fields.any("schema"); schema && *type == "json_object") {
    take_schema(schema, fields.path_of("schema"));  // as llama.cpp has it
  }
  form.strict = fields.boolean("strict").value_or(form.strict);
  fields.ignore({"name", "description"});
  fields.finish();
  return form;
}

std::string render_prompt(const Service& service, text::Conversation conversation) {
  return render(service, std::move(conversation)).prompt.text;
}

EncodedPrompt encode_chat(const Service& service, text::Conversation conversation) {
  const text::ChatPrompt prompt = render(service, std::move(conversation));
  if (prompt.in_plain_words && service.log)
    service.log("tools: the chat template fails with their schemas and was shown less of them");
  EncodedPrompt encoded{text::encode_prompt(service.tokenizer, service.chat->control_tokens(), prompt.prompt),
                        prompt.starts_in_thinking};
  add_bos(service, encoded.tokens);
  return encoded;
}

std::vector<int32_t> encode_text(const Service& service, std::string_view text) {
  std::vector<int32_t> tokens;
  service.tokenizer.append(text, true, tokens);
  add_bos(service, tokens);
  return tokens;
}

GenerationPlan plan_chat(const Service& service, uint64_t group, ChatRequest request) {
  if (!service.chat) throw ApiError(400, "this model has no chat template; /v1/completions takes plain text");
  check_tools(request);
  const bool goes_on = request.conversation.continue_last;
  if (goes_on && request.form.kind != AnswerForm::Kind::Text)
    bad_field("messages", "an answer that has begun cannot be given a form: leave its beginning out");
  service.said_calls->restore(group, request.conversation.messages);
  EncodedPrompt prompt = encode_chat(service, request.conversation);
  GenerationPlan plan;
  plan.format = &service.chat->output_format();
  plan.starts_in_thinking = prompt.starts_in_thinking;
  plan.one_call = !request.parallel_calls;
  plan.goes_on = goes_on;
  plan.prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  // From here on numbers are looked at: readers of schemas know those of JSON's usual types.
  request.conversation.tools = text::with_nearest_numbers(std::move(request.conversation.tools));
  request.form.schema = text::with_nearest_numbers(std::move(request.form.schema));
  const auto constraint = constraint_of(service, request.form, &service.chat->output_format(),
                                        prompt.starts_in_thinking, call_rule(request));
  plan.constraint_use = constraint.use;
  plan.earlier_calls = calls_in(request.conversation.messages);
  plan.tools = std::move(request.conversation.tools);
  request.engine.prompt = std::move(prompt.tokens);
  const int64_t budget = request.thinking_budget.value_or(service.thinking_budget);
  request.engine.show_special = true;  // the tags of reasoning and calls may be control tokens
  for (int64_t i = 0; i < request.choices; ++i) {
    plan.requests.push_back(request.engine);
    plan.requests.back().sampling.seed += static_cast<uint64_t>(i);
    std::unique_ptr<text::TokenConstraint> own = constraint ? constraint->clone() : nullptr;
    if (budget >= 0 && plan.format->thinks)
      own = text::limit_thinking(budget, service.tokenizer, *plan.format, plan.starts_in_thinking,
                                 std::move(own));
    plan.requests.back().constraint = std::move(own);
  }
  // A grammar without calls is kept to the letter: nothing is read out of the answer, and no white space cut
  // off.
  const bool has_tools = plan.tools.is_array() && !plan.tools.empty();
  if (request.form.kind == AnswerForm::Kind::Grammar && !has_tools && !plan.starts_in_thinking)
    plan.format = nullptr;
  return plan;
}

}  // namespace sluice::server
