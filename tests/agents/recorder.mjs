// A server between an agent and sluice serve that writes down what the agent asks: a JSON line a request, with what
// the model says then.
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";

export async function record(address, file, turns) {
  let asked = 0;
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    const body = Buffer.concat(parts);
    let json = null;
    try {
      json = JSON.parse(body);
    } catch {
      // It is written down as none.
    }
    if (request.method === "POST" && json) {
      const said = json.tools?.length ? turns[asked++] : "A file";
      appendFileSync(file, JSON.stringify({ path: request.url, said, body: json }) + "\n");
    }
    const { host, connection, "content-length": length, "transfer-encoding": coding, ...headers } = request.headers;
    try {
      const answer = await fetch(address + request.url, { method: request.method, headers, body: body.length ? body : undefined });
      response.writeHead(answer.status, { "content-type": answer.headers.get("content-type") ?? "text/plain" });
      for await (const part of answer.body ?? []) response.write(part);
      response.end();
    } catch {
      response.destroy();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { address: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}
