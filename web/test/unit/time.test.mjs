// The time of the scheduler, as messages tell it that may come late.

import assert from "node:assert/strict";
import { test } from "node:test";
import { source } from "./source.mjs";

const { SchedulerClock } = await source("time.ts");

test("the page's clock counts only until the scheduler has said a time", () => {
  const clock = new SchedulerClock();
  assert.equal(clock.at(100), null);
  clock.heard(Number.NaN, 100);
  assert.equal(clock.at(100), null);
  clock.heard(86_400_000, 100);
  assert.equal(clock.at(350), 86_400_250);
  clock.forget();
  assert.equal(clock.at(350), null);
});

test("a message that comes late does not turn the clock back", () => {
  const clock = new SchedulerClock();
  clock.heard(10_000, 0);
  clock.heard(10_250, 3250); // The page was busy for three seconds.
  assert.equal(clock.at(3250), 13_250);
  clock.heard(13_500, 3500);
  assert.equal(clock.at(3500), 13_500);
});

test("a message that was made before it was sent is corrected by the next one", () => {
  const clock = new SchedulerClock();
  clock.heard(9000, 0); // A snapshot has the time of the last sample.
  clock.heard(10_250, 250);
  assert.equal(clock.at(1000), 11_000);
});

test("a clock that was set is believed after some messages", () => {
  const clock = new SchedulerClock();
  clock.heard(1_000_000, 0);
  for (let i = 1; i <= 8; i++) clock.heard(5000 + 250 * i, 250 * i);
  assert.equal(clock.at(3000), 8000);
});
