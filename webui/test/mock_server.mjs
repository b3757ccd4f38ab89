// A server that streams like the API, for the page's tests and for working on it: `npm run mock`. What it answers
// depends on words in the last message.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const pageFile = join(dirname(fileURLToPath(import.meta.url)), "..", "dist", "index.html");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const tale = `# The mill by the river

The **mill** *grinds* what the river brings it, as \`sluice\` does:

1. water comes,
2. the wheel turns,
   - slowly in summer
   - fast in spring
3. flour falls.

\`\`\`cpp
// The wheel turns.
int main() {
  for (int i = 0; i < 3; ++i) std::printf("turn %d\\n", i);
  return 0;
}
\`\`\`

| month | water | flour |
|:------|------:|------:|
| April | 1200 l | 40 kg |
| July  | 300 l  | 9 kg  |

> The river gives, and the miller waits.

See [the mill](https://example.org/mill) for more.`;

const attacks = `<script>window.hacked = 1</script>
<img src=x onerror="window.hacked = 2">
<svg onload="window.hacked = 3"><script>window.hacked = 4</script></svg>

[click](javascript:window.hacked=5) [data](data:text/html,<script>window.hacked=6</script>)
[spaced](  javascript:window.hacked=7) [mixed](JaVaScRiPt:window.hacked=8) [vb](vbscript:x) <javascript:window.hacked=14>
![picture](https://example.org/track.png) ![inline](data:image/svg+xml,<svg onload=alert(1)>)

[fine](https://example.org/a?b=c&d) <https://example.org/auto> <b onclick="window.hacked=16">bold</b>

<a href="javascript:window.hacked=9">a</a> <iframe src="javascript:window.hacked=10"></iframe>
<style>body { display: none }</style> <form action="https://example.org"><input name=x><button>go</button></form>
<details open ontoggle="window.hacked=11">x</details> <math><mtext><img src=x onerror="window.hacked=12"></mtext></math>

\`\`\`html
<script>window.hacked = 13</script>
\`\`\`

\`\`\`"><img/src/onerror=window.hacked=15>
x
\`\`\`
the end of attacks`;

const lists = `Steps:

1. First do this:

\`\`\`sh
ls
\`\`\`

2. Then do that:

\`\`\`sh
pwd
\`\`\`

And from seven:

7. seven
8. eight

- [x] done
- [ ] open

| name | a rather long column heading | another one that is long | incomprehensibilities | and more | counterrevolutionaries |
|:--|:-:|--:|---|---|---|
| a | b | 1 | some quite long cell text that goes on | x | y |`;

const formulas = `The roots are \\(x = \\frac{-b \\pm \\sqrt{b^2-4ac}}{2a}\\), and $e^{i\\pi}+1=0$ with a_b and **bold $x_1 * x_2$ text**; $\\mathbb{R}$ and $\\mathcal{L}(\\mathbf{a1})$ and $\\mathrm{d}$.

$$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$$

\\[ \\sum_{n=1}^{\\infty} \\frac{1}{n^2} = \\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix} \\]

Prices: $5 and $10, or US$20 for one and US$30 for two; in code \`$x$ and \\(y\\)\`. Unreadable: \\(\\frac{1}\\) and $\\nonsense{x}$.

- in a list: $$\\prod_k k$$

An attack: $\\href{javascript:window.hacked=20}{x}$ $\\includegraphics{https://example.org/x.png}$ $\\htmlStyle{color:red}{x}$ the end of formulas`;

const languages = "שלום עולם, זה טקסט בעברית.\n\n- אחת\n- שתיים\n\nAnd English.\n\n你好，世界。";

function answerTo(text) {
  if (/lists/.test(text)) return { content: lists };
  if (/formulas/.test(text)) return { content: formulas };
  if (/languages/.test(text)) return { content: languages };
  if (/read slowly/.test(text)) return { content: "I have read it.", reads: 4000 };
  if (/grow/.test(text)) return { content: "The conversation is full", finish: "length", tokens: 2047 };
  if (/attack/.test(text)) return { content: attacks };
  if (/think/.test(text)) return { reasoning: "The reader asks for thought.\n\n- first this\n- then that", content: "I have thought: **42**." };
  if (/tale/.test(text)) return { content: tale };
  if (/long/.test(text)) return { content: "The wheel turns and turns. ".repeat(400), delay: 15 };
  return { content: `You said: ${text}` };
}

