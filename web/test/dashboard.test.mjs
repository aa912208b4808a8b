// Opens every page in a real browser beside a running cluster with failures, spills and a killed
// worker. Screenshots go to out/web.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { testAccess } from "./access.mjs";
import { testCauses } from "./causes.mjs";
import { root, until } from "./cluster.mjs";
import { testRestart } from "./restart.mjs";
import { close, newPage, open, orders, problems, shared } from "./shared.mjs";
import { testStream } from "./stream.mjs";

const shots = new URL("../../out/web/", import.meta.url).pathname;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let page;
let tasks;

before(async () => {
  mkdirSync(shots, { recursive: true });
  await open();
  const { cluster } = shared;
  // Before the kill: results of the killed worker are computed again after it.
  const of = async (op, state) => {
    const found = await cluster.call("ListTasks", { states: [state], pageSize: 1000 });
    return found.tasks.find((t) => t.op.name === op);
  };
  tasks = {
    task: await of("parse", "TASK_STATE_FAILED"),
    slow: await of("score", "TASK_STATE_SUCCEEDED"),
    kept: await of("clean", "TASK_STATE_SUCCEEDED"),
  };
  const { workers } = await cluster.call("ListWorkers");
  const killed = workers.find((w) => w.name === "host-2");
  process.kill(Number(killed.pid), "SIGKILL");
  await until("the killed worker is back", async () => {
    const now = await cluster.call("ListWorkers");
    const w = now.workers.find((x) => x.name === "host-2");
    return w && w.pid !== killed.pid && w.state === "WORKER_STATE_ACTIVE";
  });
  page = await newPage();
});

after(close);

const rates = /^[0-9.]+ .?i?B\/s$/;
const shows = (page, text) => page.locator("#content").getByText(text).first().waitFor();

// isMeant waits until the row of a list that a link means is marked, has the focus, and is in view.
async function isMeant(page, text) {
  const row = page.locator("tr[aria-current=true]:focus", { hasText: text });
  await row.waitFor();
  await page.waitForFunction(() => {
    const box = document.querySelector("tr[aria-current=true]")?.getBoundingClientRect();
    return box && box.top >= 0 && box.bottom <= window.innerHeight;
  });
}

