// The causes that the overview names, from evidence that is written down here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { diagnose } = await source("diagnosis.ts");

const columns = [
  ...["task_id", "op_index", "worker_id", "start_ms", "run_ms"],
  ...["fetch_ms", "wait_ms", "spill_ms", "deserialize_ms", "publish_ms", "key"],
];

// evidence has three attempts of consume on the worker near, which fetch for a second each.
const evidence = (more) => ({
  batch: {
    op: ["consume"],
    columns,
    rows: [1, 2, 3].map((n) => [n, 0, 1, 1000 * n, 100, 1000, 0, 0, 0, 0, `k${n}`]),
  },
  workers: [{ workerId: 1, name: "near" }],
  running: [],
  spilling: new Map(),
  now: 10_000,
  idleSlots: 0,
  slowRoute: undefined,
  ...more,
});

const route = (reader, good) => ({
  ...{ reader, peer: "far", path: "grpc", bytes_per_second: 1 << 20 },
  ...{ median_bytes_per_second: 1 << 25, good },
});

test("nothing is slow", () => {
  assert.deepEqual(diagnose(evidence({ batch: {} })), []);
});

test("transfers name the slow route of their reader", () => {
  const [found, ...more] = diagnose(evidence({ slowRoute: route("near", false) }));
  assert.deepEqual(more, []);
  assert.match(found.text, /^take 91 % of the time of consume, most of it on worker near\./);
  assert.match(found.text, /slowest route is far → near: 1.00 MiB\/s by grpc; the median of such/);
});

test("transfers do not name the slow route of another reader", () => {
  const [found] = diagnose(evidence({ slowRoute: route("other", false) }));
  assert.doesNotMatch(found.text, /route/);
});

test("a task that runs for far longer than the median is a straggler", () => {
  const running = [{ task: "9", key: "k9", op: "consume", worker: "near", ms: 5000 }];
  const texts = diagnose(evidence({ running, idleSlots: 2 })).map((f) => `${f.subject} ${f.text}`);
  assert.match(texts[0], /^Straggler: task k9 has run for 5.00 s on worker near; .* 2 slots idle$/);
});
