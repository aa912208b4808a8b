// Measures how the task stream moves with 300,000 attempts in view: frames per second, script per
// frame, and the longest time between two frames. It serves the built page with made-up attempts,
// and needs no cluster. With --live N, the history ends now, and N more attempts end in each second:
// the page gets them as a scheduler sends them, in ten events a second of at most 500 attempts each,
// and moves by itself, pans and zooms meanwhile.
//
//   BROWSER=/usr/bin/chromium node test/frames.mjs [--frames 120] [--attempts 300000] [--assets DIR]
//     [--live 20000]

import { readFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values } = parseArgs({
  options: {
    frames: { type: "string", default: "120" },
    attempts: { type: "string", default: "300000" },
    live: { type: "string", default: "0" },
    assets: {
      type: "string",
      default: new URL("../../server/web/assets", import.meta.url).pathname,
    },
  },
});
const [frames, attempts, live] = [values.frames, values.attempts, values.live].map(Number);
const [workers, slots, ops] = [4, 8, 6];
// The time between two events, and the largest number of attempts in one.
const [tickMs, eventRows] = [100, 500];
const started = Date.now() - 3_600_000;
// Of the attempts of a live cluster, the page gets one of so many.
const sampled = Math.max(1, (live * tickMs) / 1000 / eventRows);
// The time between two attempts of a slot, and the time of the first one after the start.
const turnMs = live > 0 ? (1000 * workers * slots) / live : 300;
const firstMs = live > 0 ? 3_600_000 - (1000 * attempts * sampled) / live : 0;
const types = { html: "text/html", js: "text/javascript", css: "text/css" };

// attempt is a row of api/runs. Slots take turns, and each attempt follows the one before it.
function attempt(number) {
  const lane = number % (workers * slots);
  const turn = Math.floor(number / (workers * slots));
  const noise = ((number * 2654435761) % 1000) / 1000;
  return [
    ...[number + 1, number + 1, number % ops, (lane % workers) + 1, Math.floor(lane / workers) + 1],
    firstMs + turnMs * (turn + 0.13 * noise),
    ...[0.33 + 0.4 * noise, 0.07 * noise, noise > 0.9 ? 0.1 : 0, 0.013, 0.02].map(
      (x) => x * turnMs,
    ),
    ...[1000, 2000, noise > 0.995 ? 6 : 5, `task-${number}`],
  ];
}

const op = Array.from({ length: ops }, (_, i) => `function-${i}`);
const columns =
  "number task_id op_index worker_id slot start_ms run_ms fetch_ms wait_ms deserialize_ms publish_ms output_bytes input_bytes state key".split(
    " ",
  );

// The number of attempts that have ended.
const endedNow = () =>
  live > 0 ? Math.floor(((Date.now() - started - firstMs) * live) / 1000) : attempts;

// page is an answer of api/runs. The history before a live stream is a sample, too: the page then
// has the time of many attempts in view, as if it had followed them.
function page(before) {
  const history = attempts * sampled;
  const end = before > 0 ? before - 1 : Math.min(history, endedNow());
  const step = live > 0 && end <= history ? sampled : 1;
  const begin = Math.max(0, end - 5000 * step);
  const rows = [];
  for (let i = end - 1; i >= begin; i -= step) rows.push(attempt(i));
  return { op, columns, rows, ...(begin > 0 ? { before: begin + 1 } : {}) };
}

// feed sends what has ended since the last event, or a sample of it.
function feed(response) {
  let last = attempts * sampled;
  const timer = setInterval(() => {
    const [begin, end] = [last, endedNow()];
    const step = Math.max(1, (end - begin) / eventRows);
    const rows = [];
    for (let i = begin; i < end; i += step) rows.push(attempt(Math.floor(i)));
    last = end;
    if (rows.length === 0) return;
    response.write(`event: runs\ndata: ${JSON.stringify({ op, columns, rows })}\n\n`);
  }, tickMs);
  response.on("close", () => clearInterval(timer));
}

