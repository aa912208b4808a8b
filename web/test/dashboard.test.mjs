// Opens every page in a real browser beside a running cluster with failures, spills and a killed
// worker. Screenshots go to out/web.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { startCluster, until } from "./cluster.mjs";

const shots = new URL("../../out/web/", import.meta.url).pathname;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let cluster;
let browser;
let page;
let problems;
let tasks;
let killed;

before(async () => {
  mkdirSync(shots, { recursive: true });
  cluster = await startCluster();
  const { workers } = await cluster.call("ListWorkers");
  killed = workers.find((w) => w.name === "host-2");
  process.kill(Number(killed.pid), "SIGKILL");
  await until("the killed worker is back", async () => {
    const now = await cluster.call("ListWorkers");
    const w = now.workers.find((x) => x.name === "host-2");
    return w && w.pid !== killed.pid && w.state === "WORKER_STATE_ACTIVE";
  });
  const of = async (op, state) => {
    const found = await cluster.call("ListTasks", { states: [state], pageSize: 1000 });
    return found.tasks.find((t) => t.op.name === op);
  };
  tasks = {
    task: await of("parse", "TASK_STATE_FAILED"),
    slow: await of("score", "TASK_STATE_SUCCEEDED"),
  };
  browser = await chromium.launch({
    executablePath: process.env.BROWSER,
    args: ["--no-sandbox", "--disable-gpu"],
  });
  page = await newPage("light");
});

after(async () => {
  await browser?.close();
  await cluster?.stop();
});

async function newPage(colorScheme, viewport = { width: 1280, height: 800 }) {
  const context = await browser.newContext({ colorScheme, viewport, reducedMotion: "reduce" });
  const opened = await context.newPage();
  problems = [];
  opened.on("console", (m) => m.type() === "error" && problems.push(m.text()));
  opened.on("pageerror", (e) => problems.push(String(e)));
  opened.on("request", (r) => {
    if (!r.url().startsWith(cluster.url) && !/^(data|blob):/.test(r.url())) problems.push(r.url());
  });
  await opened.goto(`${cluster.url}#token=${cluster.token}`);
  await opened.getByRole("status").getByText("Live").waitFor();
  return opened;
}

const shows = (text) => page.locator("#content").getByText(text).first().waitFor();

// Each page with what it must show.
const pages = [
  [
    "overview",
    async () => {
      await shows("Progress by function");
      await page.locator("td", { hasText: "score" }).first().waitFor();
      await shows("Memory by tier");
    },
  ],
  [
    "stream",
    async () => {
      await shows("functions");
      await page.getByRole("button", { name: "All" }).click();
      await page.locator("li button", { hasText: "join" }).waitFor();
    },
  ],
  [
    "workers",
    async () => {
      for (const name of ["host-0", "host-1", "host-2"])
        await page.getByRole("link", { name, exact: true }).first().waitFor();
    },
  ],
  [
    "workers/host-2",
    async () => {
      await shows("Deaths of its processes");
      await shows(/SIGKILL|killed/);
      await shows("Memory by tier");
      await page.locator(".log .text").first().waitFor();
    },
  ],
  [
    "graphs",
    async () => {
      await page.getByRole("link", { name: /^g1/ }).first().waitFor();
      await shows(/line 3 is not a number/);
    },
  ],
  [
    "graphs/1",
    async () => {
      await shows("Critical path".toLowerCase());
      await shows(/critical path [0-9]/);
      const saved = page.waitForEvent("download");
      await page.getByRole("link", { name: "Export for Perfetto" }).click();
      const file = JSON.parse(readFileSync(await (await saved).path(), "utf8"));
      assert.ok(file.traceEvents.some((e) => e.cat === "task" && e.name === "score"));
    },
  ],
  [
    "graphs/1?show=functions",
    async () => {
      await page.locator("tr", { hasText: "score" }).getByText("straggler").waitFor();
    },
  ],
  [
    "graphs/1?show=tasks",
    async () => {
      await page.locator("tr", { hasText: "parse" }).first().waitFor();
    },
  ],
  [
    "graphs/1?show=flame",
    async () => {
      await shows(/[0-9]+ samples, /);
      await page.getByRole("tree").focus();
      await page.keyboard.press("ArrowRight");
      await page.keyboard.press("ArrowLeft");
      await page.keyboard.press("Enter");
      await page.getByRole("treeitem", { name: /^score, [0-9.]+ m?s, [0-9.]+ %/ }).waitFor();
      await shows(/job\.py:[0-9]+/);
      await page.keyboard.press("0");
      await page.getByRole("treeitem", { name: /^join, / }).waitFor();
    },
  ],
  [
    "memory",
    async () => {
      await shows("Largest holders");
      await page.locator("td", { hasText: "holds it" }).first().waitFor();
    },
  ],
  [
    "routes",
    async () => {
      await shows("Rows read from columns");
      await page.getByRole("img", { name: /Matrix/ }).focus();
      await page.keyboard.press("ArrowRight");
      await page.getByRole("heading", { name: "host-0 ← host-1" }).waitFor();
    },
  ],
  [
    "datasets",
    async () => {
      await page.locator("td", { hasText: "cleaned" }).waitFor();
    },
  ],
  [
    "events",
    async () => {
      await page.locator("tr", { hasText: "host-2" }).first().waitFor();
    },
  ],
  [
    "logs",
    async () => {
      await page.locator(".log .text").first().waitFor();
      await page.getByLabel("Filter by text").fill("registered");
      await page.locator(".log .text", { hasText: "registered" }).first().waitFor();
    },
  ],
  [
    "clients",
    async () => {
      await page.getByRole("table").first().locator("td", { hasText: "default" }).first().waitFor();
    },
  ],
  [
    "slow",
    async () => {
      await shows("Flame graph of score");
      await page.getByRole("treeitem", { name: /^score, / }).waitFor();
      await page.getByRole("treeitem", { name: /^join, / }).waitFor({ state: "detached" });
    },
  ],
  [
    "task",
    async () => {
      await shows("line 3 is not a number: 'x7'");
      await shows(/Traceback/);
      await shows("python exception");
      await shows("line 3: not a number");
    },
  ],
];

