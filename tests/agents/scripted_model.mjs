// A GGUF file whose model says a script, whatever it is asked: an answer for each turn of an agent's work. A layer of
// zeros stands between embeddings that are all but orthogonal and an output matrix whose rows are those of the
// token before.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const root = new URL("../../", import.meta.url).pathname;
const width = 256, head = 32;
const types = { normal: 1, control: 3 };

/** GPT-2's alphabet of bytes. */
const alphabet = (() => {
  const printable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let other = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : other++));
})();
const written = (text) => Array.from(Buffer.from(text), (byte) => alphabet[byte]).join("");

/** Pieces of the tree's own texts, the most frequent first: {piece: how often}. Prompts hold many of them. */
function commonPieces() {
  const seen = new Map();
  const docs = join(root, "docs");
  const texts = [join(root, "tests/text/templates/cases.jsonl"), ...readdirSync(docs).filter((file) => file.endsWith(".md")).map((file) => join(docs, file))];
  for (const path of texts)
    for (const [piece] of readFileSync(path, "utf8").matchAll(/[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+\n*|\s*\n+|\s+/gu))
      seen.set(piece, (seen.get(piece) ?? 0) + 1);
  return [...seen].sort((a, b) => b[1] * b[0].length - a[1] * a[0].length);
}

/** The pairs that byte-pair encoding of these pieces merges first. */
function merges(pieces, count) {
  const words = pieces.map(([piece, times]) => [Array.from(written(piece)), times]);
  const out = [];
  while (out.length < count) {
    const pairs = new Map();
    for (const [word, times] of words)
      for (let i = 0; i + 1 < word.length; ++i) {
        const pair = `${word[i]} ${word[i + 1]}`;
        pairs.set(pair, (pairs.get(pair) ?? 0) + times);
      }
    const best = [...pairs].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
    out.push(best);
    const joined = best.replace(" ", "");
    for (const [word] of words)
      for (let i = 0; i + 1 < word.length; ++i)
        if (`${word[i]} ${word[i + 1]}` === best) word.splice(i, 2, joined);
  }
  return out;
}

/** The template of Qwen3-Coder, with a token at the end that says how many results of tools there are; a request
 * without tools is none of the agent's work. */
function chatTemplate(turns) {
  const qwen = readFileSync(join(root, "tests/text/templates/Qwen3-Coder.jinja"), "utf8");
  return `${qwen}
{%- set results = messages | selectattr('role', 'equalto', 'tool') | list | length %}
{%- if add_generation_prompt %}{{- '<|turn' ~ ([results, ${turns - 1}] | min) ~ '|>' if tools else '<|aside|>' }}{%- endif %}`;
}

class Writer {
  parts = [];
  add(buffer) { this.parts.push(buffer); }
  number(method, size, value) {
    const buffer = Buffer.alloc(size);
    buffer[method](value);
    this.add(buffer);
  }
  u32(value) { this.number("writeUInt32LE", 4, value); }
  u64(value) { this.number("writeBigUInt64LE", 8, BigInt(value)); }
  text(value) {
    const bytes = Buffer.from(value);
    this.u64(bytes.length);
    this.add(bytes);
  }
  key(name, type, value) {
    this.text(name);
    if (type === "u32") { this.u32(4); this.u32(value); }
    if (type === "f32") { this.u32(6); this.number("writeFloatLE", 4, value); }
    if (type === "bool") { this.u32(7); this.add(Buffer.from([value ? 1 : 0])); }
    if (type === "text") { this.u32(8); this.text(value); }
    if (type === "texts") { this.u32(9); this.u32(8); this.u64(value.length); for (const one of value) this.text(one); }
    if (type === "numbers") { this.u32(9); this.u32(5); this.u64(value.length); for (const one of value) this.u32(one); }
  }
  bytes() { return Buffer.concat(this.parts); }
}

/** Numbers of -1 and 1, the same at each run. */
function signs(count) {
  let state = 12345;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state & 0x80000000 ? 1 : -1;
  });
}