// Each page with what it must show.
const pages = [
  [
    "overview",
    async (page) => {
      await page.locator(".spark polyline").first().waitFor({ state: "attached" });
      await shows(page, "Progress by function");
      await page.locator("td", { hasText: "score" }).first().waitFor();
      await shows(page, "Memory by tier");
    },
  ],
  [
    "stream",
    async (page) => {
      await shows(page, "functions");
      await page.getByRole("button", { name: "All" }).click();
      await page.locator("li button", { hasText: "join" }).waitFor();
    },
  ],
  [
    "workers",
    async (page) => {
      for (const name of ["host-0", "host-1", "host-2"])
        await page.getByRole("link", { name, exact: true }).first().waitFor();
    },
  ],
  [
    "workers/host-2",
    async (page) => {
      await shows(page, "Deaths of its processes");
      await shows(page, /SIGKILL|killed/);
      await shows(page, / INFO (registered|executor ready) worker=host-2/);
      await shows(page, /\/s sent; /);
      // The cluster is on one host: its workers reach each other by the interface of loopback.
      const network = page.getByRole("region", { name: "Network devices" }).locator("tr");
      const cells = network.filter({ has: page.getByText("lo", { exact: true }) }).locator("td");
      for (const at of [1, 2]) await cells.nth(at).getByText(rates).waitFor();
      await shows(page, "Memory by tier");
      const processes = page.getByRole("region", { name: "Executor processes" });
      const inSlot = processes.locator("tr", { hasText: "python slot 0" }).first();
      await inSlot.getByText(/^(idle|running)$/).waitFor();
      await inSlot.getByText(/ MiB$/).waitFor();
      await shows(page, /^largest free piece [0-9.]+ .iB of [0-9.]+ .iB free$/);
      await page.locator(".log .text").first().waitFor();
    },
  ],
  [
    "graphs",
    async (page) => {
      await page.getByRole("link", { name: /^g1/ }).first().waitFor();
      await shows(page, /line 3 is not a number/);
    },
  ],
  [
    "graphs/1",
    async (page) => {
      await shows(page, "Critical path".toLowerCase());
      await shows(page, /critical path [0-9]/);
      const saved = page.waitForEvent("download");
      await page.getByRole("link", { name: "Export for Perfetto" }).click();
      const file = JSON.parse(readFileSync(await (await saved).path(), "utf8"));
      assert.ok(file.traceEvents.some((e) => e.cat === "task" && e.name === "score"));
    },
  ],
  [
    "graphs/1?show=functions",
    async (page) => {
      await page.locator("tr", { hasText: "score" }).getByText("straggler").waitFor();
    },
  ],
  [
    "graphs/1?show=tasks",
    async (page) => {
      await page.locator("tr", { hasText: "parse" }).first().waitFor();
    },
  ],
  [
    "graphs/1?show=flame",
    async (page) => {
      await shows(page, /[0-9]+ samples, /);
      await page.getByRole("tree").focus();
      await page.keyboard.press("ArrowRight");
      await page.keyboard.press("ArrowLeft");
      await page.keyboard.press("Enter");
      await page.getByRole("treeitem", { name: /^score, .* [0-9.]+ %$/ }).waitFor();
      await shows(page, /job\.py:[0-9]+/);
      await page.keyboard.press("0");
      await page.getByRole("treeitem", { name: /^join, / }).waitFor();
    },
  ],
  [
    "memory",
    async (page) => {
      await shows(page, "Largest holders");
      const held = page.locator("td", { hasText: /held by / }).first();
      await held.getByRole("link", { name: /^client c[0-9]+$/ }).waitFor();
      await shows(page, /^largest free piece [0-9.]+ .iB of [0-9.]+ .iB free$/);
    },
  ],
  [
    "routes",
    async (page) => {
      await shows(page, "Rows read from columns");
      await page.getByRole("img", { name: /Matrix/ }).focus();
      await page.keyboard.press("ArrowRight");
      await page.getByRole("heading", { name: "host-0 ← host-1" }).waitFor();
    },
  ],
  [
    "datasets",
    async (page) => {
      await page.locator("td", { hasText: "cleaned" }).waitFor();
    },
  ],
  [
    "events",
    async (page) => {
      await page.locator("tr", { hasText: "host-2" }).first().waitFor();
    },
  ],
  [
    "logs",
    async (page) => {
      await page.locator(".log .text").first().waitFor();
      await page.getByLabel("Filter by text").fill("registered");
      await page.locator(".log .text", { hasText: "registered" }).first().waitFor();
    },
  ],
  [
    "clients",
    async (page) => {
      await page.getByRole("table").first().locator("td", { hasText: "default" }).first().waitFor();
    },
  ],
  [
    "slow",
    async (page) => {
      await shows(page, "Flame graph of score");
      await page.getByRole("treeitem", { name: /^score, / }).waitFor();
      await page.getByRole("treeitem", { name: /^join, / }).waitFor({ state: "detached" });
    },
  ],
  [
    "task",
    async (page) => {
      await shows(page, "line 3 is not a number: 'x7'");
      await shows(page, /Traceback/);
      await shows(page, "python exception");
      await shows(page, /There are no samples|[0-9] samples, /);
      await shows(page, "line 3: not a number");
      await shows(page, /^held by client c[0-9]+; no task needs it$/);
    },
  ],
  [
    "kept",
    async (page) => {
      const kept = page.getByRole("region", { name: "Kept by" });
      await kept.getByRole("link", { name: "dataset cleaned" }).click();
      await isMeant(page, /^cleaned/);
      await page.goBack();
      await kept.getByRole("link", { name: /^client c[0-9]+$/ }).click();
      await isMeant(page, / c[0-9]+/);
      await page.goBack();
      await kept.waitFor();
    },
  ],
];

const addressOf = (name) =>
  `${shared.cluster.url}#/${tasks[name] ? `tasks/${tasks[name].taskId}` : name}`;
const fileName = (name) => name.replaceAll(/[^a-z0-9]+/g, "-");

// shoot takes a screenshot, in which the folder of these sources has another name: docs show it.
async function shoot(page, name) {
  await page.evaluate((folder) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const { currentNode } = texts;
      if (currentNode.data.includes(folder))
        currentNode.data = currentNode.data.replaceAll(folder, "/srv/millrace/");
    }
  }, root);
  await page.screenshot({ path: join(shots, `${name}.png`) });
}

