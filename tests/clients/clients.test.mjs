// The SDKs that people use, against `sluice serve` as a process of its own with the bundled model. What they
// read out of answers is what their users get, so it is their words that are asked for here.
// SLUICE_BINARY: the program.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { Ollama } from "ollama";
import OpenAI from "openai";

import { serve } from "./serve.mjs";

const folder = mkdtempSync(join(tmpdir(), "sluice-clients-"));
let server, address, openai, anthropic;

before(async () => {
  writeFileSync(join(folder, "keys"), "# for this test\nsk-test\n");
  ({ child: server, address } = await serve("--api-key-file", join(folder, "keys")));
  openai = new OpenAI({ baseURL: `${address}/v1`, apiKey: "sk-test", maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: address, apiKey: "sk-test", maxRetries: 0 });
});

after(async () => {
  server.kill("SIGTERM");
  const [code] = await once(server, "exit");
  rmSync(folder, { recursive: true });
  assert.equal(code, 0, "the server stops gracefully");
});

const messages = [{ role: "user", content: "Tell me a tale about a fox and a crow." }];
const model = "fairy-tales";
const weather = {
  type: "object",
  properties: { city: { type: "string", enum: ["Bern", "Rome"] }, days: { type: "integer" } },
  required: ["city", "days"],
  additionalProperties: false,
};
const person = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" }, king: { type: "boolean" } },
  required: ["name", "age", "king"],
  additionalProperties: false,
};

test("openai: models", async () => {
  const ids = [];
  for await (const one of openai.models.list()) ids.push(one.id);
  assert.deepEqual(ids, ["Fairy Tales"]);
});

test("openai: chat, whole and streamed, is the same text", async () => {
  const request = { model, messages, max_tokens: 40, temperature: 0, seed: 1, reasoning_effort: "none" };
  const whole = await openai.chat.completions.create(request);
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 40);
  assert.ok(whole.choices[0].message.content.length > 40);
  const stream = await openai.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  let text = "", usage, chunks = 0, reason;
  for await (const chunk of stream) {
    ++chunks;
    text += chunk.choices[0]?.delta?.content ?? "";
    reason = chunk.choices[0]?.finish_reason ?? reason;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(reason, "length");
  assert.equal(usage.completion_tokens, 40);
  assert.ok(usage.prompt_tokens_details.cached_tokens > 0, "the second one finds the first one's prompt");
  assert.ok(chunks > 5, `${chunks} chunks`);
});

test("openai: the stream helper puts a message together", async () => {
  const runner = openai.chat.completions.stream({
    model, messages, max_tokens: 20, n: 2, logprobs: true, top_logprobs: 2, reasoning_effort: "none",
  });
  const answer = await runner.finalChatCompletion();
  assert.equal(answer.choices.length, 2);
  assert.equal(answer.choices[1].message.role, "assistant");
  assert.equal(answer.choices[0].logprobs.content.map((t) => t.token).join(""), answer.choices[0].message.content);
  assert.equal(answer.choices[0].logprobs.content.length, 20);
});

test("openai: a tool that must be called is called by its schema", async () => {
  const tools = [{ type: "function", function: { name: "weather", description: "of a city", parameters: weather } }];
  const request = { model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 300, reasoning_effort: "none" };
  const answer = await openai.chat.completions.create(request);
  const call = answer.choices[0].message.tool_calls[0];
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.equal(call.function.name, "weather");
  assert.ok(["Bern", "Rome"].includes(JSON.parse(call.function.arguments).city));
  const runner = openai.chat.completions.stream(request);
  const streamed = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
  assert.ok(Number.isInteger(JSON.parse(streamed.function.arguments).days));
  const next = await openai.chat.completions.create({
    model, tools, max_tokens: 10,
    messages: [...messages, answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sun" }],
  });
  assert.ok(next.choices[0].message);
});

test("openai: an answer by a JSON schema", async () => {
  const answer = await openai.chat.completions.create({
    model, messages, max_tokens: 300, reasoning_effort: "none",
    response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } },
  });
  const value = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(value).sort(), ["age", "king", "name"]);
  assert.equal(typeof value.king, "boolean");
});

