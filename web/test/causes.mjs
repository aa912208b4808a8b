// Three graphs that are slow, each for another reason: the overview says why in words.

import assert from "node:assert/strict";
import net from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { freePort, startCluster } from "./cluster.mjs";
import { newPage, problems, shared } from "./shared.mjs";

// The rate of the slow route in bytes per second, and the time between two pieces.
const slowRate = 3 << 20;
const pieceMs = 20;

// slowProxy forwards connections, and passes on what a target sends at the slow rate.
async function slowProxy(target) {
  const server = net.createServer((near) => {
    const far = net.connect(target, "127.0.0.1");
    near.pipe(far);
    far.on("data", (data) => {
      near.write(data);
      far.pause();
      setTimeout(() => far.resume(), Math.max(pieceMs, (1000 * data.length) / slowRate));
    });
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      one.on("error", () => other.destroy());
      one.on("close", () => other.end());
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

// check opens the overview while the graph of a cause runs, and follows the link of the finding.
async function check(
  cause,
  subject,
  text,
  remedy,
  address,
  shots,
  { cluster = shared.cluster, more, there } = {},
) {
  problems.length = 0;
  const page = await newPage({}, undefined, cluster);
  const job = cluster.python("causes.py", cause);
  try {
    const finding = page.locator(".alarm", { hasText: subject }).filter({ hasText: text }).first();
    await finding.waitFor();
    await finding.getByText(remedy).waitFor();
    await finding.getByText(/(since |^)[0-9]{2}:[0-9]{2}:[0-9]{2}/).waitFor();
    await more?.(page);
    await page.screenshot({ path: join(shots, `slow-${cause}.png`) });
    await finding.getByRole("link").click();
    await page.waitForURL(address);
    await there?.(page);
    await page.screenshot({ path: join(shots, `slow-${cause}-link.png`) });
    assert.deepEqual(problems, []);
  } finally {
    await page.context().close();
    await job.end();
  }
}

// hasAlarm looks for the alarm of the slow route, while its graph runs.
async function hasAlarm(page) {
  const alarm = page.getByRole("region", { name: "Alarms" }).locator(".alarm").filter({
    hasText: "near-0 from far-0",
  });
  await alarm
    .getByText(/reads from far-0 at .* by grpc; the median of its 3 such routes/)
    .waitFor();
  await alarm.getByText("millrace topo").waitFor();
  await alarm.getByText(/since [0-9]{2}:[0-9]{2}:[0-9]{2}/).waitFor();
}

// matrixFits looks at the matrix of five workers.
async function matrixFits(page) {
  const matrix = page.getByRole("img", { name: "Matrix of the routes of 5 workers" });
  await matrix.waitFor();
  const [inner, outer] = await matrix.evaluate((canvas) => {
    const box = canvas.parentElement;
    return [box.scrollWidth, box.clientWidth];
  });
  assert.ok(inner <= outer, `the matrix has ${inner} pixels, its card ${outer}`);
}

// hasAttempt looks for the attempt of the straggler, which is forgotten once it has ended.
async function hasAttempt(page) {
  const attempts = page.getByRole("region", { name: "Attempts" }).last();
  const row = attempts.getByRole("row", { name: /host-/ });
  await row
    .getByText(/^(8|9|[1-9][0-9])\.[0-9]+ s$/)
    .first()
    .waitFor();
  await row.getByRole("link", { name: /^host-[0-2]$/ }).waitFor();
}

export function testCauses(shots) {
  test("slow because of a straggler", async () => {
    await check(
      "straggler",
      "Straggler: task resize",
      /(has run for|ran for) [0-9.]+ s on worker host-[0-9]; the median of resize is [0-9.]+ m?s/,
      "split or submitted first",
      /#\/tasks\/[0-9]+$/,
      shots,
      { there: hasAttempt },
    );
  });

  test("a task that is forgotten", async () => {
    problems.length = 0;
    const page = await newPage();
    await page.goto(`${shared.cluster.url}#/tasks/1755700000000000001`);
    await page.getByText("There is no task 1755700000000000001").waitFor();
    await page.getByRole("link", { name: "task stream", exact: true }).click();
    await page.waitForURL(/#\/stream/);
    assert.deepEqual(problems, []);
    await page.context().close();
  });

  // Routes are compared with all others of their cluster, so that this one has a cluster of its own.
  test("slow because of a route", async () => {
    const cluster = await startCluster({ workers: 3, withJob: false });
    const port = await freePort();
    const proxy = await slowProxy(port);
    const start = (name, ...more) =>
      cluster.worker([
        ...["--name", name, "--workers", "1", "--slots", "1", "--protocol", "grpc"],
        ...["--memory-limit", "64MiB", "--spare-executors", "0", ...more],
      ]);
    const slow = `127.0.0.1:${proxy.address().port}`;
    const workers = [
      start("near"),
      start("far", "--listen", `127.0.0.1:${port}`, "--advertise", slow),
    ];
    try {
      await check(
        "route",
        "Transfers",
        /take [0-9]+ % of the time of consume, most of it on worker near-0.*slowest route is far-0 → near-0: [0-9.]+ [KM]iB\/s by grpc; the median/,
        "millrace drain far-0",
        /#\/routes$/,
        shots,
        { cluster, more: hasAlarm, there: matrixFits },
      );
    } finally {
      await Promise.all(workers.map((w) => w.end()));
      await cluster.stop();
      proxy.close();
    }
  });

  test("slow because of spilling", async () => {
    await check(
      "spilling",
      "Too little memory: worker host-",
      /moves [0-9.]+ MiB\/s between its memory and its disk/,
      "Release results",
      /#\/memory\?worker=host-/,
      shots,
    );
  });
}
