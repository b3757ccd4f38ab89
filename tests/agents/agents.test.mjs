// Coding agents, each with a whole task: read a file, change it, say so. What the model says is a script in
// Qwen3-Coder's form, so what an agent does is known; the rest is the server's.
// SLUICE_BINARY: the program. SLUICE_RECORD: a folder for the requests that agents send, as JSON lines
// (shorten.mjs makes recorded sessions of them).
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { record } from "./recorder.mjs";
import { writeScriptedModel } from "./scripted_model.mjs";

// Packages are installed without scripts of their own, so programs are started where their packages have them.
const binary = process.env.SLUICE_BINARY ?? new URL("../../build/release/bin/sluice", import.meta.url).pathname;
const modules = new URL("node_modules/", import.meta.url).pathname;
const limit = 240_000;

/** A call as the model writes it. */
const call = (name, values) =>
  `<tool_call>\n<function=${name}>\n${Object.entries(values).map(([key, value]) => `<parameter=${key}>\n${value}\n</parameter>\n`).join("")}</function>\n</tool_call>`;
const task = "In greeting.txt, write Welt in place of world.";
const before = "Hello world,\nhow are you?\n", changed = "Hello Welt,\nhow are you?\n";

/** Starts the server with this script; what `work` gives is the agent's output. */
async function withScript(name, turns, work) {
  const folder = mkdtempSync(join(tmpdir(), "sluice-agents-"));
  const file = join(folder, "script.gguf"), project = join(folder, "project"), home = join(folder, "home");
  for (const one of [project, home]) mkdirSync(one);
  const path = join(project, "greeting.txt");
  writeFileSync(path, before);
  writeScriptedModel(file, { turns: turns(path) });
  const server = spawn(binary, ["serve", "-m", file, "--port", "0"], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  let recorder;
  try {
    const address = await new Promise((resolve, reject) => {
      server.stderr.on("data", (bytes) => {
        log += bytes;
        const line = log.match(/ready at (http:\S+)/);
        if (line) resolve(line[1]);
      });
      server.on("exit", () => reject(new Error(`sluice serve ended: ${log}`)));
    });
    const target = process.env.SLUICE_RECORD;
    if (target) recorder = await record(address, join(target, `${name}.jsonl`), turns(path));
    const output = await work({ address: recorder?.address ?? address, project, home, path });
    assert.equal(readFileSync(path, "utf8"), changed, `${output}\n${log}`);
    assert.match(output, /Done: Welt/, log);
    assert.doesNotMatch(log, /(POST|GET) \S+ [45]\d\d /, "no request is refused");
  } finally {
    recorder?.close();
    server.kill("SIGTERM");
    if (server.exitCode === null) await once(server, "exit");
    if (process.env.SLUICE_LOG) writeFileSync(join(process.env.SLUICE_LOG, `${name}.log`), log);
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** An agent's command; its whole output. It sees nothing of who runs this test. */
function agent(command, words, { project, home }, more = {}) {
  const env = { PATH: process.env.PATH, HOME: home, TERM: "dumb", LANG: "C.UTF-8", NO_COLOR: "1", CI: "1", ...more };
  return new Promise((resolve, reject) => {
    const child = execFile(command, words, { cwd: project, env, timeout: limit, killSignal: "SIGKILL", maxBuffer: 1 << 26 },
      (error, stdout, stderr) => (error ? reject(new Error(`${error.message}\n${stdout}\n${stderr}`)) : resolve(stdout + stderr)));
    child.stdin.end();
  });
}

const claude = join(modules, "@anthropic-ai/claude-code-linux-x64/claude");
test("Claude Code edits a file", { timeout: limit, skip: existsSync(claude) ? false : "no program for this machine" }, () =>
  withScript("claude-code",
    (path) => [
      "I read it.\n\n" + call("Read", { file_path: path }),
      call("Edit", { file_path: path, old_string: "world", new_string: "Welt" }),
      "Done: Welt it is.",
    ],
    (place) => agent(claude, ["-p", task, "--permission-mode", "acceptEdits"], place, {
      ANTHROPIC_BASE_URL: place.address, ANTHROPIC_AUTH_TOKEN: "none", ANTHROPIC_MODEL: "local", ANTHROPIC_SMALL_FAST_MODEL: "local",
      CLAUDE_CODE_MAX_CONTEXT_TOKENS: "131072", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1",
    })));

const opencode = join(modules, "opencode-linux-x64/bin/opencode");
test("opencode edits a file", { timeout: limit, skip: existsSync(opencode) ? false : "no program for this machine" }, () =>
  withScript("opencode",
    (path) => [
      "I read it.\n\n" + call("read", { filePath: path }),
      call("edit", { filePath: path, oldString: "world", newString: "Welt" }),
      "Done: Welt it is.",
    ],
    (place) => {
      writeFileSync(join(place.project, "opencode.json"), JSON.stringify({
        provider: { sluice: { npm: "@ai-sdk/openai-compatible", name: "Sluice", options: { baseURL: `${place.address}/v1` },
          models: { local: { name: "local", limit: { context: 65536, output: 16384 } } } } },
      }));
      return agent(opencode, ["run", "--model", "sluice/local", task], place,
        { OPENCODE_DISABLE_AUTOUPDATE: "1", OPENCODE_DISABLE_MODELS_FETCH: "1" });
    }));

test("Qwen Code edits a file", { timeout: limit }, () =>
  withScript("qwen-code",
    (path) => [
      "I read it.\n\n" + call("read_file", { file_path: path }),
      call("edit", { file_path: path, old_string: "world", new_string: "Welt" }),
      "Done: Welt it is.",
    ],
    (place) => agent(join(modules, ".bin/qwen"), ["--auth-type", "openai", "--approval-mode", "auto-edit", "-p", task], place,
      { OPENAI_BASE_URL: `${place.address}/v1`, OPENAI_API_KEY: "none", OPENAI_MODEL: "local" })));

test("Continue edits a file", { timeout: limit }, () =>
  withScript("continue",
    (path) => [
      "I read it.\n\n" + call("Read", { filepath: path }),
      call("Edit", { file_path: path, old_string: "world", new_string: "Welt" }),
      "Done: Welt it is.",
    ],
    (place) => {
      const config = join(place.home, "config.yaml");
      writeFileSync(config, [
        "name: sluice", "version: 0.0.1", "schema: v1", "models:", "  - name: Sluice", "    provider: openai", "    model: local",
        `    apiBase: ${place.address}/v1`, "    apiKey: none", "    roles: [chat, edit]", ""].join("\n"));
      return agent(join(modules, ".bin/cn"), ["--config", config, "--auto", "-p", task], place);
    }));

test("Cline edits a file", { timeout: limit }, () =>
  withScript("cline",
    (path) => [
      "I read it.\n\n" + call("read_files", { files: JSON.stringify([{ path }]) }),
      call("editor", { path, old_text: "world", new_text: "Welt" }),
      "Done: Welt it is.",
    ],
    async (place) => {
      const cline = join(modules, ".bin/cline");
      await agent(cline, ["auth", "-p", "openai", "-k", "none", "-m", "local", "-b", `${place.address}/v1`], place);
      return agent(cline, [task], place);
    }));

test("Codex edits a file", { timeout: limit }, () =>
  withScript("codex",
    () => [
      "I read it.\n\n" + call("exec_command", { cmd: "cat greeting.txt" }),
      call("exec_command", { cmd: "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: greeting.txt\n@@\n-Hello world,\n+Hello Welt,\n*** End Patch\nEOF" }),
      "Done: Welt it is.",
    ],
    (place) => {
      mkdirSync(join(place.home, ".codex"));
      writeFileSync(join(place.home, ".codex/config.toml"), [
        'model = "local"', 'model_provider = "sluice"', "[model_providers.sluice]", 'name = "sluice"',
        `base_url = "${place.address}/v1"`, 'wire_api = "responses"', ""].join("\n"));
      return agent(join(modules, ".bin/codex"), ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", task], place);
    }));
