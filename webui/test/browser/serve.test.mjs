// The page that is built into the binary, from `sluice serve` with the bundled model: SLUICE_BINARY names the
// program. Between the two stands a gate that lets a stream through piece by piece: so it can be seen in the
// middle, however fast the model and however slow the machine.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync } from "node:fs";
import { connect, createServer } from "node:net";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { openBrowser, skip as noBrowser } from "./browser.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const binary = process.env.SLUICE_BINARY ?? join(here, "..", "..", "..", "build", "release", "bin", "sluice");
const skip = noBrowser || (existsSync(binary) ? false : `no program at ${binary} (SLUICE_BINARY names it)`);
const shots = join(here, "..", "shots");

/** Starts the server on a free port and waits until its model is there. */
async function serve() {
  const child = spawn(binary, ["serve", "--port", "0", "-c", "1024"], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  const address = await new Promise((resolve, reject) => {
    child.stderr.on("data", (bytes) => {
      log += bytes;
      const line = log.match(/ready at (http:\S+)/);
      if (line) resolve(line[1]);
    });
    child.on("error", reject);
    child.on("exit", () => reject(new Error(`sluice serve ended: ${log}`)));
  });
  return { child, address };
}

/** Passes bytes on. While it is closed, a stream's events wait for next(), one after the other: a read brings
 *  as many of them as the server has sent by then, often all. */
class Gate {
  closed = false;
  waiting = [];

  async open(port) {
    this.server = createServer((client) => {
      const upstream = connect(port, "127.0.0.1");
      let streams = false;
      client.pipe(upstream);
      upstream.on("data", (bytes) => {
        streams ||= bytes.includes("text/event-stream");
        if (this.closed && streams) this.hold(client, bytes);
        else client.write(bytes);
      });
      for (const socket of [client, upstream]) {
        socket.on("error", () => {});
        socket.on("close", () => (client.destroy(), upstream.destroy()));
      }
    });
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${this.server.address().port}`;
  }
  hold(client, bytes) {
    for (let begin = 0, end; begin < bytes.length; begin = end) {
      const blank = bytes.indexOf("\n\n", begin);
      end = blank < 0 ? bytes.length : blank + 2;
      const piece = bytes.subarray(begin, end);
      this.waiting.push(() => client.write(piece));
    }
  }
  next() {
    this.waiting.shift()?.();
  }
  release() {
    this.closed = false;
    while (this.waiting.length) this.next();
  }
}

describe("the page and its server", { skip, timeout: 600_000 }, () => {
  let server, browser, page, address;
  const gate = new Gate();
  const problems = [], foreign = [];
  before(async () => {
    mkdirSync(shots, { recursive: true });
    server = await serve();
    address = await gate.open(new URL(server.address).port);
    browser = await openBrowser();
    browser.context.setDefaultTimeout(120_000); // a busy machine is no failure
    page = browser.context.pages()[0] ?? (await browser.context.newPage());
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("request", (request) => {
      if (!request.url().startsWith(address) && !/^(data|blob):/.test(request.url())) foreign.push(request.url());
    });
    const response = await page.goto(address);
    assert.match(response.headers()["content-security-policy"], /frame-ancestors 'none'/);
    await page.getByText("Fairy Tales is ready.").waitFor();
  });
  after(async () => {
    await browser?.close();
    gate.server?.close();
    if (!server) return;
    server.child.kill("SIGTERM");
    const [code] = await once(server.child, "exit");
    assert.equal(code, 0, "the server stops gracefully");
  });

  const say = async (text) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Enter");
  };
  const answer = () => page.locator(".assistant .markdown").last();
  const idle = async () => {
    const slots = await (await fetch(`${server.address}/slots`)).json();
    return slots.every((slot) => !slot.is_processing);
  };

  /** Lets events through until there is more of an answer than `length`, each with time to be drawn; gives what
   *  there is. */
  const moreThan = async (length) => {
    for (let tries = 0; tries < 6000; ++tries) {
      const text = (await answer().isVisible()) ? await answer().innerText() : "";
      if (text.length > length) return text;
      if (tries % 20 === 0) gate.next();
      await page.waitForTimeout(10);
    }
    throw new Error(`no more than ${length} characters came`);
  };

  test("an answer streams, piece by piece, to its end", async () => {
    gate.closed = true;
    await say("Tell me a tale about a fox.");
    const begin = await moreThan(0);
    const more = await moreThan(begin.length);
    assert.ok(more.startsWith(begin), `${begin} / ${more}`);
    await page.getByRole("button", { name: "Stop" }).waitFor();
    gate.release();
    await page.getByRole("button", { name: "Regenerate" }).last().waitFor();
    const text = await answer().innerText();
    assert.ok(text.length > 100 && text.startsWith(begin), text);
    assert.match(await page.locator(".stats").last().innerText(), /\d+ tokens · [\d.,]+ tokens\/s/);
    assert.match(await page.locator(".meter svg").getAttribute("aria-label"), /of 1,024 tokens/);
    await page.screenshot({ path: join(shots, "served.png") });
  });

  test("stopping ends the work in the server and keeps what came", async () => {
    await page.getByRole("button", { name: "New chat", exact: true }).click();
    await page.keyboard.press("Control+,");
    const panel = page.getByRole("dialog", { name: "Settings" });
    await panel.getByLabel("System prompt").fill("You tell long tales.");
    await panel.getByText(/[1-9][\d,]* tokens of [\d,]+/).waitFor();  // remembered of the tale before
    await page.keyboard.press("Escape");
    gate.closed = true;
    await say("Once upon a time there was a king who had twelve daughters, and each of them");
    const text = await moreThan(0);
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText("Stopped.").waitFor();
    gate.release();
    assert.ok((await answer().innerText()).startsWith(text));
    for (let i = 0; i < 200 && !(await idle()); ++i) await new Promise((resolve) => setTimeout(resolve, 50));
    assert.ok(await idle(), "nothing runs any more");
    const kept = await answer().innerText();
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByRole("button", { name: "Regenerate" }).last().waitFor();
    const whole = await answer().innerText();
    assert.ok(whole.startsWith(kept.trimEnd()) && whole.length > kept.length, `${kept} | ${whole}`);
  });

  test("a reload keeps the conversations", async () => {
    const asked = page.locator(".user .bubble").getByText("twelve daughters").first();
    await asked.waitFor();
    await page.reload();
    await asked.waitFor();
    await answer().waitFor();
    await page.locator(".sidebar .title").getByText("Tell me a tale about a fox.").click();
    assert.ok((await answer().innerText()).length > 100, "the first tale is still there");
  });

  test("nothing went wrong and nothing left for elsewhere", () => {
    assert.deepEqual(problems, []);
    assert.deepEqual(foreign, []);
  });
});
