// Builds the page anew and compares it with the one that is committed.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const run = (command, args) => execFileSync(command, args, { cwd: root, stdio: "inherit" });
const bin = (name) => join(root, "node_modules", ".bin", name);

run(bin("tsc"), ["--noEmit"]);
run(bin("vite"), ["build", "--logLevel", "warn"]);
run(process.execPath, ["build/inline.mjs", join(root, "out", "index.html")]);
const [built, committed] = ["out/index.html", "dist/index.html"].map((name) => readFileSync(join(root, name)));
if (!built.equals(committed)) {
  console.error("webui/dist/index.html is not what its source gives: run `npm run build` in webui/ and commit the result");
  process.exit(1);
}
console.log("webui/dist/index.html is what its source gives");