for (const [name, check] of pages) {
  test(`page ${name}`, async () => {
    problems.length = 0;
    await page.goto(addressOf(name));
    await check(page);
    await shoot(page, `${fileName(name)}-light`);
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
  const saved = await page.context().request.get(`${shared.cluster.url}api/report`);
  assert.equal(saved.status(), 200);
  const file = join(shots, "report.html");
  writeFileSync(file, await saved.body());
  const context = await shared.browser.newContext({ viewport: { width: 1280, height: 800 } });
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
    await shoot(opened, `report-${fileName(name)}`);
  }
  assert.deepEqual(seen, []);
  await context.close();
});

test("dark, wide, and for a reader", async () => {
  problems.length = 0;
  const views = [
    ["dark", { colorScheme: "dark" }],
    ["2560", { viewport: { width: 2560, height: 1300 } }],
    ["reader", {}, shared.cluster.reader],
  ];
  await Promise.all(
    views.map(async ([suffix, options, token]) => {
      const other = await newPage(options, token);
      for (const [name, check] of pages) {
        await other.goto(addressOf(name));
        await check(other);
        if (token) assert.equal(await orders(other).count(), 0);
        else await shoot(other, `${fileName(name)}-${suffix}`);
      }
      await other.context().close();
    }),
  );
  assert.deepEqual(problems, []);
});

test("a link to an event shows it, also behind a filter", async () => {
  await page.goto(addressOf("events"));
  const times = page
    .getByRole("region", { name: "Events", exact: true })
    .locator("td a[href*=row]");
  await times.last().waitFor();
  const address = await times.last().getAttribute("href");
  await page.getByLabel("Filter by text").fill("no event has this text");
  await times.first().waitFor({ state: "detached" });
  await page.evaluate((hash) => {
    location.hash = hash;
  }, address);
  await isMeant(page, /./);
  const filter = page.getByLabel("Filter by text");
  assert.equal(await filter.inputValue(), "");
  // The focus goes to it once only: not again when a filter hides it and shows it again.
  await filter.click();
  await page.keyboard.type("no event has this text");
  await times.first().waitFor({ state: "detached" });
  await page.keyboard.press("Control+A");
  await page.keyboard.press("Delete");
  await page.locator("tr[aria-current=true]").waitFor();
  await page.keyboard.type("w");
  assert.equal(await filter.inputValue(), "w");
});

test("a link to an event of another scheduler shows none", async () => {
  await page.goto(addressOf("events"));
  const link = page.getByRole("region", { name: "Events", exact: true }).locator("td a[href*=row]");
  const address = decodeURIComponent(await link.last().getAttribute("href"));
  const number = address.match(/row=([0-9]+)@[0-9]{4}-/)[1];
  await page.goto(addressOf(`events?row=${number}@2020-01-01T00:00:00Z`));
  await page.getByText("What the link means is not in this list, or not any more.").waitFor();
  assert.equal(await page.locator("tr[aria-current=true]").count(), 0);
});

test("a link to an alarm shows it, and so does their number in the menu", async () => {
  const other = await newPage();
  // The page gets made-up alarms in place of those of the cluster.
  await other.addInitScript(() => {
    const alarms = ["a", "b"].map((id) => ({
      ...{ id: `test ${id}`, kind: "test", severity: "warning", since: "2026-01-02T03:04:05Z" },
      ...{ subject: `Subject ${id}`, text: "it is slow", remedy: "wait" },
    }));
    const data = JSON.stringify({ alarms });
    const add = EventSource.prototype.addEventListener;
    EventSource.prototype.addEventListener = function (topic, take) {
      if (topic === "alarms") setTimeout(() => take({ data }));
      else add.call(this, topic, take);
    };
  });
  await other.goto(addressOf("workers"));
  await other.reload();
  const marked = other.locator(".alarm[aria-current=true]:focus");
  await other.getByRole("link", { name: "2 alarms" }).click();
  await marked.getByText("Subject a").waitFor();
  await other.locator(".alarm", { hasText: "Subject b" }).getByRole("link").click();
  await marked.getByText("Subject b").waitFor();
  await other.context().close();
});

test("a link to a client that is gone says so", async () => {
  await page.goto(addressOf("clients?row=999999999"));
  await page.getByText("What the link means is not in this list, or not any more.").waitFor();
});

testStream();
testCauses(shots);
testRestart();
testAccess();
