// The script of the clients in every language, with @kubernetes/client-node: `script.mjs NAMESPACE NAME`.

import { CoreV1Api, KubeConfig, PatchStrategy, Watch, setHeaderOptions } from "@kubernetes/client-node";

const config = new KubeConfig();
config.loadFromCluster();
const [namespace, name] = process.argv.slice(2);
const core = config.makeApiClient(CoreV1Api);
const fieldSelector = `metadata.name=${name}`;
const mine = { namespace, fieldSelector };

async function reason(call) {
  try {
    return String(await call);
  } catch (error) {
    const status = typeof error.body === "string" ? JSON.parse(error.body) : error.body;
    return `${error.code} ${status?.reason}`;
  }
}

const found = await core.listNamespacedConfigMap(mine);
console.log("list", found.items.length);
const events = [];
const seen = new Promise((resolve, reject) => {
  new Watch(config).watch(
    `/api/v1/namespaces/${namespace}/configmaps`,
    { fieldSelector, resourceVersion: found.metadata.resourceVersion },
    (type, object) => {
      events.push(`${type} ${object.data.value}`);
      if (type === "DELETED") resolve();
    },
    (error) => reject(error ?? new Error("the watch ended")),
  ).catch(reject);
});
const body = { metadata: { name }, data: { value: "one" } };
console.log("created", (await core.createNamespacedConfigMap({ namespace, body })).data.value);
const two = { name, namespace, body: { data: { value: "two" } } };
const patched = await core.patchNamespacedConfigMap(two, setHeaderOptions("Content-Type", PatchStrategy.MergePatch));
console.log("patched", patched.data.value);
console.log("list", (await core.listNamespacedConfigMap(mine)).items.length);
console.log("create again:", await reason(core.createNamespacedConfigMap({ namespace, body })));
console.log("get absent:", await reason(core.readNamespacedConfigMap({ name: `${name}-absent`, namespace })));
await core.deleteNamespacedConfigMap({ name, namespace });
console.log("deleted");
await seen;
console.log("watch", events.join(", "));
console.log("list", (await core.listNamespacedConfigMap(mine)).items.length);
process.exit(0);
