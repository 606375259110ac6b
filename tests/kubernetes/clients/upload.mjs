// Does with Node's own client what `controller upload` does: `upload.mjs URL SIZE:RUNS...`.

import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";

const [base, ...sizes] = process.argv.slice(2);
const module = base.startsWith("https:") ? https : http;
const ca = process.env.CA_FILE && readFileSync(process.env.CA_FILE);
const agent = new module.Agent({ keepAlive: true, maxSockets: 1, ca });

const call = (method, path, body) => new Promise((resolve, reject) => {
  const headers = { authorization: "Bearer wrong", "content-type": "application/json" };
  if (body) headers["content-length"] = body.length;
  const request = module.request(base + path, { method, agent, headers }, (answer) => {
    answer.on("end", resolve).on("error", reject).resume();
  });
  request.on("error", reject).end(body);
});

let answered, followed, first;
// An error that ends most programs counts as a lost second call.
process.on("uncaughtException", (error) => {
  first ??= `uncaught: ${error}`;
  followed--;
});
for (const what of sizes) {
  const [size, runs] = what.split(":").map(Number);
  const body = Buffer.alloc(size, "x");
  [answered, followed, first] = [0, 0, null];
  for (let run = 0; run < runs; run++) {
    await call("POST", "/api/v1/namespaces/default/configmaps", body).then(() => answered++, (error) => (first ??= error));
    await call("GET", "/version").then(() => followed++, (error) => (first ??= `next: ${error}`));
  }
  console.log(size, runs, answered, followed, String(first));
}
process.exit(0);