/** Writes a model that says turns[i] after i results of tools, and `aside` where there are no tools. */
export function writeScriptedModel(path, { turns, aside = "A file", context = 131072 }) {
  const tokens = [...alphabet], kinds = tokens.map(() => types.normal);
  const add = (text, kind = types.normal) => {
    kinds.push(kind);
    return tokens.push(text) - 1;
  };
  const begin = add("<|im_start|>", types.control), end = add("<|im_end|>", types.control);
  const pieces = commonPieces().slice(0, 5000), pairs = merges(pieces, 400);
  for (const text of new Set([...pairs.map((pair) => pair.replace(" ", "")), ...pieces.map(([piece]) => written(piece))]))
    if (!alphabet.includes(text)) add(text);
  const after = [];  // [token, the one that follows it]
  const say = (mark, text) => {
    let last = add(mark, types.control);
    for (const piece of text.match(/[^]{1,4}/gu)) {
      const next = add(written(piece));
      after.push([last, next]);
      last = next;
    }
    after.push([last, end]);
  };
  turns.forEach((text, turn) => say(`<|turn${turn}|>`, text));
  say("<|aside|>", aside);

  const embedding = signs(tokens.length * width), output = new Float32Array(tokens.length * width);
  for (const [token, next] of after)
    for (let i = 0; i < width; ++i) output[next * width + i] += embedding[token * width + i];
  const zeros = (rows, columns) => [rows, columns, new Float32Array(rows * columns)];
  const ones = (count) => [1, count, new Float32Array(count).fill(1)];
  const tensors = {
    "token_embd.weight": [tokens.length, width, embedding],
    "output.weight": [tokens.length, width, output],
    "output_norm.weight": ones(width), "blk.0.attn_norm.weight": ones(width), "blk.0.ffn_norm.weight": ones(width),
    "blk.0.attn_q.weight": zeros(head, width), "blk.0.attn_k.weight": zeros(head, width),
    "blk.0.attn_v.weight": zeros(head, width), "blk.0.attn_output.weight": zeros(width, head),
    "blk.0.ffn_gate.weight": zeros(head, width), "blk.0.ffn_up.weight": zeros(head, width),
    "blk.0.ffn_down.weight": zeros(width, head),
  };
  const keys = [
    ["general.architecture", "text", "llama"], ["general.name", "text", "Script"],
    ["llama.block_count", "u32", 1], ["llama.context_length", "u32", context],
    ["llama.embedding_length", "u32", width], ["llama.feed_forward_length", "u32", head],
    ["llama.attention.head_count", "u32", 1], ["llama.attention.head_count_kv", "u32", 1],
    ["llama.attention.key_length", "u32", head], ["llama.attention.value_length", "u32", head],
    ["llama.rope.dimension_count", "u32", head], ["llama.attention.layer_norm_rms_epsilon", "f32", 1e-5],
    ["tokenizer.ggml.model", "text", "gpt2"], ["tokenizer.ggml.pre", "text", "llama-bpe"],
    ["tokenizer.ggml.tokens", "texts", tokens], ["tokenizer.ggml.token_type", "numbers", kinds],
    ["tokenizer.ggml.merges", "texts", pairs], ["tokenizer.ggml.bos_token_id", "u32", begin],
    ["tokenizer.ggml.eos_token_id", "u32", end], ["tokenizer.ggml.add_bos_token", "bool", false],
    ["tokenizer.chat_template", "text", chatTemplate(turns.length)],
  ];
  const out = new Writer();
  out.add(Buffer.from("GGUF"));
  out.u32(3);
  out.u64(Object.keys(tensors).length);
  out.u64(keys.length);
  for (const [name, type, value] of keys) out.key(name, type, value);
  let offset = 0;
  const padded = (bytes) => Math.ceil(bytes / 32) * 32;
  for (const [name, [rows, columns]] of Object.entries(tensors)) {
    out.text(name);
    out.u32(rows > 1 ? 2 : 1);
    out.u64(columns);
    if (rows > 1) out.u64(rows);
    out.u32(0);  // F32
    out.u64(offset);
    offset += padded(rows * columns * 4);
  }
  const header = out.bytes();
  const file = [header, Buffer.alloc(padded(header.length) - header.length)];
  for (const [, , numbers] of Object.values(tensors))
    file.push(Buffer.from(numbers.buffer), Buffer.alloc(padded(numbers.byteLength) - numbers.byteLength));
  writeFileSync(path, Buffer.concat(file));
}
