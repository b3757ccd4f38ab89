// Makes a recorded session of what recorder.mjs has written: of long texts the beginning and the end, names of places,
// machines, people and times replaced, the clients' own sentences in words of ours, and of each request but the first one what differs from the one before, as a
// JSON patch (RFC 6902).
// usage: node shorten.mjs RECORDING > tests/server/agent_sessions/NAME.jsonl
import { readFileSync } from "node:fs";

const most = 240, kept = 90;
const replacements = [
  [/\/tmp\/sluice-agents-\w+/g, "/home/user"],
  [/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, "00000000-0000-4000-8000-000000000000"],
  [/\b[0-9a-f]{32,64}\b/g, "0".repeat(32)],
  [/\b20\d\d([-/])\d\d[-/]\d\d/g, "2026$101$101"],
  [/\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, \w+ \d+, 20\d\d/g, "Thursday, January 1, 2026"],
  [/\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} \d\d 20\d\d/g, "Thu Jan 01 2026"],
  [/Linux \d[\w.-]*/g, "Linux 6.1.0"],
];

// Sentences are the clients' authors': each of their words becomes one of these, always the same one, so that texts
// agree and part where they did.
const words = ("apple barn candle door east fern garden hill island jar kettle lamp meadow north oak path quilt river " +
  "stone tower under vale willow yard amber brook cloud dawn ember field grove harbour ivory lantern moss orchard pond " +
  "ridge shore thistle valley wheat acorn basket copper drift elm frost gate hazel iron linen maple nest olive pebble " +
  "reed sail thorn walnut").split(" ");
const ours = (text) => text.replace(/[A-Za-z]{3,}/g, (word) => {
  let hash = 7;
  for (const letter of word) hash = (hash * 31 + letter.charCodeAt(0)) % 65521;
  return words[hash % words.length];
});
const isSentence = (text) => text.length > 24 && text.trim().split(/\s+/).length > 3;

const shortened = new Map();
function short(text) {
  for (const [pattern, words] of replacements) text = text.replace(pattern, words);
  if (text.length <= most) return text;
  const out = `${text.slice(0, kept)} ... ${text.slice(-kept)}`;
  if ((shortened.get(out) ?? text) !== text) return text;  // what differs stays different
  shortened.set(out, text);
  return out;
}
// keeps: what is as it was: calls, and what the model has said.
const each = (value, keeps) =>
  typeof value === "string" ? (keeps(value) || !isSentence(value) ? short(value) : ours(short(value)))
    : Array.isArray(value) ? value.map((one) => each(one, keeps))
    : value && typeof value === "object"
      ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, each(one, key === "arguments" ? () => true : keeps)]))
    : value;

function patch(before, after, path = "") {
  const same = JSON.stringify(before) === JSON.stringify(after);
  if (same) return [];
  const lists = Array.isArray(before) && Array.isArray(after);
  const objects = before && after && typeof before === "object" && typeof after === "object" && !Array.isArray(before) && !Array.isArray(after);
  if (!lists && !objects) return [{ op: "replace", path, value: after }];
  const place = (key) => `${path}/${String(key).replaceAll("~", "~0").replaceAll("/", "~1")}`;
  const out = [];
  if (lists) {
    const common = Math.min(before.length, after.length);
    for (let i = 0; i < common; ++i) out.push(...patch(before[i], after[i], place(i)));
    for (let i = before.length - 1; i >= common; --i) out.push({ op: "remove", path: place(i) });
    for (let i = common; i < after.length; ++i) out.push({ op: "add", path: place(i), value: after[i] });
    return out;
  }
  for (const key of Object.keys(before)) if (!(key in after)) out.push({ op: "remove", path: place(key) });
  for (const [key, value] of Object.entries(after))
    out.push(...(key in before ? patch(before[key], value, place(key)) : [{ op: "add", path: place(key), value }]));
  return out;
}

let before = null, all = "";
for (const line of readFileSync(process.argv[2], "utf8").trim().split("\n")) {
  const row = JSON.parse(line);
  if (!row.body.tools?.length) continue;  // titles and the like
  all += row.said;
  const said = each(row.said, () => true), body = each(row.body, (text) => all.includes(text));
  const what = before ? { patch: patch(before, body) } : { body };
  console.log(JSON.stringify({ path: row.path, said, ...what }));
  before = body;
}