const rows = Array.from({ length: workers }, (_, i) => ({
  ...{ workerId: i + 1, name: `host-${i}`, slots, state: "WORKER_STATE_ACTIVE" },
}));
const topics = { workers: { snapshot: true, rows }, alarms: { alarms: [] } };

const server = http.createServer((request, response) => {
  const url = new URL(request.url, "http://localhost");
  const json = (value) => {
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify(value));
  };
  if (url.pathname === "/api/session") {
    json({ role: "operator", life: "1", start_time: new Date(started).toISOString() });
  } else if (url.pathname === "/api/runs") json(page(Number(url.searchParams.get("before") ?? 0)));
  else if (url.pathname === "/api/samples") json({ columns: ["time"], rows: [] });
  else if (url.pathname === "/api/stream") {
    response.setHeader("Content-Type", "text/event-stream");
    for (const [topic, message] of Object.entries(topics))
      response.write(`event: ${topic}\ndata: ${JSON.stringify(message)}\n\n`);
    if (live > 0 && url.searchParams.get("topics").includes("runs")) feed(response);
  } else {
    const name = url.pathname === "/" ? "index.html" : url.pathname.slice(1);
    response.setHeader("Content-Type", types[name.split(".").pop()] ?? "text/plain");
    response.end(readFileSync(join(values.assets, name)));
  }
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const browser = await chromium.launch({
  executablePath: process.env.BROWSER,
  args: ["--no-sandbox", "--disable-gpu"],
});
const tab = await browser.newPage({ viewport: { width: 1280, height: 800 } });
tab.setDefaultTimeout(300_000);
await tab.goto(`http://127.0.0.1:${server.address().port}/#/stream`);
await tab.getByRole("button", { name: "All" }).click();
const latest = live > 0 ? "latest" : `latest ${attempts.toLocaleString("en-US")}`;
await tab.getByRole("img", { name: latest }).waitFor();
if (live > 0) await tab.waitForFunction(held, attempts);
await tab.waitForTimeout(2000); // Until what the load has left behind is done.

const session = await tab.context().newCDPSession(tab);
await session.send("Performance.enable");
const script = async () => {
  const { metrics } = await session.send("Performance.getMetrics");
  return metrics.find((m) => m.name === "ScriptDuration").value;
};

// held says whether the page has nearly as many attempts as it may keep: it drops the oldest tenth.
function held(attempts) {
  const label = document.querySelector("canvas").getAttribute("aria-label");
  return Number(label.match(/latest ([0-9,]+)/)?.[1].replaceAll(",", "")) >= 0.9 * attempts;
}

// Each frame gets one event of the wheel; without events the page moves by itself.
async function measure(events) {
  const before = await script();
  const [seconds, longest] = await tab.evaluate(
    async ([count, events]) => {
      const canvas = document.querySelector("canvas");
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      await frame();
      const begin = performance.now();
      let [last, longest] = [begin, 0];
      for (let i = 0; i < count; i++) {
        const way = events?.[i % 40 < 20 ? 0 : 1];
        const options = { ...way, cancelable: true, clientX: 700, clientY: 300 };
        if (way) canvas.dispatchEvent(new WheelEvent("wheel", options));
        await frame();
        const now = performance.now();
        longest = Math.max(longest, now - last);
        last = now;
      }
      return [(last - begin) / 1000, longest];
    },
    [frames, events],
  );
  const ms = ((await script()) - before) * 1000;
  return {
    frames_per_second: round(frames / seconds),
    script_ms_per_frame: round(ms / frames),
    longest_ms: round(longest),
  };
}

const round = (value) => Math.round(value * 10) / 10;
const moves = {};
if (live > 0) {
  await tab.getByRole("button", { name: "1 min" }).click();
  await tab.getByRole("button", { name: "Follow" }).click();
  moves.follow = await measure(null);
}
const pan = await measure([{ deltaX: 7 }, { deltaX: -7 }]);
const zoom = await measure([{ deltaY: -10 }, { deltaY: 10 }]);
console.log(JSON.stringify({ attempts, live, ...moves, pan, zoom }));
await browser.close();
server.closeAllConnections();
server.close();
