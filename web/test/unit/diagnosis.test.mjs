// The causes that the overview names, from evidence that is written down here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { diagnose } = await source("diagnosis.ts");

// The start of the scheduler.
const origin = Date.UTC(2026, 0, 1, 12);

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
  spillingSince: origin,
  origin,
  now: origin + 10_000,
  idleSlots: 0,
  slowRoutes: [],
  ...more,
});

const route = (reader, good) => ({
  ...{ reader, peer: "far", path: "grpc", bytes_per_second: 1 << 20 },
  ...{ median_bytes_per_second: 1 << 25, alike: 4, good },
});

test("nothing is slow", () => {
  assert.deepEqual(diagnose(evidence({ batch: {} })), []);
});

test("transfers name the slow route of their reader", () => {
  const slowRoutes = [route("other", false), route("near", false)];
  const [found, ...more] = diagnose(evidence({ slowRoutes }));
  assert.deepEqual(more, []);
  assert.match(found.text, /^take 91 % of the time of consume, most of it on worker near\./);
  assert.match(found.text, /slowest route is far → near: .* by grpc; the median of 4 such routes/);
  assert.match(found.remedy, /millrace topo.*millrace drain far$/);
  assert.equal(found.since, origin); // The first attempt began to fetch then, and the last one ended.
  assert.equal(found.until, origin + 3100);
});

test("transfers do not name the slow route of another reader", () => {
  const [found] = diagnose(evidence({ slowRoutes: [route("other", false)] }));
  assert.doesNotMatch(found.text, /route/);
  assert.match(found.remedy, /where their inputs are/);
});

test("of several readers the one with a slow route is named", () => {
  const { batch, workers } = evidence();
  const rows = [...batch.rows, [4, 0, 2, 4000, 100, 500, 0, 0, 0, 0, "k4"]];
  const [found] = diagnose(
    evidence({
      batch: { ...batch, rows },
      workers: [...workers, { workerId: 2, name: "other" }],
      slowRoutes: [route("near", true), route("other", false)],
    }),
  );
  assert.match(found.text, /most of it on worker near\. The slowest route is far → other:/);
});

test("a task that runs for far longer than the median is a straggler", () => {
  const running = [{ task: "9", key: "k9", op: "consume", worker: "near", ms: 5000 }];
  const texts = diagnose(evidence({ running, idleSlots: 2 })).map((f) => `${f.subject} ${f.text}`);
  const [straggler] = diagnose(evidence({ running }));
  assert.equal(straggler.since, origin + 5000);
  assert.equal(straggler.until, undefined);
  assert.match(straggler.remedy, /split or submitted first/);
  assert.match(texts[0], /^Straggler: task k9 has run for 5 s on worker near; .* 2 slots idle$/);
});
