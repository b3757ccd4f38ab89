// The page of a server with several models: which one answers, what the others are doing.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { startMock } from "../mock_server.mjs";
import { openBrowser, skip } from "./browser.mjs";

const shots = join(dirname(fileURLToPath(import.meta.url)), "..", "shots");

describe("several models", { skip, timeout: 300_000 }, () => {
  let mock, browser, page;
  const problems = [];
  before(async () => {
    mkdirSync(shots, { recursive: true });
    mock = await startMock(0, { several: true });
    browser = await openBrowser();
    browser.context.setDefaultTimeout(60_000);
    page = await browser.context.newPage();
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    await page.goto(mock.url);
    await page.getByText("heron will be loaded for your first message.").waitFor();
  });
  after(async () => {
    await browser?.close();
    mock?.close();
  });
  const picker = () => page.getByRole("button", { name: /heron|mill|broken/ }).and(page.locator(".picker"));
  const row = (name) => page.locator(".models li", { hasText: name });
  const say = async (text) => {
    await page.getByLabel("Message", { exact: true }).fill(text);
    await page.keyboard.press("Enter");
  };

  test("one is picked, shows how it loads, and answers", async () => {
    await picker().click();
    assert.equal(await page.locator(".models li").count(), 3);
    assert.match(await row("mill").innerText(), /3\.0 GB/);
    await row("mill").locator(".choice").click();
    await row("mill").getByRole("progressbar", { name: "Loading mill" }).waitFor();
    assert.match(await row("mill").innerText(), /loading, \d+%/);
    await page.screenshot({ path: join(shots, "models-loading.png") });
    await row("mill").getByText("in memory").waitFor();
    assert.equal(await row("mill").locator(".choice").getAttribute("aria-pressed"), "true");
    await page.keyboard.press("Escape");
    await page.locator(".models .list").waitFor({ state: "detached" });
    await page.getByText("mill is ready.").waitFor();
    assert.equal(await page.title(), "mill · Sluice");
    await say("Who are you?");
    await page.getByText("You said: Who are you?").waitFor();
    assert.equal(mock.requests.at(-1).body.model, "mill");
    assert.match(await page.locator(".meter svg").getAttribute("aria-label"), /of 4,096 tokens/);
  });

  test("a message before the page knows the models goes to one of them, and after a choice to the one chosen", async () => {
    const early = await browser.context.newPage();
    let asked = () => {}, answer = () => {};
    const looked = new Promise((resolve) => (asked = resolve)), held = new Promise((resolve) => (answer = resolve));
    await early.route("**/v1/models", async (route) => {
      asked();
      await held;
      await route.continue();
    });
    await early.goto(mock.url);
    await looked;
    await early.getByLabel("Message", { exact: true }).fill("Who is there?");
    await early.keyboard.press("Enter");
    await early.locator(".user .bubble").getByText("Who is there?").waitFor();
    answer();
    await early.getByText("You said: Who is there?").waitFor();
    assert.equal(mock.requests.at(-1).body.model, "mill");
    // What the server has is told late again: the choice stands.
    await early.unroute("**/v1/models");
    await early.route("**/models/load", (route) => route.fulfill({ status: 200, json: { success: true } }));
    await early.route("**/v1/models", () => {});
    await early.locator(".picker").click();
    await early.locator(".models li", { hasText: "heron" }).locator(".choice").click();
    await early.keyboard.press("Escape");
    await early.getByLabel("Message", { exact: true }).fill("And you?");
    await early.keyboard.press("Enter");
    await early.getByText("You said: And you?").waitFor();
    assert.equal(mock.requests.at(-1).body.model, "heron");
    await early.close();
    await page.getByRole("button", { name: "New chat" }).first().click();
    await picker().click();
    await row("mill").locator(".choice").click();
    await row("mill").getByText("in memory").waitFor();
    await page.keyboard.press("Escape");
    await page.locator(".models .list").waitFor({ state: "detached" });
  });

  test("one leaves memory when it is told to, and stays chosen", async () => {
    await picker().click();
    await page.getByRole("button", { name: "Unload mill" }).click();
    await row("mill").getByText("leaving memory").waitFor();
    await row("mill").getByText("in memory").waitFor({ state: "detached" });
    await row("mill").getByText("leaving memory").waitFor({ state: "detached" });
    await page.locator("h1").click(); // beside the list: it closes
    await page.locator(".models .list").waitFor({ state: "detached" });
    await page.reload();
    await page.locator(".picker", { hasText: "mill" }).waitFor();
    // A message loads it again, and the page says so meanwhile.
    await say("Are you there?");
    await page.locator(".moving", { hasText: /loading, \d+%/ }).waitFor();
    await page.getByText("You said: Are you there?").waitFor();
  });

  test("why one failed is told", async () => {
    await picker().click();
    await row("broken").locator(".choice").click();
    await row("broken").getByText("broken.gguf: not a GGUF file").waitFor();
    await page.screenshot({ path: join(shots, "models-failed.png") });
    await row("heron").locator(".choice").click();
    await row("heron").getByText("in memory").waitFor();
    await page.emulateMedia({ colorScheme: "dark" });
    await page.setViewportSize({ width: 390, height: 720 });
    await page.screenshot({ path: join(shots, "models-narrow.png") });
    const box = await page.locator(".models .list").boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 390, JSON.stringify(box));
    assert.deepEqual(problems, []);
  });
});
