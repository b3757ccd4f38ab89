// The page in a real browser, against a mock of the API.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, beforeEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { startMock } from "../mock_server.mjs";
import { openBrowser, skip } from "./browser.mjs";

const shots = join(dirname(fileURLToPath(import.meta.url)), "..", "shots");

describe("the page", { skip, timeout: 600_000 }, () => {
  let mock, browser, page, problems, foreign;
  before(async () => {
    mkdirSync(shots, { recursive: true });
    mock = await startMock();
    browser = await openBrowser();
    browser.context.setDefaultTimeout(60_000); // a busy machine is no failure
  });
  after(async () => {
    await browser?.close();
    mock?.close();
  });
  beforeEach(async () => {
    for (const old of browser.context.pages().slice(1)) await old.close();
    page = await browser.context.newPage();
    problems = [];
    foreign = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("request", (request) => {
      if (!request.url().startsWith(mock.url) && !/^(data|blob):/.test(request.url())) foreign.push(request.url());
    });
    await page.emulateMedia({ colorScheme: "light" });
    await page.setViewportSize({ width: 1200, height: 800 });
    await page.goto(mock.url);
    await page.getByText("fairy-tales is ready.").waitFor();
  });

  const say = async (text) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Enter");
  };
  const done = () => page.getByRole("button", { name: "Regenerate" }).last().waitFor();
  const shot = (name) => page.screenshot({ path: join(shots, `${name}.png`) });
  const clean = () => {
    assert.deepEqual(problems, []);
    assert.deepEqual(foreign, []);
  };
  const lastRequest = () => mock.requests.at(-1).body;

  test("sends, streams, and shows Markdown, code and figures", async () => {
    await shot("empty");
    await say("Tell me a tale");
    await page.getByRole("heading", { name: "The mill by the river" }).last().waitFor();
    await done();
    assert.equal(await page.locator(".markdown ol > li").count(), 3);
    assert.equal(await page.locator(".markdown table tr").count(), 3);
    assert.ok((await page.locator(".code .hljs-keyword").count()) > 0);
    assert.match(await page.locator(".stats").innerText(), /\d+ tokens · 123\.4 tokens\/s/);
    assert.match(await page.locator(".meter svg").getAttribute("aria-label"), /of 2,048 tokens/);
    const link = page.getByRole("link", { name: "the mill" });
    assert.equal(await link.getAttribute("rel"), "noopener noreferrer nofollow");
    assert.deepEqual(lastRequest().stream_options, { include_usage: true });
    await page.locator(".scroller").evaluate((element) => (element.scrollTop = 0));
    await shot("tale");
    clean();
  });

  test("copies code", async () => {
    await browser.context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: mock.url.slice(0, -1) });
    await say("a tale");
    await done();
    await page.getByRole("button", { name: "Copy" }).and(page.locator(".copy-code")).click();
    await page.getByText("Copied").waitFor();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^\/\/ The wheel turns\.\nint main\(\) \{/);
    clean();
  });

  test("folds what the model thinks", async () => {
    await say("think about it");
    await done();
    const summary = page.locator("details.reasoning > summary");
    assert.match(await summary.innerText(), /^Thought for \d+ s$/);
    assert.equal(await page.locator(".reasoning .markdown").count(), 0);
    await summary.click();
    await page.getByText("first this").waitFor();
    assert.equal(await page.locator(".markdown strong").last().innerText(), "42");
    await shot("thinking");
    await say("and now");
    await done();
    assert.ok(!JSON.stringify(lastRequest().messages).includes("first this"), "earlier thoughts are not sent again");
    clean();
  });

  test("stops, by button and by key, and keeps what came", async () => {
    for (const stop of [() => page.getByRole("button", { name: "Stop" }).click(), () => page.keyboard.press("Escape")]) {
      await page.getByRole("button", { name: "New chat" }).click();
      await say("a long one");
      await page.getByText("turns and turns").first().waitFor();
      await shot("writing");
      await stop();
      await page.getByText("Stopped.").waitFor();
      const length = (await page.locator(".assistant .markdown").innerText()).length;
      assert.ok(length > 5 && length < 5000, `${length}`);
      await page.waitForTimeout(200);
      assert.equal(mock.requests.at(-1).closed, true, "the server is told");
    }
    clean();
  });

  test("keeps conversations over a reload", async () => {
    await say("remember the river");
    await done();
    await page.reload();
    await page.locator(".user .bubble").getByText("remember the river").waitFor();
    assert.equal(await page.locator(".assistant .markdown").innerText(), "You said: remember the river");
    await say("and the mill");
    await done();
    assert.deepEqual(lastRequest().messages.map((message) => message.role), ["user", "assistant", "user"]);
    clean();
  });

  test("edits and regenerates", async () => {
    await say("first");
    await done();
    await say("second");
    await page.getByText("You said: second").waitFor();
    await done();
    await page.getByRole("button", { name: "Regenerate" }).last().click();
    await done();
    assert.equal(lastRequest().messages.length, 3);
    await page.locator(".user").first().hover();
    await page.getByRole("button", { name: "Edit" }).first().click();
    await page.getByLabel("Edit your message").fill("other");
    await page.keyboard.press("Enter");
    await page.getByText("You said: other").waitFor();
    await done();
    assert.equal(await page.locator(".message").count(), 2);
    assert.deepEqual(lastRequest().messages, [{ role: "user", content: "other" }]);
    await page.getByLabel("Message", { exact: true }).focus();
    await page.keyboard.press("ArrowUp");
    assert.equal(await page.getByLabel("Edit your message").inputValue(), "other");
    await page.keyboard.press("Escape");
    assert.equal(await page.getByLabel("Edit your message").count(), 0);
    clean();
  });

  test("exports, deletes and imports", async (t) => {
    await say("to be kept");
    await done();
    const waiting = page.waitForEvent("download");
    await page.getByRole("button", { name: "Export" }).click();
    const path = join(tmpdir(), `sluice-export-${process.pid}.json`);
    t.after(() => rmSync(path, { force: true }));
    await (await waiting).saveAs(path);
    const exported = JSON.parse(readFileSync(path, "utf8"));
    assert.equal(exported.conversations[0].messages[0].content, "to be kept");
    page.once("dialog", (dialog) => dialog.accept());
    await page.getByRole("button", { name: "Delete “to be kept”" }).first().click();
    await page.getByText("What shall we talk about?").waitFor();
    const others = await page.locator(".sidebar li").count();
    await page.getByLabel("File to import").setInputFiles(path);
    await page.locator(".user .bubble").getByText("to be kept").waitFor();
    assert.equal(await page.locator(".sidebar li").count(), others + 1, "only what was missing comes back");
    writeFileSync(path, '{"conversations": [{"messages": [{"role": "system"}]}]}');
    await page.getByLabel("File to import").setInputFiles(path);
    await page.getByText("Conversation 1 in this file is damaged.").waitFor();
    clean();
  });

  test("text of models and readers runs nothing and fetches nothing", async () => {
    await say("attack <img src=x onerror=window.hacked=1>");
    await page.getByText("the end of attacks").waitFor();
    await done();
    const links = await page.locator(".markdown a").evaluateAll((all) => all.map((link) => [link.textContent, link.getAttribute("href")]));
    assert.ok(links.some(([text, href]) => text === "fine" && href === "https://example.org/a?b=c&d"), JSON.stringify(links));
    assert.ok(links.some(([text]) => text === "click"), "the javascript: link was read as a link");
    for (const [text, href] of links) assert.match(href ?? "https:", /^(https?:|mailto:)/, text);
    await page.locator(".markdown a").getByText("click", { exact: true }).click();
    await page.locator(".markdown a").getByText("mixed", { exact: true }).click();
    assert.equal(await page.locator(".markdown").locator("script, img, svg, iframe, style, form, math, details, object").count(), 0);
    assert.equal(await page.evaluate(() => document.querySelectorAll(".thread [onerror], .thread [onload], .thread [ontoggle]").length), 0);
    await page.waitForTimeout(100);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    await page.reload();
    await page.getByText("the end of attacks").waitFor();
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    await shot("attacks");
    clean();
  });

  test("the policy holds by itself", async () => {
    const blocked = await page.evaluate(async () => {
      const seen = [];
      document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
      const attempt = (work) => {
        try {
          work();
        } catch {
          seen.push("threw");
        }
      };
      attempt(() => (document.body.appendChild(document.createElement("div")).innerHTML = "<img src=x onerror='window.hacked=1'>"));
      // From a timer: what a debugger evaluates may itself evaluate.
      setTimeout(() => attempt(() => new Function("window.hacked = 2")()));
      await fetch("https://example.org/").catch(() => seen.push("fetch"));
      await new Promise((resolve) => setTimeout(resolve, 100));
      return { seen, hacked: window.hacked };
    });
    assert.equal(blocked.hacked, undefined);
    assert.ok(blocked.seen.includes("threw"));
    assert.ok(blocked.seen.includes("connect-src"));
  });

  test("settings reach the server and are kept", async () => {
    await page.keyboard.press("Control+,");
    const panel = page.getByRole("dialog", { name: "Settings" });
    await panel.getByLabel("System prompt").fill("You are a miller.");
    await panel.getByLabel("Temperature").fill("0.3");
    await panel.getByLabel("Longest answer").fill("77");
    await panel.getByLabel("Let the model think").uncheck();
    await shot("settings");
    await page.keyboard.press("Escape");
    await page.reload();
    await page.getByText("fairy-tales is ready.").waitFor();
    await say("hello");
    await done();
    const body = lastRequest();
    assert.deepEqual(body.messages[0], { role: "system", content: "You are a miller." });
    assert.equal(body.temperature, 0.3);
    assert.equal(body.max_tokens, 77);
    assert.equal(body.top_p, undefined);
    assert.deepEqual(body.chat_template_kwargs, { enable_thinking: false });
    await page.evaluate(() => localStorage.clear());
    clean();
  });

  test("says in plain words what went wrong", async () => {
    await say("fail");
    await page.getByRole("alert").getByText("The prompt is longer than the context.").waitFor();
    await say("break");
    await page.getByText(/connection to the server was lost|ended before it was whole/).waitFor();
    await shot("errors");
    assert.deepEqual(foreign, []);
  });

  test("dark, and narrow like a phone", async () => {
    await page.emulateMedia({ colorScheme: "dark" });
    await say("a tale");
    await done();
    const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(dark, "rgb(21, 25, 27)");
    await page.locator(".scroller").evaluate((element) => (element.scrollTop = 0));
    await shot("dark");
    await page.setViewportSize({ width: 390, height: 800 });
    await page.waitForTimeout(300);
    await page.locator(".scroller").evaluate((element) => (element.scrollTop = 0));
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing sticks out");
    await shot("phone-dark");
    await page.emulateMedia({ colorScheme: "light" });
    await page.getByRole("button", { name: "Conversations" }).click();
    await page.waitForTimeout(300);
    await shot("phone-sidebar");
    await page.locator(".sidebar .title").first().click();
    await page.waitForTimeout(300);
    await shot("phone");
    clean();
  });
});
