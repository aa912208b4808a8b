// The task stream draws every attempt, although the scheduler sends a sample of a burst, and although
// it does not answer each request.

import assert from "node:assert/strict";
import { test } from "node:test";
import { blankPage, live, newPage, problems, shared } from "./shared.mjs";

// The number of tasks in burst.py.
const tasks = "20,000";

// setClock makes the clock of a browser wrong by some milliseconds, for scripts that run in it.
function setClock(ahead) {
  const own = Date.now.bind(Date);
  globalThis.Date = class extends Date {
    constructor(...args) {
      super(...(args.length > 0 ? args : [own() + ahead]));
    }
    static now() {
      return own() + ahead;
    }
  };
}

export function testStream() {
  for (const [wrong, days] of [
    ["ahead", 1],
    ["behind", -1],
  ]) {
    test(`the clock of the browser is a day ${wrong}`, async () => {
      problems.length = 0;
      const page = await blankPage();
      await page.addInitScript(setClock, days * 86_400_000);
      await page.goto(`${shared.cluster.url}#token=${shared.cluster.token}`);
      await live(page);
      // The first graph has a day by the clock of the browser, or less than no time.
      await page.goto(`${shared.cluster.url}#/graphs`);
      const first = page.locator("tr", { has: page.getByRole("link", { name: /^g1( |$)/ }) });
      await first.getByText(/^[0-9]+ (s|min [0-9]+ s) ago$/).waitFor();
      await page.goto(`${shared.cluster.url}#/stream`);
      await page.getByTitle(/^score: /).waitFor();
      assert.deepEqual(problems, []);
      await page.context().close();
    });
  }

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
