// A scheduler with a journal is killed and started again while a page is open. Attempts of before
// are not kept: the pages say so, and do not mix them with later ones.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { freePort, root, start } from "./cluster.mjs";
import { live, newPage, problems } from "./shared.mjs";

export function testRestart() {
  test("a scheduler that was started again", async () => {
    problems.length = 0;
    const folder = mkdtempSync(join(tmpdir(), "millrace-web-"));
    const millrace = process.env.MILLRACE_BIN ?? join(root, "bin/millrace");
    const python = join(root, ".venv/bin/python");
    const [address, http] = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
    const token = "t0ken";
    const env = { ...process.env, MILLRACE_ADDRESS: address, MILLRACE_TOKEN: token };
    const processes = [];
    const run = (command, ...args) => {
      const started = start(command, args, { env });
      processes.push(started);
      return started;
    };
    const scheduler = async () => {
      const own = ["--listen", address, "--http", http, "--journal", join(folder, "journal")];
      const started = run(millrace, "scheduler", ...own);
      await started.says("ready\n");
      return started;
    };
    let page;
    try {
      const first = await scheduler();
      const small = ["--workers", "1", "--slots", "1", "--memory-limit", "64MiB"];
      run(millrace, "worker", "--name", "w", "--python", python, ...small);
      const job = run(python, join(root, "web/test/restart.py"));
      await job.says("before");
      page = await newPage({}, undefined, { url: `http://${http}/`, token });
      const show = (place) => page.goto(`http://${http}/#/${place}`);
      await show("stream");
      // The view follows the present. The tasks may have run more than a minute ago.
      await page.getByRole("button", { name: "5 min" }).click();
      await page.getByTitle(/^early: 20 attempts/).waitFor();
      first.process.kill("SIGKILL");
      await first.ended;
      await page.getByRole("status").getByText("Connection lost").waitFor();
      await scheduler();
      await live(page);
      job.process.stdin.write("\n");
      await job.says("after");
      await page.getByTitle(/^late: 3 attempts/).waitFor();
      assert.equal(await page.getByTitle(/^early: /).count(), 0);
      await show("graphs/1");
      const notice = page.locator(".notice", { hasText: "The scheduler was started again at" });
      await notice.getByText(/attempts that ended before are not kept/).waitFor();
      await show("graphs/1?show=tasks");
      await page.locator("tr", { hasText: "early" }).first().getByRole("link").first().click();
      await page.waitForURL(/#\/tasks\//);
      await notice.waitFor();
      // Requests fail while no scheduler runs. The browser has a dozen names for that.
      assert.deepEqual(
        problems.filter((p) => !p.startsWith("Failed to load resource: net::ERR_")),
        [],
      );
    } finally {
      await page?.context().close();
      for (const p of processes.reverse()) {
        p.process.stdin.end();
        p.process.kill("SIGTERM");
        await p.ended;
      }
      rmSync(folder, { recursive: true, force: true });
    }
  });
}