test("openai: responses, whole and streamed", async () => {
  const request = { model, input: "Tell me a tale.", max_output_tokens: 30, temperature: 0, reasoning: { effort: "none" } };
  const whole = await openai.responses.create(request);
  assert.equal(whole.status, "incomplete");
  assert.ok(whole.output_text.length > 20);
  let text = "", last;
  for await (const event of await openai.responses.create({ ...request, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(last.type, "response.incomplete");
  assert.equal(text, whole.output_text);
  const formed = await openai.responses.create({
    ...request, max_output_tokens: 300, text: { format: { type: "json_schema", name: "person", strict: true, schema: person } },
  });
  assert.equal(typeof JSON.parse(formed.output_text).age, "number");
  const called = await openai.responses.create({
    ...request, max_output_tokens: 300, tool_choice: "required",
    tools: [{ type: "function", name: "weather", parameters: weather, strict: true }],
  });
  assert.equal(called.output.find((item) => item.type === "function_call").name, "weather");
});

test("openai: completions", async () => {
  const answer = await openai.completions.create({ model, prompt: "Once upon a time", max_tokens: 12, logprobs: 2 });
  assert.equal(answer.choices[0].logprobs.tokens.length, 12);
  let text = "";
  for await (const chunk of await openai.completions.create({ model, prompt: "Once", max_tokens: 12, stream: true }))
    text += chunk.choices[0]?.text ?? "";
  assert.ok(text.length > 5);
});

test("openai: errors are the SDK's own kinds", async () => {
  const ask = (more) => openai.chat.completions.create({ model, messages, max_tokens: 2, ...more });
  await assert.rejects(ask({ temperature: "hot" }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
  const long = [{ role: "user", content: "a fox and a crow ".repeat(2000) }];
  await assert.rejects(ask({ messages: long }), (error) => error.status === 400 && error.code === "context_length_exceeded");
  const stranger = new OpenAI({ baseURL: `${address}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.chat.completions.create({ model, messages }), OpenAI.AuthenticationError);
  await assert.rejects(openai.embeddings.create({ model, input: "x" }), (error) => error.status === 404);
});

test("openai: an aborted stream leaves nothing running", async () => {
  const stream = await openai.chat.completions.create({ model, messages, stream: true, max_tokens: 900 });
  for await (const chunk of stream) if (chunk) break;
  stream.controller.abort();
  for (let i = 0; i < 100; ++i) {
    const slots = await (await fetch(`${address}/slots`, { headers: { authorization: "Bearer sk-test" } })).json();
    if (slots.every((slot) => !slot.is_processing)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail("it still runs");
});

test("anthropic: messages, whole and streamed", async () => {
  const request = { model, max_tokens: 40, temperature: 0, system: "You tell tales.", messages };
  const whole = await anthropic.messages.create(request);
  assert.equal(whole.stop_reason, "max_tokens");
  assert.equal(whole.content[0].type, "text");
  assert.equal(whole.usage.output_tokens, 40);
  const stream = anthropic.messages.stream(request);
  let text = "";
  stream.on("text", (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.equal(final.stop_reason, "max_tokens");
  assert.ok(final.usage.cache_read_input_tokens > 0);
});

test("anthropic: thinking may be asked for", async () => {  // this model's template never opens it
  const final = await anthropic.messages
    .stream({ model, max_tokens: 60, messages, thinking: { type: "enabled", budget_tokens: 1024 } })
    .finalMessage();
  assert.ok(final.content.length > 0);
});

test("anthropic: tools", async () => {
  const tools = [{ name: "weather", description: "of a city", input_schema: weather }];
  for (const tool_choice of [{ type: "any", disable_parallel_tool_use: true }, { type: "tool", name: "weather", disable_parallel_tool_use: true }]) {
    const final = await anthropic.messages.stream({ model, max_tokens: 300, messages, tools, tool_choice }).finalMessage();
    assert.equal(final.stop_reason, "tool_use");
    const use = final.content.find((block) => block.type === "tool_use");
    assert.ok(["Bern", "Rome"].includes(use.input.city));
    const next = await anthropic.messages.create({
      model, max_tokens: 5, tools,
      messages: [...messages, { role: "assistant", content: final.content },
        { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "sun" }] }],
    });
    assert.equal(next.type, "message");
  }
});

test("anthropic: toolRunner runs what is called and goes on with its result", async () => {
  for (const stream of [false, true]) {
    const requests = [], runs = [];
    // The model calls nothing by itself: it must in the first turn, and may in the next.
    const client = new Anthropic({
      baseURL: address, apiKey: "sk-test", maxRetries: 0,
      fetch: (url, init) => {
        const body = JSON.parse(init.body);
        if (body.messages.length > 1) delete body.tool_choice;
        if (!body.thread) requests.push(body); // it tries a thread first, and hears that there is none
        return fetch(url, { ...init, body: JSON.stringify(body) });
      },
    });
    const tool = betaTool({
      name: "weather", description: "of a city", inputSchema: weather,
      run: (input) => {
        runs.push(input);
        return `${input.days} days of sun in ${input.city}`;
      },
    });
    const runner = client.beta.messages.toolRunner({
      model, max_tokens: 300, messages, tools: [tool], stream, max_iterations: 4,
      tool_choice: { type: "tool", name: "weather", disable_parallel_tool_use: true },
    });
    const reasons = [];
    for await (const reply of runner) reasons.push((stream ? await reply.finalMessage() : reply).stop_reason);
    assert.equal(reasons[0], "tool_use");
    assert.ok(["max_tokens", "end_turn"].includes(reasons.at(-1)), reasons);
    assert.equal(runs.length, reasons.length - 1);
    assert.ok(["Bern", "Rome"].includes(runs[0].city) && Number.isInteger(runs[0].days));
    const [asked, said, result] = requests[1].messages;
    assert.deepEqual(asked, messages[0]);
    assert.equal(said.content.find((block) => block.type === "tool_use").name, "weather");
    assert.equal(result.content[0].type, "tool_result");
    assert.match(JSON.stringify(result.content[0].content), /days of sun in (Bern|Rome)/);
  }
});

test("anthropic: counts and errors", async () => {
  const counted = await anthropic.messages.countTokens({ model, messages });
  assert.ok(counted.input_tokens > 10);
  await assert.rejects(anthropic.messages.create({ model, messages, max_tokens: -1 }), Anthropic.BadRequestError);
  const long = [{ role: "user", content: "a fox and a crow ".repeat(2000) }];
  await assert.rejects(anthropic.messages.create({ model, messages: long, max_tokens: 5 }), /prompt is too long: \d+ tokens > \d+ maximum/);
  const stranger = new Anthropic({ baseURL: address, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.messages.create({ model, messages, max_tokens: 5 }), Anthropic.AuthenticationError);
});

test("Ollama's client: chats, generates, lists", async () => {
  const ollama = new Ollama({ host: address, headers: { Authorization: "Bearer sk-test" } });
  const options = { num_predict: 12, temperature: 0, num_ctx: 131072 };
  const whole = await ollama.chat({ model, messages, options });
  assert.equal(whole.message.role, "assistant");
  assert.ok(whole.message.content.length > 0);
  assert.equal(whole.done_reason, "length");
  assert.equal(whole.eval_count, 12);
  let text = "";
  let last;
  for await (const part of await ollama.chat({ model, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text.trim(), whole.message.content.trim());
  assert.equal(last.done, true);
  const told = await ollama.generate({ model, prompt: "Once upon a time", raw: true, options });
  assert.ok(told.response.length > 0);
  assert.equal((await ollama.list()).models.length, 1);
  assert.equal((await ollama.ps()).models[0].name, (await ollama.list()).models[0].name);
  const shown = await ollama.show({ model });
  assert.ok(shown.capabilities.includes("completion"));
  assert.ok(shown.model_info[`${shown.model_info["general.architecture"]}.context_length`] > 0);
  await assert.rejects(ollama.embed({ model, input: "text" }), /not part of this server/);
});

test("Ollama's client: schemas and tools", async () => {
  const ollama = new Ollama({ host: address, headers: { Authorization: "Bearer sk-test" } });
  const formed = await ollama.chat({ model, messages, format: person, options: { num_predict: 80, seed: 1 }, think: false });
  assert.deepEqual(Object.keys(JSON.parse(formed.message.content)), ["name", "age", "king"]);
  const tools = [{ type: "function", function: { name: "weather", description: "of a city", parameters: weather } }];
  const called = await ollama.chat({ model, messages, tools, tool_choice: "required", options: { num_predict: 200, seed: 1 }, think: false });
  assert.equal(called.message.tool_calls[0].function.name, "weather");
  assert.equal(typeof called.message.tool_calls[0].function.arguments.days, "number");
});
