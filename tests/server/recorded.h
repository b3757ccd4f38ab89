// Requests in the shapes in which clients send them that cannot run here. Each names where its shape is from.
#pragma once

namespace sluice::test {

struct RecordedRequest {
  const char *client, *source, *path, *headers, *body;
};

inline constexpr RecordedRequest kRecordedRequests[] = {
    {"Claude Code",
     "ggml-org/llama.cpp PR 20623 (system blocks); inflaborg/ccrelay PR 104 (context_management)",
     "/v1/messages?beta=true",
     "x-api-key: none\r\nanthropic-version: 2023-06-01\r\nanthropic-beta: interleaved-thinking-2025-05-14\r\n"
     "anthropic-dangerous-direct-browser-access: true\r\nx-app: cli\r\nX-Stainless-Lang: js\r\n",
     R"({"model":"claude-sonnet-4-5","max_tokens":32,"temperature":1,"stream":true,
         "system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"},
                   {"type":"text","text":"You write programs.","cache_control":{"type":"ephemeral"}}],
         "messages":[{"role":"user","content":[{"type":"text","text":"<system-reminder>be brief</system-reminder>"},
                                               {"type":"text","text":"hey","cache_control":{"type":"ephemeral"}}]}],
         "tools":[{"name":"Bash","description":"Runs a command","input_schema":{"$schema":"http://json-schema.org/draft-07/schema#",
                   "type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"number"}},"required":["command"],
                   "additionalProperties":false}}],
         "thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},
         "metadata":{"user_id":"user_0_account__session_0"}})"},
    {"Claude Code, counting", "code.claude.com/docs llm-gateway", "/v1/messages/count_tokens?beta=true",
     "Authorization: Bearer none\r\nanthropic-version: 2023-06-01\r\n",
     R"({"model":"claude-sonnet-4-5","messages":[{"role":"user","content":"foo"}],"tools":[]})"},
    {"opencode (AI SDK)", "vercel/ai PR 1578 (requestBodyValues)", "/v1/chat/completions",
     "Authorization: Bearer none\r\n",
     R"({"model":"local","logprobs":null,"max_tokens":32,"temperature":0,"messages":[{"role":"system","content":"You code."},
         {"role":"user","content":"list files"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",
         "function":{"name":"ls","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"README"}],
         "tools":[{"type":"function","function":{"name":"ls","description":"lists","parameters":{"type":"object","properties":{},
         "additionalProperties":false,"$schema":"http://json-schema.org/draft-07/schema#"}}}],"tool_choice":"auto","stream":true,
         "stream_options":{"include_usage":true}})"},
    {"Open WebUI", "open-webui/open-webui issue 14469 (stream_response in the body)", "/v1/chat/completions",
     "Authorization: Bearer none\r\n",
     R"({"stream":true,"model":"local","messages":[{"role":"user","content":"hi"}],"stream_response":true,"max_tokens":32,
         "temperature":0.8,"stream_options":{"include_usage":true}})"},
    {"Cline, Continue", "design notes on clients: parts, null content, developer role",
     "/v1/chat/completions", "",
     R"({"model":"local","messages":[{"role":"developer","content":"You code."},{"role":"user","content":[{"type":"text","text":"a"},
         {"type":"text","text":"b"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{
         "name":"read","arguments":"{\"path\":\"x\"}"}}]},{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"y"}]}],
         "temperature":0,"max_completion_tokens":32,"stream":true,"stream_options":{"include_usage":true},"reasoning_effort":"low"})"},
    {"aider (litellm)", "design notes on clients", "/v1/chat/completions", "Authorization: Bearer none\r\n",
     R"({"model":"local","messages":[{"role":"user","content":"hi"}],"temperature":0,"stream":true,"max_tokens":32,"extra_headers":null})"},
};

}  // namespace sluice::test