/** Models that come and go as a server's with several do, in a second. */
function severalModels() {
  const models = ["heron", "mill", "broken"].map((id, place) => ({ id, state: "unloaded", at: 0, bytes: 1.5e9 * (place + 1) }));
  const now = (one) => {
    if (one.state === "loading" && Date.now() - one.at > 1500) one.state = one.id === "broken" ? "failed" : "loaded";
    if (one.state === "unloading" && Date.now() - one.at > 500) one.state = "unloaded";
    const status = { value: one.state };
    if (one.state === "loading") status.progress = Math.min(1, (Date.now() - one.at) / 1500);
    if (one.state === "failed") status.error = "broken.gguf: not a GGUF file";
    return { id: one.id, object: "model", status, meta: { size: one.bytes, ...(one.state === "loaded" ? { n_ctx: 4096 } : {}) } };
  };
  return {
    list: () => models.map(now),
    move(change, id) {
      const one = models.find((other) => other.id === id);
      if (one && now(one).status.value !== `${change}ed`) Object.assign(one, { state: `${change}ing`, at: Date.now() });
      return one !== undefined;
    },
    async there(id) {
      this.move("load", id);
      for (;;) {
        const { value } = now(models.find((other) => other.id === id)).status;
        if (value !== "loading") return value === "loaded";
        await sleep(20);
      }
    },
  };
}

export async function startMock(port = 0, { several = false } = {}) {
  const requests = [];
  let remembers = true;
  const models = several ? severalModels() : null;
  const server = createServer(async (request, response) => {
    const path = request.url.split("?")[0];
    const json = (status, value) => {
      response.writeHead(status, { "Content-Type": "application/json" });
      response.end(JSON.stringify(value));
    };
    if (path === "/") {
      response.writeHead(200, {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
      });
      return response.end(readFileSync(pageFile));
    }
    if (models && path === "/v1/models") return json(200, { object: "list", data: models.list() });
    const change = path.match(/^\/models\/(load|unload)$/)?.[1];
    if (models && change) {
      let raw = "";
      for await (const part of request) raw += part;
      return models.move(change, JSON.parse(raw).model) ? json(200, { success: true }) : json(404, { error: { message: "no such model" } });
    }
    if (path === "/v1/models") return json(200, { object: "list", data: [{ id: "fairy-tales", object: "model" }] });
    if (path === "/cache/clear") {
      remembers = false;
      return json(200, { status: "ok" });
    }
    if (path === "/cache")
      return json(200, {
        page_tokens: 64,
        device: { pages: 512, pages_used: 100, pages_cached: remembers ? 200 : 0, pages_free: 212 },
        memory: { pages: remembers ? 1000 : 0, bytes: remembers ? 1.5e9 : 0, limit_bytes: 8e9 },
      });
    if (path === "/props") return json(200, { default_generation_settings: { n_ctx: 2048 } });
    if (path !== "/v1/chat/completions") return json(404, { error: { message: "no such page" } });
    let raw = "";
    for await (const part of request) raw += part;
    const body = JSON.parse(raw);
    const entry = { body, closed: false };
    requests.push(entry);
    const last = body.messages.at(-1);
    const text = last.content;
    if (models && !(await models.there(body.model))) return json(503, { error: { message: `${body.model}.gguf: not a GGUF file` } });
    if (/too much/.test(text)) return json(400, { error: { message: "3000 tokens, and the context has 2048", type: "exceed_context_size_error", code: "context_length_exceeded" } });
    if (/fail/.test(text)) return json(400, { error: { message: "The prompt is longer than the context.", type: "invalid_request_error" } });
    response.on("close", () => (entry.closed = !response.writableFinished));
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const send = (value) => response.write(`data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`);
    const chunk = (delta, finish = null) => send({ id: "c", object: "chat.completion.chunk", model: "fairy-tales", choices: [{ index: 0, delta, finish_reason: finish }] });
    const { reasoning = "", content, delay = 2, reads = 0, finish = "stop", tokens: counted } =
      last.role === "assistant" ? { content: " It goes on to its end." } : answerTo(text);
    chunk({ role: "assistant", content: "" });
    response.write(": ping\n\n");
    for (let done = 0; body.return_progress && done < reads && !response.destroyed; done += 500) {
      send({ id: "c", choices: [{ index: 0, delta: {}, finish_reason: null }], prompt_progress: { total: reads, cache: 0, processed: done, time_ms: 1 } });
      await sleep(150);
    }
    let tokens = 0;
    for (const [key, value] of [["reasoning_content", reasoning], ["content", content]]) {
      for (let at = 0; at < value.length && !response.destroyed; at += 5) {
        chunk({ [key]: value.slice(at, at + 5) });
        ++tokens;
        await sleep(delay);
      }
    }
    if (/break/.test(text)) return response.destroy();
    chunk({}, finish);
    if (counted) tokens = counted;
    send({ id: "c", choices: [], usage: { prompt_tokens: 300 + raw.length, completion_tokens: tokens, prompt_tokens_details: { cached_tokens: 12 } }, timings: { predicted_per_second: 123.4 } });
    send("[DONE]");
    response.end();
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, close: () => (server.closeAllConnections(), server.close()) };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log((await startMock(8088)).url);
