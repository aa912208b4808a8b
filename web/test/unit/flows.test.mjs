// Rates from sums that only grow.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { Flows, movedBy } = await source("flows.ts");

test("a rate is that of the latest time", () => {
  const flows = new Flows(10_000);
  flows.take(1000, [["w", { read: 50 }]]);
  assert.deepEqual(flows.of("w"), {});
  flows.take(3000, [["w", { read: 150 }]]);
  assert.deepEqual(flows.of("w"), { read: 50 });
  flows.take(12_000, [["w", { read: 150 }]]);
  assert.deepEqual(flows.of("w"), { read: 0 });
  assert.equal(flows.since(), 3000);
});

test("a sum that begins again has no rate below zero, and who is gone has none", () => {
  const flows = new Flows(10_000);
  flows.take(1000, [
    ["a", { read: 50 }],
    ["b", { read: 0 }],
  ]);
  flows.take(2000, [["a", { read: 10 }]]);
  assert.deepEqual(flows.of("a"), { read: 0 });
  assert.deepEqual(flows.of("b"), {});
  assert.equal(new Flows(1).since(), undefined);
});

test("a sum that is known later has a rate from then on", () => {
  const flows = new Flows(10_000);
  flows.take(1000, [["w", { read: 0 }]]);
  flows.take(2000, [["w", { read: 0, nvLinkSent: 1e15 }]]);
  assert.deepEqual(flows.of("w"), { read: 0 });
  flows.take(4000, [["w", { read: 30, nvLinkSent: 1e15 + 40 }]]);
  assert.deepEqual(flows.of("w"), { read: 10, nvLinkSent: 20 });
  flows.take(5000, [["w", { read: 40 }]]);
  assert.deepEqual(flows.of("w"), { read: 10 });
});

test("a GPU whose driver has said nothing yet has no sums", () => {
  assert.equal("nvLinkSent" in movedBy({}), false);
  assert.equal(movedBy({ gpuHealth: { nvLinkSentBytes: "7" } }).nvLinkSent, 7);
});
