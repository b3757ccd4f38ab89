// Parts of the page that need no browser, as they stand in the source (esbuild takes the types away).
import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";

async function load(name) {
  const { outputFiles } = await build({
    entryPoints: [new URL(`../../src/${name}.ts`, import.meta.url).pathname],
    bundle: true, format: "esm", write: false, logLevel: "error",
  });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].text).toString("base64")}`);
}

const { readExport, defaultSettings } = await load("types");
const { EventReader, readChunk, requestBody, ApiError } = await load("api");

test("events in any chunking", () => {
  const text = 'data: {"a":1}\r\n\r\n: ping\n\ndata: two\ndata: lines\n\nevent: x\ndata:[DONE]\n\n';
  for (let size = 1; size <= text.length; ++size) {
    const reader = new EventReader();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...reader.push(text.slice(at, at + size)));
    assert.deepEqual(events, ['{"a":1}', "two\nlines", "[DONE]"], `chunks of ${size}`);
  }
});

test("chunks of both names of reasoning, usage, and errors", () => {
  assert.deepEqual(readChunk('{"choices":[{"delta":{"reasoning_content":"a"}}]}'), { reasoning: "a" });
  assert.deepEqual(readChunk('{"choices":[{"delta":{"reasoning":"a","content":"b"},"finish_reason":"stop"}]}'), { content: "b", reasoning: "a", finish: "stop" });
  assert.equal(readChunk('{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}').stats.tokens, 7);
  assert.throws(() => readChunk('{"error":{"message":"no"}}'), ApiError);
});

test("requests hold only what was set", () => {
  const body = requestBody("m", " ", [{ id: "1", role: "user", content: "x" }, { id: "2", role: "assistant", content: "" }], defaultSettings);
  assert.deepEqual(body, { model: "m", stream: true, stream_options: { include_usage: true }, messages: [{ role: "user", content: "x" }] });
});

test("imports are checked", () => {
  const good = { conversations: [{ title: "t", messages: [{ role: "user", content: "x", evil: 1 }] }] };
  const [one] = readExport(JSON.stringify(good));
  assert.equal(one.title, "t");
  assert.deepEqual(Object.keys(one.messages[0]).sort(), ["content", "id", "role"]);
  for (const bad of ["", "[]", "{}", '{"conversations":[null]}', '{"conversations":[{"messages":[{"role":"system","content":"x"}]}]}'])
    assert.throws(() => readExport(bad), /file/);
});
