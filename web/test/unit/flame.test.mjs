// Flame graphs: calls of profiles, which come again and again while tasks run.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { boxesOf, callsOf, stepFrom } = await source("flame.ts");

const profile = (...rows) => ({
  columns: ["caller", "samples", "name", "file", "line", "text"],
  rows,
});

test("calls lie below their callers, beside each other", () => {
  const calls = callsOf(
    profile(
      [0, 8, "score", "job.py", 3, ""],
      [1, 6, "sleep", "time.py", 9, ""],
      [1, 2, "sum", "job.py", 4, ""],
      [0, 2, "join", "job.py", 7, ""],
    ),
  );
  assert.deepEqual(
    calls.map((c) => [c.depth, c.left]),
    [
      [0, 0],
      [1, 0],
      [1, 6],
      [0, 8],
    ],
  );
  const boxes = boxesOf(calls, 10, 0);
  assert.deepEqual(
    boxes.map((b) => [b.index, b.left, b.width]),
    [
      [0, 0, 1],
      [1, 0, 0.75],
      [2, 0.75, 0.25],
    ],
  );
  assert.deepEqual([stepFrom(boxes, 0, "ArrowDown"), stepFrom(boxes, 1, "ArrowRight")], [1, 2]);
});

test("a call keeps its path when a later profile has other numbers for it", () => {
  const before = callsOf(
    profile(
      [0, 5, "score", "job.py", 3, ""],
      [1, 5, "sleep", "t.py", 9, ""],
      [0, 4, "join", "job.py", 7, ""],
    ),
  );
  const after = callsOf(
    profile(
      [0, 9, "join", "job.py", 8, ""],
      [1, 9, "sleep", "t.py", 9, ""],
      [0, 6, "score", "job.py", 3, ""],
      [3, 6, "sleep", "t.py", 9, ""],
    ),
  );
  const now = before.map((c) => after.findIndex((d) => d.path === c.path));
  assert.deepEqual(now, [2, 3, 0]);
});
