// Frameworks that programs are written with, against `sluice serve`: Vercel's AI SDK and LangChain.
import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, jsonSchema, streamText, tool } from "ai";

import { serve } from "./serve.mjs";

let server, address, model;
const prompt = "Tell me a tale about a fox and a crow.";
const weather = {
  type: "object",
  properties: { city: { type: "string", enum: ["Bern", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

before(async () => {
  ({ child: server, address } = await serve());
  model = createOpenAICompatible({ name: "sluice", includeUsage: true, baseURL: `${address}/v1`, apiKey: "none" })("fairy-tales");
});

after(async () => {
  server.kill("SIGTERM");
  const [code] = await once(server, "exit");
  assert.equal(code, 0, "the server stops gracefully");
});

test("ai: a text, whole and streamed, is the same", async () => {
  const asks = { model, prompt, temperature: 0, maxOutputTokens: 20, maxRetries: 0 };
  const whole = await generateText(asks);
  assert.ok(whole.text.length > 20, whole.text);
  assert.equal(whole.finishReason, "length");
  assert.equal(whole.usage.outputTokens, 20);
  assert.ok(whole.usage.inputTokens > 5);
  const stream = streamText(asks);
  let text = "";
  for await (const piece of stream.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, 20);
});

test("ai: a tool that must be called is called by its schema", async () => {
  const { toolCalls } = await generateText({
    model, prompt: "What is the weather in Rome?", toolChoice: "required", maxRetries: 0, seed: 1,
    tools: { weather: tool({ description: "of a city", inputSchema: jsonSchema(weather) }) },
  });
  assert.equal(toolCalls.length, 1);
  assert.equal(toolCalls[0].toolName, "weather");
  assert.ok(weather.properties.city.enum.includes(toolCalls[0].input.city), JSON.stringify(toolCalls[0].input));
});

test("langchain: a text, whole and streamed, is the same", async () => {
  const chat = new ChatOpenAI({
    model: "fairy-tales", temperature: 0, maxTokens: 20, apiKey: "none", maxRetries: 0, configuration: { baseURL: `${address}/v1` },
  });
  const whole = await chat.invoke(prompt);
  assert.ok(whole.content.length > 20, whole.content);
  assert.equal(whole.usage_metadata.output_tokens, 20);
  let text = "";
  for await (const chunk of await chat.stream(prompt)) text += chunk.content;
  assert.equal(text, whole.content);
});

test("langchain: a structured answer obeys its schema", async () => {
  const chat = new ChatOpenAI({ model: "fairy-tales", temperature: 0, apiKey: "none", maxRetries: 0, configuration: { baseURL: `${address}/v1` } });
  const answer = await chat.withStructuredOutput({ title: "Weather", ...weather }, { method: "jsonSchema", strict: true }).invoke("The weather in Rome");
  assert.ok(weather.properties.city.enum.includes(answer.city), JSON.stringify(answer));
});
