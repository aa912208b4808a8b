// The matrix of routes fits into its card.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { sizesOf, smallestCell } = await source("draw/matrix.ts");

test("the matrix fits into its card", () => {
  for (const room of [400, 594, 1200]) {
    for (let n = 2; n <= 64; n++) {
      const { cell, label, head } = sizesOf(n, room);
      assert.ok(cell === smallestCell || label + n * cell <= room, `${n} workers in ${room}`);
      assert.ok(cell <= 104 && head >= 8);
    }
  }
});

test("two workers do not fill it", () => {
  assert.deepEqual(sizesOf(2, 594), { cell: 104, label: 108, head: 26 });
});
