// The strips of the task stream: pixels of attempts that are narrower than a few pixels.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { changed, draw, Packed } = await source("draw/strips.ts");

const paints = { ops: [0x0000aa, 0x00bb00], failure: 0xff, parts: [1, 2, 3, 4, 0, 6] };
const names = ["start", "fetch", "spill", "wait", "deserialize", "run", "publish", "op", "failed"];

// lane packs attempts, each with some of the columns.
function lane(...attempts) {
  const columns = Object.fromEntries(names.map((n) => [n, attempts.map((a) => a[n] ?? 0)]));
  const packed = new Packed();
  packed.update({ runs: attempts.map((_, i) => i), sorts: 0 }, columns);
  return packed;
}

// row gives the pixels of a row of a strip as colour and opacity in hundredths.
const row = (strip, columns, n) =>
  [...strip.pixels.subarray(n * columns, (n + 1) * columns)].map((p) => [
    p & 0xffffff,
    Math.round(((p >>> 24) / 255) * 100),
  ]);

const view = { from: 0, scale: 0.1, columns: 4 }; // 10 ms for a pixel

test("a pixel has the colour of what has most of it, and is the fainter the less is busy", () => {
  const strip = draw(
    lane({ start: 0, run: 3 }, { start: 4, run: 6, op: 1 }, { start: 20, run: 5 }),
    view,
    paints,
    -1,
  );
  assert.deepEqual(row(strip, 4, 0), [
    [0x00bb00, 93],
    [0, 0],
    [0x0000aa, 67],
    [0, 0],
  ]);
  assert.equal(strip.waits, false);
  assert.deepEqual(strip.wide, []);
});

test("wide attempts are not in the strip", () => {
  const strip = draw(lane({ start: 0, run: 40 }), view, paints, -1);
  assert.deepEqual(strip.wide, [0]);
  assert.deepEqual(row(strip, 4, 0), Array(4).fill([0, 0]));
});

test("failures and parts have their colours", () => {
  const strip = draw(
    lane({ start: 0, deserialize: 10, run: 10, publish: 10 }, { start: 30, run: 10, failed: 1 }),
    view,
    paints,
    -1,
  );
  assert.deepEqual(
    row(strip, 4, 0).map(([color]) => color),
    [4, 0x0000aa, 6, 0xff],
  );
});

test("what came before a start stands before it, unless another attempt was there", () => {
  const strip = draw(
    lane({ start: 0, run: 10 }, { start: 30, run: 10, fetch: 100, wait: 10 }),
    view,
    paints,
    -1,
  );
  assert.equal(strip.waits, true);
  assert.deepEqual(
    row(strip, 4, 1).map(([color]) => color),
    [0, 1, 3, 0],
  );
});

test("only one function has its full colour", () => {
  const strip = draw(lane({ start: 0, run: 10 }, { start: 10, run: 10, op: 1 }), view, paints, 1);
  assert.deepEqual(row(strip, 4, 0).slice(0, 2), [
    [0x0000aa, 15],
    [0x00bb00, 100],
  ]);
});

test("attempts outside of the view are not looked at", () => {
  const many = Array.from({ length: 1000 }, (_, i) => ({ start: 10 * i, run: 9 }));
  const packed = lane(...many);
  let reads = 0;
  packed.starts = new Proxy(packed.starts, {
    get: (target, name) => {
      reads++;
      return target[name];
    },
  });
  const strip = draw(packed, { from: 5000, scale: 0.1, columns: 4 }, paints, -1);
  assert.equal(row(strip, 4, 0).filter(([, opacity]) => opacity > 0).length, 4);
  assert.ok(reads < 40, `${reads} reads`);
});

test("more attempts of a lane are added, and others replace them", () => {
  const columns = Object.fromEntries(names.map((n) => [n, [0, 0, 0]]));
  columns.start = [20, 0, 10];
  columns.run = [10, 10, 10];
  const packed = new Packed();
  packed.update({ runs: [1], sorts: 0 }, columns);
  packed.update({ runs: [1, 0], sorts: 0 }, columns);
  assert.deepEqual([...packed.starts.subarray(0, packed.size)], [0, 20]);
  packed.update({ runs: [1, 2, 0], sorts: 1 }, columns);
  assert.deepEqual([...packed.starts.subarray(0, packed.size)], [0, 10, 20]);
  assert.equal(packed.end(2), 30);
});

test("a strip to which attempts come is as if it were drawn at once", () => {
  const rest = Array.from({ length: 400 }, (_, i) => {
    const noise = ((i * 2654435761) % 1000) / 1000;
    return { start: i * 7 + 3 * noise, run: 6 * noise, wait: i % 5 ? 0 : 9, op: i % 2, publish: 1 };
  });
  for (const scale of [0.05, 0.3, 1]) {
    const wide = { from: 200, scale, columns: 700 };
    const columns = Object.fromEntries(names.map((n) => [n, rest.map((a) => a[n] ?? 0)]));
    const runs = [];
    const packed = new Packed();
    const pixels = new Uint32Array(2 * wide.columns);
    for (let size = 0; size < rest.length; ) {
      const before = size;
      for (let n = 0; n < 1 + (before % 13) && size < rest.length; n++) runs.push(size++);
      packed.update({ runs, sorts: 0 }, columns);
      const [begin, end] = changed(packed, before, wide);
      if (end <= begin) continue;
      const view = { from: wide.from + begin / scale, scale, columns: end - begin };
      const strip = draw(packed, view, paints, -1);
      for (const n of [0, 1]) {
        const row = strip.pixels.subarray(n * view.columns, (n + 1) * view.columns);
        pixels.set(row, n * wide.columns + begin);
      }
    }
    const whole = draw(packed, wide, paints, -1);
    const near = (p, q) => {
      const channels = [0, 8, 16, 24].map((at) =>
        Math.abs(((p >>> at) & 255) - ((q >>> at) & 255)),
      );
      return Math.max(...channels) <= 1;
    };
    const other = [...whole.pixels.keys()].filter((i) => !near(whole.pixels[i], pixels[i]));
    assert.deepEqual(other, [], `at ${scale}`);
  }
});
