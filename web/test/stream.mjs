// The task stream draws every attempt, although the scheduler sends a sample of a burst, and although
// it does not answer each request.

import assert from "node:assert/strict";
import { test } from "node:test";
import { newPage, problems, shared } from "./shared.mjs";

// The number of tasks in burst.py.
const tasks = "20,000";

export function testStream() {
  test("a sample is completed without Follow", async () => {
    problems.length = 0;
    const page = await newPage();
    await page.goto(`${shared.cluster.url}#/stream`);
    const job = shared.cluster.python("burst.py");
    try {
      await page.getByTitle(/^bench.sleep: /).waitFor();
      await job.says("done");
      await page.route(/runs\?before=/, (r) => r.fulfill({ status: 503, body: "busy" }), {
        times: 1,
      });
      await page.getByRole("button", { name: "5 min" }).click();
      await page.getByRole("button", { name: "Follow" }).click();
      // The view may end a third of a second ago, a pixel of 5 minutes: the burst is later in part.
      await page.getByLabel(/^The latest .* attempts of tasks/).press("ArrowRight");
      await page.getByTitle(`bench.sleep: ${tasks} attempts`).waitFor();
      assert.deepEqual(
        problems.filter((p) => !/status of 503/.test(p)),
        [],
      );
    } finally {
      await page.context().close();
      await job.end();
    }
  });
}
