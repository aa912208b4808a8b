// The attempts that the page keeps: in order whatever comes first, and at most so many.

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { source } from "./source.mjs";

const { runs } = await source("runs.ts");

const columns = ["number", "task_id", "op_index", "worker_id", "slot", "start_ms", "run_ms", "key"];

// row is an attempt on one of two slots; each starts 10 ms after the one before it.
const row = (n) => [n, n, 0, 1, n % 2, 10 * n, 5, `k${n}`];
const add = (...numbers) => runs.add({ op: ["f"], columns, rows: numbers.map(row) });
const keys = (lane) => lane.runs.map((i) => runs.keys[i]);

beforeEach(() => runs.clear());

test("attempts of a slot are in order, whatever comes first", () => {
  add(7, 9, 11);
  add(5, 3, 1);
  add(4, 2, 13);
  add(8, 6, 7);
  const lanes = Object.fromEntries(runs.lanes.map((l) => [l.slot, keys(l)]));
  assert.deepEqual(lanes[1], ["k1", "k3", "k5", "k7", "k9", "k11", "k13"]);
  assert.deepEqual(lanes[0], ["k2", "k4", "k6", "k8"]);
  assert.deepEqual(runs.span(), [10, 135]);
  assert.deepEqual(runs.missing(0, 1000), { count: 2, newest: 12, fit: true });
});

test("the oldest attempts are dropped", () => {
  const most = 300_000;
  for (let n = most / 2; n > 0; n -= 5000) add(...Array.from({ length: 5000 }, (_, i) => n - i));
  for (let n = most / 2; n < most; n += 5000)
    add(...Array.from({ length: 5000 }, (_, i) => n + 1 + i));
  assert.equal(runs.size, most);
  add(most + 1, most + 2);
  assert.ok(runs.size > 0.85 * most && runs.size < 0.95 * most, `${runs.size} are left`);
  const oldest = most + 3 - runs.size;
  assert.equal(runs.oldest, oldest);
  assert.deepEqual(runs.span(), [10 * oldest, 10 * (most + 2) + 5]);
  for (const lane of runs.lanes) {
    const first = oldest + ((lane.slot + oldest) % 2);
    assert.deepEqual(
      lane.runs.filter(
        (i, at) =>
          runs.keys[i] !== `k${first + 2 * at}` || runs.laneOf[i] !== runs.lanes.indexOf(lane),
      ),
      [],
    );
    assert.equal(lane.runs.length, Math.floor((most + 2 - first) / 2) + 1);
  }
  add(oldest, oldest + 1); // They are known.
  assert.equal(runs.size, most + 3 - oldest);
  assert.equal(runs.missing(0, 1e9).count, 0);
});

test("missing attempts that are more than there is room for do not fit", () => {
  add(1, 400_000);
  assert.deepEqual(runs.missing(0, 1e9), { count: 399_998, newest: 399_999, fit: false });
});

test("no older attempts are fetched once the oldest are dropped", async () => {
  let answer;
  let asked = 0;
  globalThis.fetch = () => {
    asked++;
    return new Promise((resolve) => {
      answer = (...numbers) =>
        resolve(Response.json({ op: ["f"], columns, rows: numbers.map(row), before: 100 }));
    });
  };
  for (let n = 1000; n < 300_000; n += 1000) add(...Array.from({ length: 1000 }, (_, i) => n + i));
  add(...Array.from({ length: 999 }, (_, i) => 300_000 + i));
  const older = runs.older();
  add(300_999, 301_000, 301_001);
  answer(998, 999);
  await older;
  await runs.older();
  assert.deepEqual([asked, runs.complete], [1, true]);
});

test("a request without an answer does not end the fetching of older attempts", async () => {
  const page = (...numbers) => ({ op: ["f"], columns, rows: numbers.map(row) });
  const answers = [() => new Response("busy", { status: 503 })];
  globalThis.fetch = async () => answers.shift()();
  add(3);
  await runs.all();
  assert.deepEqual([runs.size, runs.complete, answers.length], [1, false, 0]);
  answers.push(
    () => Response.json({ ...page(2), before: 2 }),
    () => Response.json(page(1)),
  );
  await runs.all();
  assert.deepEqual([runs.size, runs.complete, answers.length], [3, true, 0]);
});
