// Rates from sums that only grow.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { Flows } = await source("flows.ts");

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
  flows.take(2000, [["a", { read: 10, written: 7 }]]);
  assert.deepEqual(flows.of("a"), { read: 0, written: 7 });
  assert.deepEqual(flows.of("b"), {});
  assert.equal(new Flows(1).since(), undefined);
});
