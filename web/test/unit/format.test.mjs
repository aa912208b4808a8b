// Figures as people read them: three digits where they are known, and none that say nothing.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const {
  ago,
  axisSteps,
  bytes,
  duration,
  fitted,
  perSecond,
  plural,
  progress,
  rate,
  readable,
  sentence,
  short,
} = await source("format.ts");

// said applies a function to the keys of an object, which has what it must give.
const said = (f, expected) => {
  for (const [value, text] of Object.entries(expected)) assert.equal(f(Number(value)), text);
};

test("whole numbers have no decimals", () => {
  said(bytes, { 0: "0 B", 1023: "1023 B", 3145728: "3 MiB", 34359738368: "32 GiB" });
  said(rate, { 0: "0 B/s", 1048576: "1 MiB/s" });
  said(duration, { 0: "0 ms", 0.004: "4 µs", 20: "20 ms", 2000: "2 s", 30000: "30 s" });
  said(short, { 1: "1", 20000: "20k", 3000000: "3M" });
  said(perSecond, { 0: "0/s", 3: "3/s", 0.5: "0.5/s" });
  assert.equal(ago(new Date(10_000).toISOString(), 12_400), "2 s ago");
  assert.equal(plural(1, "task"), "1 task");
  assert.equal(plural(2000, "task"), "2,000 tasks");
});

test("other numbers have three digits", () => {
  said(bytes, { 3200000: "3.05 MiB", 50400000: "48.1 MiB", 139000000: "133 MiB" });
  said(duration, { 2504: "2.50 s", 70.14: "70.1 ms", 0.0127: "12.7 µs" });
  said(short, { 12345: "12.3k" });
  said(perSecond, { 0.256: "0.26/s", 3.14: "3.1/s", 14.4: "14/s" });
});

test("labels of an axis of bytes are whole in their unit", () => {
  for (const step of axisSteps.bytes) assert.match(bytes(step), /^[0-9]+ [KMGTP]?i?B$/);
  for (const step of axisSteps.counts) assert.ok(Number.isInteger(step));
});

test("errors are sentences", () => {
  assert.equal(sentence("the token is wrong"), "The token is wrong.");
  assert.equal(sentence("Is it?"), "Is it?");
  assert.equal(sentence(""), "");
});

test("progress is complete only at the end", () => {
  assert.equal(progress(0, 0), "–");
  assert.equal(progress(594, 596), "99 %");
  assert.equal(progress(596, 596), "100 %");
});

test("names are cut in the middle", () => {
  const cut = (name, most) => fitted(name, (text) => text.length <= most);
  assert.equal(cut("host-1", 6), "host-1");
  assert.equal(cut("a-host-with-a-long-name-17", 15), "a-host-…name-17");
  assert.equal(cut("a-host-with-a-long-name-17", 3), "a…7");
  assert.equal(cut(undefined, 3), "");
});

test("lines of JSON are made readable, and others stay", () => {
  const time = new Date(2026, 0, 1, 12, 0, 1, 5).toISOString();
  const line = JSON.stringify({ time, level: "INFO", msg: "executor ready", slot: 1, peer: "a" });
  const cut = line.slice(0, 40);
  assert.equal(
    readable(`panic: x\n${line}\n${cut}`),
    `panic: x\n12:00:01.005 INFO executor ready slot=1 peer=a\n${cut}`,
  );
});