const addressOf = (name) => `${cluster.url}#/${tasks[name] ? `tasks/${tasks[name].taskId}` : name}`;
const fileName = (name) => name.replaceAll(/[^a-z0-9]+/g, "-");

for (const [name, check] of pages) {
  test(`page ${name}`, async () => {
    problems.length = 0;
    await page.goto(addressOf(name));
    await check();
    await page.screenshot({ path: join(shots, `${fileName(name)}-light.png`) });
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() =>
      globalThis.axe.run(
        { exclude: [["tbody tr:nth-child(n+12)"]] },
        {
          resultTypes: ["violations"],
          runOnly: ["wcag2a", "wcag2aa", "wcag21aa"],
        },
      ),
    );
    const serious = violations.filter((v) => ["serious", "critical"].includes(v.impact));
    assert.deepEqual(
      serious.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" ")}`),
      [],
    );
    assert.deepEqual(problems, []);
  });
}

// What each page of a report must show.
const kept = [
  ["report", "Flame graph of all functions"],
  ["overview", "Progress by function"],
  ["stream", "Slots in view"],
  ["graphs", /line 3 is not a number/],
  ["graphs/1", /critical path [0-9]/],
  ["graphs/1?show=flame", /[0-9]+ samples, /],
  ["workers/host-2", "Deaths of its processes"],
  ["memory", "Largest holders"],
  ["routes", "Rows read from columns"],
  ["events", "host-2"],
  ["logs", "registered"],
  ["task", /Traceback/],
];

test("a report is one file with the same pages", async () => {
  const saved = await page.context().request.get(`${cluster.url}api/report`);
  assert.equal(saved.status(), 200);
  const file = join(shots, "report.html");
  writeFileSync(file, await saved.body());
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  const opened = await context.newPage();
  const seen = [];
  opened.on("console", (m) => m.type() === "error" && seen.push(m.text()));
  opened.on("pageerror", (e) => seen.push(String(e)));
  opened.on("request", (r) => {
    if (!/^(data|blob):/.test(r.url()) && !r.url().startsWith(`file://${file}`)) seen.push(r.url());
  });
  await opened.goto(`file://${file}`);
  await opened.getByRole("status").getByText("As it was at").waitFor();
  for (const [name, text] of kept) {
    const place = tasks[name] ? `tasks/${tasks[name].taskId}` : name;
    await opened.goto(`file://${file}#/${place}`);
    await opened.locator("#content").getByText(text).first().waitFor();
    await opened.screenshot({ path: join(shots, `report-${fileName(name)}.png`) });
  }
  assert.deepEqual(seen, []);
  await context.close();
});

test("dark and wide", async () => {
  for (const [scheme, viewport, suffix] of [
    ["dark", { width: 1280, height: 800 }, "dark"],
    ["light", { width: 2560, height: 1300 }, "2560"],
  ]) {
    await page.context().close();
    page = await newPage(scheme, viewport);
    for (const [name, check] of pages) {
      await page.goto(addressOf(name));
      await check();
      await page.screenshot({ path: join(shots, `${fileName(name)}-${suffix}.png`) });
    }
    assert.deepEqual(problems, []);
  }
});
