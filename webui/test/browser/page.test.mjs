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
      await page.getByRole("button", { name: "New chat", exact: true }).click();
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

  test("shows what the server remembers, and lets it forget", async () => {
    await page.keyboard.press("Control+,");
    const cache = page.getByRole("dialog", { name: "Settings" }).getByRole("group", { name: "Remembered prompts" });
    await cache.getByText("19,200 tokens of 32,768, 6,400 in use").waitFor();
    await cache.getByText("64,000 tokens · 1.5 GB of 8.0 GB").waitFor();
    assert.equal(await cache.getByText("on disk").count(), 0, "there is no folder");
    await shot("cache");
    await cache.getByRole("button", { name: "Forget them" }).click();
    await cache.getByText("6,400 tokens of 32,768, 6,400 in use").waitFor();
    await page.keyboard.press("Escape");
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

  test("lists, boxes and tables are as they were written", async () => {
    await say("lists");
    await done();
    assert.deepEqual(await page.locator(".markdown ol").evaluateAll((all) => all.map((list) => list.start)), [1, 2, 7]);
    assert.deepEqual(await page.locator(".markdown li input").evaluateAll((all) => all.map((box) => [box.type, box.checked, box.disabled])), [["checkbox", true, true], ["checkbox", false, true]]);
    assert.ok(await page.locator(".code pre").evaluateAll((all) => all.every((one) => one.tabIndex === 0)), "long code can be scrolled by keys");
    await page.setViewportSize({ width: 390, height: 800 });
    const broken = await page.locator(".markdown th").evaluateAll((all) => all.filter((cell) => {
      // Each word of a heading stands in one line.
      const text = cell.firstChild;
      return [...text.data.matchAll(/\S+/g)].some(({ index, 0: word }) => {
        const range = document.createRange();
        range.setStart(text, index);
        range.setEnd(text, index + word.length);
        return range.getClientRects().length > 1;
      });
    }).length);
    assert.equal(broken, 0);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the table is scrolled, not the page");
    await page.waitForTimeout(300); // the sidebar slides away
    await shot("lists-phone");
    clean();
  });

  test("draws mathematics, and shows what is none as it was written", async () => {
    await say("formulas");
    await page.getByText("the end of formulas").waitFor();
    await done();
    const all = page.locator(".markdown math");
    assert.equal(await page.locator(".markdown math[display=block]").count(), 3);
    const sources = await all.locator("annotation").evaluateAll((list) => list.map((one) => one.textContent));
    for (const tex of ["x = \\frac{-b \\pm \\sqrt{b^2-4ac}}{2a}", "e^{i\\pi}+1=0", "x_1 * x_2", "\\prod_k k"]) assert.ok(sources.includes(tex), `${tex} in ${sources.join(" | ")}`);
    const letters = await all.evaluateAll((list) => list.map((one) => one.querySelector("mrow").textContent));
    for (const one of ["ℝ", "ℒ(𝐚𝟏)", "d"]) assert.ok(letters.includes(one), `${one} in ${letters.join(" | ")}`);
    assert.ok((await page.locator(".markdown mfrac").first().boundingBox()).height > 20, "a fraction stands upright");
    const [base, below] = await page.locator("strong msub").first().evaluate((one) => [...one.children].map((part) => part.getBoundingClientRect().bottom));
    assert.ok(below > base, "a subscript stands below its line, whatever fonts there are");
    const text = await page.locator(".assistant .markdown").innerText();
    assert.match(text, /Prices: \$5 and \$10, or US\$20 for one and US\$30 for two; in code \$x\$ and \\\(y\\\)/);
    assert.match(text, /An attack: \$\\href\{javascript:window\.hacked=20\}\{x\}\$ \$\\includegraphics/);
    assert.match(text, /Unreadable: \\\(\\frac\{1\}\\\) and \$\\nonsense\{x\}\$/);
    assert.equal(await page.locator(".markdown").locator("img, [style], a[href^=javascript]").count(), 0);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    await shot("formulas");
    clean();
  });

  test("text runs the way its language does", async () => {
    await say("languages");
    await done();
    const sides = await page.locator(".markdown p").evaluateAll((all) => all.map((one) => {
      const range = document.createRange();
      range.selectNodeContents(one);
      const text = range.getBoundingClientRect(), box = one.getBoundingClientRect();
      return text.left - box.left > box.right - text.right ? "right" : "left";
    }));
    assert.deepEqual(sides, ["right", "left", "left"]);
    await shot("languages");
    clean();
  });

  /** Until what was said is kept: a transaction waits for those before it. */
  const kept = () =>
    page.evaluate(
      () =>
        new Promise((resolve) => {
          indexedDB.open("sluice", 1).onsuccess = (opened) => {
            const transaction = opened.target.result.transaction("conversations", "readonly");
            transaction.objectStore("conversations").count();
            transaction.oncomplete = () => {
              opened.target.result.close();
              resolve();
            };
          };
        }),
    );

  test("keeps versions of answers and of questions", async () => {
    await say("first");
    await done();
    await page.getByRole("button", { name: "Regenerate" }).click();
    await page.getByText("2/2").waitFor();
    await done();
    await page.getByRole("button", { name: "Version before" }).click();
    await page.getByText("1/2").waitFor();
    await say("second");
    await page.getByText("You said: second").waitFor();
    await done();
    assert.deepEqual(lastRequest().messages.map((message) => message.content), ["first", "You said: first", "second"]);
    await kept();
    // A reload within moments: the database's write does not come to its end.
    await page.evaluate(() => {
      IDBObjectStore.prototype.put = function () {
        this.transaction.abort();
      };
    });
    await page.getByRole("button", { name: "Next version" }).click();
    await page.getByText("2/2").waitFor();
    assert.equal(await page.locator(".message").count(), 2, "what followed the other version is with that one");
    await page.reload();
    await page.getByText("2/2").waitFor();
    await page.getByRole("button", { name: "Version before" }).click();
    await page.getByText("You said: second").waitFor();
    await page.locator(".user").last().hover();
    await page.getByRole("button", { name: "Edit" }).last().click();
    await page.getByLabel("Edit your message").fill("third");
    await page.keyboard.press("Enter");
    await page.getByText("You said: third").waitFor();
    await done();
    assert.equal(await page.locator(".versions").count(), 2);
    await shot("versions");
    clean();
  });

  test("two pages lose nothing of each other's", async () => {
    await say("from the beginning");
    await done();
    const other = await browser.context.newPage();
    await other.goto(page.url());
    await other.getByText("You said: from the beginning").waitFor();
    const sayThere = async (text) => {
      await other.getByLabel("Message", { exact: true }).fill(text);
      await other.keyboard.press("Enter");
    };
    await say("from one");
    await other.getByText("You said: from one").waitFor(); // it is there without a reload
    await other.getByRole("button", { name: "Regenerate" }).last().waitFor();
    await sayThere("from two");
    await page.getByText("You said: from two").waitFor();
    await done();
    assert.deepEqual(await page.locator(".user .bubble").allInnerTexts(), ["from the beginning", "from one", "from two"]);
    // Both at the same time, before either has heard of the other: two versions, and none is lost.
    for (const one of [page, other]) await one.evaluate(() => (BroadcastChannel.prototype.postMessage = () => {}));
    await Promise.all([say("at once, one"), sayThere("at once, two")]);
    await page.getByText("You said: at once, one").waitFor();
    await other.getByText("You said: at once, two").waitFor();
    await page.waitForTimeout(1500);
    await page.reload();
    await page.locator(".user .versions").waitFor();
    const seen = new Set();
    for (const name of ["Version before", "Next version"]) {
      const button = page.locator(".user").last().getByRole("button", { name });
      if (await button.isEnabled()) await button.click();
      await done();
      seen.add(await page.locator(".user .bubble").last().innerText());
    }
    assert.deepEqual([...seen].sort(), ["at once, one", "at once, two"]);
    // What one deletes is gone in the other one, too.
    await other.reload();
    page.once("dialog", (dialog) => dialog.accept());
    await page.getByRole("button", { name: "Delete “from the beginning”" }).click();
    await other.getByText("What shall we talk about?").waitFor();
    await other.close();
    clean();
  });

  test("a reload in the middle keeps what came, and the answer can go on", async () => {
    await say("a long one");
    await page.getByText("turns and turns. The wheel turns and turns. The wheel").first().waitFor();
    await page.waitForTimeout(1200); // it is kept every second
    const before = (await page.locator(".assistant .markdown").innerText()).length;
    await page.reload();
    await page.getByText("The page was closed before this answer was whole.").waitFor();
    const text = await page.locator(".assistant .markdown").innerText();
    assert.ok(text.length > 20 && text.length > before / 3, `${text.length} of ${before}`);
    assert.equal(await page.getByRole("button", { name: "Regenerate" }).count(), 1);
    await shot("interrupted");
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByText("It goes on to its end.").waitFor();
    await done();
    const body = lastRequest();
    assert.equal(body.messages.at(-1).role, "assistant");
    assert.equal(body.continue_final_message, true);
    assert.ok((await page.locator(".assistant .markdown").innerText()).startsWith(text.trim()), "what came before stays");
    assert.equal(await page.locator(".note").count(), 0);
    await page.reload();
    await page.getByText("It goes on to its end.").waitFor();
    clean();
  });

  test("what is sent before the page knows what it keeps is lost nowhere", async () => {
    await say("the first");
    await done();
    await page.addInitScript(() => {
      const { open } = IDBFactory.prototype;
      const opened = new Promise((resolve) => (window.answerStorage = resolve));
      IDBFactory.prototype.open = function (...given) {
        const request = open.apply(this, given);
        Object.defineProperty(request, "onsuccess", {
          set: (heard) => request.addEventListener("success", (event) => void opened.then(() => heard.call(request, event))),
        });
        return request;
      };
    });
    await page.reload();
    await page.getByText("fairy-tales is ready.").waitFor();
    await say("the second");
    await page.evaluate(() => window.answerStorage());
    await page.getByText("You said: the second").waitFor();
    await done();
    assert.deepEqual(await page.locator(".user .bubble").allInnerTexts(), ["the first", "the second"]);
    assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "");
  });

  test("several chats are answered at once", async () => {
    await say("a long one, the first");
    await page.getByText("turns and turns").first().waitFor();
    await page.getByRole("button", { name: "New chat", exact: true }).click();
    await say("the second");
    await page.getByText("You said: the second").waitFor();
    await done();
    assert.equal(await page.locator(".sidebar .dot").count(), 1, "the first one is still being written");
    await page.locator(".sidebar .title").getByText("a long one, the first").click();
    await page.getByRole("button", { name: "Stop" }).waitFor();
    const length = (await page.locator(".assistant .markdown").innerText()).length;
    await page.waitForFunction((least) => document.querySelector(".assistant .markdown").innerText.length > least, length);
    await page.keyboard.press("Escape");
    await page.getByText("Stopped.").waitFor();
    await page.getByRole("button", { name: "Continue" }).waitFor();
    clean();
  });

  test("shows how far a long prompt is read, and how fast an answer is written", async () => {
    await say("read slowly");
    await page.getByText(/Reading the conversation: [\d,]+ of 4,000 tokens/).waitFor();
    assert.equal(await page.locator(".progress progress").getAttribute("max"), "4000");
    await shot("reading");
    await done();
    assert.equal(lastRequest().return_progress, true);
    await say("a long one");
    await page.getByText(/^[\d.]+ tokens\/s$/).waitFor();
    await shot("speed");
    await page.keyboard.press("Escape");
    await page.getByText("Stopped.").waitFor();
    clean();
  });

  test("a full context says what can be done", async () => {
    await say("grow");
    await page.getByText("The conversation has reached the 2,048 tokens of the model's context. Start a new chat").waitFor();
    await say("too much");
    await page.getByText("Start a new chat").nth(1).waitFor();
    await shot("full");
    await page.getByRole("button", { name: "New chat with the last message" }).last().click();
    await page.locator(".user .bubble").getByText("too much").waitFor();
    assert.equal(await page.locator(".user .bubble").count(), 1);
    assert.deepEqual(lastRequest().messages.map((message) => message.content), ["too much"]);
    await page.getByText("The message does not fit even alone: edit it to make it shorter.").waitFor();
    assert.equal(await page.getByRole("button", { name: "New chat with the last message" }).count(), 0);
    assert.equal(await page.locator(".meter .share").innerText(), "100%");
    assert.deepEqual(foreign, []); // that the request was refused stands in the console
  });

  test("copies over plain HTTP from another machine, too", async () => {
    const far = await openBrowser({ flags: ["--host-resolver-rules=MAP chat.lan 127.0.0.1"] });
    try {
      const there = far.context.pages()[0] ?? (await far.context.newPage());
      await there.goto(mock.url.replace("127.0.0.1", "chat.lan"));
      assert.equal(await there.evaluate(() => isSecureContext), false);
      const box = there.getByLabel("Message", { exact: true });
      await box.fill("over there");
      await there.keyboard.press("Enter");
      await there.getByRole("button", { name: "Regenerate" }).waitFor();
      await there.locator(".assistant").getByRole("button", { name: "Copy" }).click();
      await there.getByText("Copied").waitFor();
      await box.focus();
      await there.keyboard.press("Control+v");
      assert.equal(await box.inputValue(), "You said: over there");
    } finally {
      await far.close();
    }
  });

  test("renames in its place", async () => {
    await say("an old name");
    await done();
    await page.locator(".sidebar li.current").hover();
    await page.getByRole("button", { name: "Rename “an old name”" }).click();
    await page.getByLabel("Title").fill("A new name");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "A new name" }).waitFor();
    await page.locator(".sidebar .title").getByText("A new name").dblclick();
    await page.keyboard.press("Escape");
    await page.reload();
    await page.getByRole("heading", { name: "A new name" }).waitFor();
    clean();
  });

  test("on a touch screen Enter begins a new line, and chats can be renamed", async () => {
    const phone = await openBrowser({ viewport: { width: 390, height: 800 }, hasTouch: true, isMobile: true });
    try {
      const there = phone.context.pages()[0] ?? (await phone.context.newPage());
      await there.goto(mock.url);
      await there.getByText("fairy-tales is ready.").waitFor();
      const box = there.getByLabel("Message", { exact: true });
      await box.tap();
      await there.keyboard.type("one");
      await there.keyboard.press("Enter");
      await there.keyboard.type("two");
      assert.equal(await box.inputValue(), "one\ntwo");
      await there.getByRole("button", { name: "Send" }).tap();
      await there.getByRole("button", { name: "Regenerate" }).waitFor();
      assert.equal(lastRequest().messages.at(-1).content, "one\ntwo");
      await there.getByRole("button", { name: "Conversations" }).tap();
      await there.getByRole("button", { name: "Rename “one two”" }).tap();
      await there.getByLabel("Title").fill("three");
      await there.waitForTimeout(300);
      await there.screenshot({ path: join(shots, "touch.png") });
      await there.keyboard.press("Enter");
      await there.locator(".sidebar .title").getByText("three").waitFor();
    } finally {
      await phone.close();
    }
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
