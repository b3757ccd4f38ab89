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
const { endFrom, merged, thread, upgraded, versions } = await load("tree");
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
  assert.deepEqual(body, { model: "m", stream: true, stream_options: { include_usage: true }, return_progress: true, messages: [{ role: "user", content: "x" }] });
  const goesOn = requestBody("m", "", [{ role: "user", content: "x" }, { role: "assistant", content: "y" }], defaultSettings, true);
  assert.equal(goesOn.continue_final_message, true);
  assert.equal(goesOn.add_generation_prompt, false);
});

test("imports are checked", () => {
  const good = { conversations: [{ title: "t", messages: [{ role: "user", content: "x", evil: 1 }] }] };
  const [one] = readExport(JSON.stringify(good));
  assert.equal(one.title, "t");
  assert.deepEqual(Object.keys(one.messages[0]).sort(), ["changed", "content", "created", "id", "parent", "role"]);
  for (const bad of ["", "[]", "{}", '{"conversations":[null]}', '{"conversations":[{"messages":[{"role":"system","content":"x"}]}]}'])
    assert.throws(() => readExport(bad), /file/);
});

/** A message by its name, which answers another. */
const message = (id, parent, role, changed = 0, content = id) => ({ id, parent, role, content, created: Number(id.slice(1)), changed });
const conversation = (messages, leaf, changed = 0) => ({ id: "c", title: `at ${changed}`, created: 0, updated: changed, changed, system: "", messages, leaf });

test("a thread is what leads to its last message, and versions stand beside each other", () => {
  const one = conversation(
    [message("m1", null, "user"), message("m2", "m1", "assistant"), message("m3", "m1", "assistant"), message("m4", "m2", "user"), message("m5", null, "user")], "m4");
  assert.deepEqual(thread(one).map(({ id }) => id), ["m1", "m2", "m4"]);
  assert.deepEqual(versions(one, one.messages[1]).map(({ id }) => id), ["m2", "m3"]);
  assert.deepEqual(versions(one, one.messages[0]).map(({ id }) => id), ["m1", "m5"]);
  assert.equal(endFrom(one, "m2"), "m4");
  assert.equal(endFrom(one, "m1"), "m3", "by the latest version");
});

test("circles and gaps of a strange file have an end", () => {
  const circle = conversation([message("m1", "m2", "user"), message("m2", "m1", "assistant")], "m2");
  assert.equal(thread(circle).length, 2);
  assert.equal(typeof endFrom(circle, "m1"), "string");
  assert.deepEqual(thread(conversation([message("m1", "m9", "user")], "m1")).map(({ id }) => id), ["m1"]);
});

test("copies are put together without a loss, in any order", () => {
  const begin = [message("m1", null, "user"), message("m2", "m1", "assistant", 1, "half")];
  const ours = conversation([...begin, message("m4", "m2", "user", 4)], "m4", 4);
  const theirs = conversation([begin[0], message("m2", "m1", "assistant", 2, "whole"), message("m3", "m2", "user", 3)], "m3", 3);
  for (const both of [merged(ours, theirs), merged(theirs, ours)]) {
    assert.deepEqual(both.messages.map(({ id }) => id), ["m1", "m2", "m3", "m4"]);
    assert.equal(both.messages[1].content, "whole");
    assert.equal(both.title, "at 4");
  }
  assert.equal(merged(ours, theirs).leaf, "m4", "each page stays where it stands");
  const further = conversation([...begin, message("m4", "m2", "user", 4), message("m5", "m4", "assistant", 5)], "m5", 5);
  assert.equal(merged(ours, further).leaf, "m5", "and goes on with what follows");
  assert.equal(merged(further, ours).leaf, "m5");
});

test("lists of earlier versions become threads, in what is kept and in files", () => {
  const list = [{ id: "a".repeat(24), role: "user", content: "x" }, { id: "b".repeat(24), role: "assistant", content: "y" }];
  const kept = upgraded({ id: "c", title: "t", created: 5, updated: 6, system: "", messages: list });
  assert.deepEqual(thread(kept).map(({ content }) => content), ["x", "y"]);
  assert.equal(upgraded(kept), kept);
  const [read] = readExport(JSON.stringify({ conversations: [{ title: "t", messages: list }] }));
  assert.deepEqual(thread(read).map(({ content }) => content), ["x", "y"]);
});

test("files keep versions, and strange references in them do no harm", () => {
  const [u, a, b] = ["1", "2", "3"].map((digit) => digit.repeat(24));
  const messages = [
    { id: u, parent: null, role: "user", content: "q", created: 1, changed: 1 }, { id: a, parent: u, role: "assistant", content: "first", created: 2, changed: 2 },
    { id: b, parent: u, role: "assistant", content: "second", created: 3, changed: 3 }];
  const [one] = readExport(JSON.stringify({ conversations: [{ title: "t", messages, leaf: a }] }));
  assert.deepEqual(thread(one).map(({ content }) => content), ["q", "first"]);
  assert.equal(versions(one, one.messages[1]).length, 2);
  const strange = [{ ...messages[0], parent: b }, { ...messages[1], id: u }, { ...messages[2], parent: 7, created: "x" }];
  const [odd] = readExport(JSON.stringify({ conversations: [{ title: "t", messages: strange, leaf: "nowhere" }] }));
  assert.equal(new Set(odd.messages.map(({ id }) => id)).size, 3);
  assert.equal(thread(odd).length, 3);
});
