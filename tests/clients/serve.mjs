// The server that the clients talk to: SLUICE_BINARY, as a process of its own with the bundled model.
import { spawn } from "node:child_process";

const binary = process.env.SLUICE_BINARY ?? "../../build/release/bin/sluice";

/** Starts the server and waits until its model is there. */
export async function serve(...flags) {
  const child = spawn(binary, ["serve", "--port", "0", "-c", "1024", ...flags], { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  const ready = new Promise((resolve, reject) => {
    child.stderr.on("data", (bytes) => {
      log += bytes;
      const line = log.match(/ready at (http:\S+)/);
      if (line) resolve(line[1]);
    });
    child.on("exit", () => reject(new Error(`sluice serve ended: ${log}`)));
  });
  return { child, address: await ready };
}
