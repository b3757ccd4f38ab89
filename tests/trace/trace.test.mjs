// `sluice profile --trace` and `--html` in a real Chromium. Two importers of Chromium's own read the trace: that of
// the developer tools' Performance panel, and chrome://tracing's where the browser has that page (Debian's has not).
// Tracks, slices, begins and durations must arrive as they stand in the file. The page is drawn in light and dark.
// SLUICE_BINARY: the program. SLUICE_SHOTS: a folder for screenshots.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const executable = process.env.CHROMIUM ?? "/usr/bin/chromium";
const skip = existsSync(executable) ? false : `no Chromium at ${executable} (Debian package chromium)`;
const here = dirname(fileURLToPath(import.meta.url));
const binary = process.env.SLUICE_BINARY ?? join(here, "../../build/release/bin/sluice");

describe("profiles", { skip, timeout: 300_000 }, () => {
  let folder, browser, trace;
  const file = (name) => join(folder, name);

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "sluice-trace-"));
    execFileSync(binary, ["profile", "-p", "32", "-n", "2", "-t", "2", "--trace", file("t.json"), "--html", file("t.html")],
      { stdio: ["ignore", "ignore", "inherit"] });
    execFileSync(binary, ["profile", "-p", "32", "-n", "2", "-t", "2", "--layers", "--html", file("layers.html")],
      { stdio: ["ignore", "ignore", "inherit"] });
    trace = JSON.parse(readFileSync(file("t.json"), "utf8"));
    mkdirSync(file("browser"));
    writeFileSync(file("browser/Local State"), '{"internal_only_uis_enabled":true}'); // opens chrome://tracing
    browser = await chromium.launchPersistentContext(file("browser"), {
      executablePath: executable,
      headless: true,
      args: ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync"],
      viewport: { width: 1200, height: 800 },
    });
    browser.setDefaultTimeout(60_000); // a busy machine is no failure
  });
  after(async () => {
    await browser?.close();
    if (folder) rmSync(folder, { recursive: true, force: true });
  });

  /** The trace as the importer has it: [{name, slices: [{name, begin, duration}]}], microseconds. */
  function expectAll(tracks) {
    const names = new Map(trace.traceEvents.filter((e) => e.ph === "M").map((e) => [e.tid, e.args.name]));
    assert.deepEqual([...names.values()], ["steps", "worker 0", "worker 1"]);
    assert.deepEqual(tracks.map((track) => track.name).sort(), [...names.values()].sort());
    const sorted = (list) => list.toSorted((a, b) => a.begin - b.begin || b.duration - a.duration);
    const origin = Math.min(...tracks.flatMap((track) => track.slices.map((slice) => slice.begin)));
    for (const track of tracks) {
      const got = sorted(track.slices.map((slice) => ({ ...slice, begin: slice.begin - origin })));
      const want = sorted(trace.traceEvents.filter((e) => e.ph === "X" && names.get(e.tid) === track.name)
        .map((e) => ({ name: e.name, begin: e.ts, duration: e.dur })));
      assert.equal(got.length, want.length, track.name);
      for (const [i, slice] of want.entries()) {
        assert.equal(got[i].name, slice.name);
        assert.ok(Math.abs(got[i].begin - slice.begin) < 0.002, `${slice.name} begins at ${got[i].begin}`);
        assert.ok(Math.abs(got[i].duration - slice.duration) < 0.002, `${slice.name} takes ${got[i].duration}`);
      }
    }
  }

  test("the trace has the steps that were asked for", () => {
    const steps = trace.traceEvents.filter((e) => e.name.startsWith("step "));
    assert.equal(steps.length, 4 + 2, "of the prompt as many as a trace holds, and both decode steps");
    const attends = trace.traceEvents.filter((e) => e.name === "0.mla_values");
    assert.equal(attends.length, 2 * steps.length, "a slice for each worker and step");
    assert.match(attends[0].args.kernel, /^mla_values/);
  });

  test("the Performance panel's importer takes every track and slice", async () => {
    const page = await browser.newPage();
    await page.goto("devtools://devtools/bundled/devtools_app.html");
    const tracks = await page.evaluate(async (events) => {
      const { TraceModel, Handlers } = await import("devtools://devtools/bundled/models/trace/trace.js");
      const model = TraceModel.Model.createWithAllHandlers();
      await model.parse(events, {});
      return Handlers.Threads.threadsInTrace(model.parsedTrace().data).map((thread) => ({
        name: thread.name,
        slices: thread.entries.map((entry) => ({ name: entry.name, begin: entry.ts, duration: entry.dur })),
      }));
    }, trace.traceEvents);
    expectAll(tracks);
    await page.close();
  });

  test("chrome://tracing's importer takes every track and slice", async (t) => {
    const page = await browser.newPage();
    if (await page.goto("chrome://tracing").then(() => false, () => true)) {
      console.log("skipped: chrome://tracing: this Chromium was built without it");
      return t.skip("this Chromium was built without it");
    }
    await page.waitForFunction(() => globalThis.tr?.importer?.Import && globalThis.tr?.Model);
    const imported = await page.evaluate((text) => {
      const model = new tr.Model();
      new tr.importer.Import(model).importTraces([text]);
      return {
        warnings: model.importWarnings.map((warning) => warning.message),
        tracks: model.getAllThreads().map((thread) => ({
          name: thread.name,
          slices: thread.sliceGroup.slices.map((s) => ({ name: s.title, begin: 1e3 * s.start, duration: 1e3 * s.duration })),
        })),
      };
    }, JSON.stringify(trace));
    assert.deepEqual(imported.warnings, []);
    expectAll(imported.tracks);
    await page.close();
  });

  for (const [scheme, html] of [["light", "t.html"], ["dark", "t.html"], ["light", "layers.html"]]) {
    test(`${html} is drawn in ${scheme} colours, nothing outside of its plot, no names over each other`, async () => {
      const page = await browser.newPage();
      const problems = [];
      page.on("pageerror", (error) => problems.push(String(error)));
      page.on("request", (request) => { if (!request.url().startsWith("file:")) problems.push(request.url()); });
      await page.emulateMedia({ colorScheme: scheme });
      await page.goto(pathToFileURL(file(html)).href);
      const seen = await page.evaluate(() => {
        const outside = [], over = [];
        const plots = [...document.querySelectorAll("svg")];
        for (const plot of plots) {
          const frame = plot.getBoundingClientRect();
          const texts = [...plot.querySelectorAll("text")].filter((text) => text.textContent.trim())
            .map((text) => ({ text: text.textContent, box: text.getBoundingClientRect() }));
          for (const { text, box } of texts)
            if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2) outside.push(text);
          for (const [i, a] of texts.entries())
            for (const b of texts.slice(i + 1)) {
              const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
              const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
              if (wide > 2 && high > 6) over.push(`${a.text} | ${b.text}`);
            }
        }
        return { plots: plots.length, outside, over, wide: document.documentElement.scrollWidth > innerWidth };
      });
      if (process.env.SLUICE_SHOTS) await page.screenshot({ path: join(process.env.SLUICE_SHOTS, `${html}-${scheme}.png`), fullPage: true });
      assert.deepEqual(seen, { plots: 7, outside: [], over: [], wide: false });
      assert.deepEqual(problems, []);
      await page.close();
    });
  }
});
