// Calls with Node's own client, `fetch`: a line `CALL URL` on stdin for each. Reports in JSON, a line each.

import { createInterface } from "node:readline";

const calls = {
  read: ["/things", { method: "GET" }],
  write: ["/things", { method: "POST", body: "{}" }],
  upload: ["/things/1", { method: "PUT", body: new Uint8Array(5 << 20) }],
};

for await (const line of createInterface({ input: process.stdin })) {
  const [call, url] = line.split(" ");
  const report = { ok: true, error: "", attempts: null };
  try {
    const answer = await fetch(url + calls[call][0], calls[call][1]);
    await answer.arrayBuffer();
    if (!answer.ok) throw new Error(`${answer.status}`);
  } catch (error) {
    Object.assign(report, { ok: false, error: `${error.message} ${error.cause?.message ?? ""}`.trim() });
  }
  console.log(JSON.stringify(report));
}
