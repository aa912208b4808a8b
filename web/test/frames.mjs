// Measures how the task stream moves with 300,000 attempts in view: frames per second, and script
// per frame. It serves the built page with made-up attempts, and needs no cluster.
//
//   BROWSER=/usr/bin/chromium node test/frames.mjs [--frames 120] [--attempts 300000] [--assets DIR]

import { readFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values } = parseArgs({
  options: {
    frames: { type: "string", default: "120" },
    attempts: { type: "string", default: "300000" },
    assets: {
      type: "string",
      default: new URL("../../server/web/assets", import.meta.url).pathname,
    },
  },
});
const [frames, attempts] = [Number(values.frames), Number(values.attempts)];
const [workers, slots, ops] = [4, 8, 6];
const started = Date.now() - 3_600_000;
const types = { html: "text/html", js: "text/javascript", css: "text/css" };

// attempt is a row of api/runs. Slots take turns, and each attempt follows the one before it.
function attempt(number) {
  const lane = number % (workers * slots);
  const turn = Math.floor(number / (workers * slots));
  const noise = ((number * 2654435761) % 1000) / 1000;
  return [
    ...[number + 1, number + 1, number % ops, (lane % workers) + 1, Math.floor(lane / workers) + 1],
    ...[turn * 300 + 40 * noise, 100 + 120 * noise, 20 * noise, noise > 0.9 ? 30 : 0, 4, 6],
    ...[1000, 2000, noise > 0.995 ? 6 : 5, `task-${number}`],
  ];
}

function page(before) {
  const end = before > 0 ? before - 1 : attempts;
  const begin = Math.max(0, end - 5000);
  const rows = Array.from({ length: end - begin }, (_, i) => attempt(end - 1 - i));
  return {
    op: Array.from({ length: ops }, (_, i) => `function-${i}`),
    columns:
      "number task_id op_index worker_id slot start_ms run_ms fetch_ms wait_ms deserialize_ms publish_ms output_bytes input_bytes state key".split(
        " ",
      ),
    rows,
    ...(begin > 0 ? { before: begin + 1 } : {}),
  };
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
await tab.getByRole("img", { name: `latest ${attempts.toLocaleString("en-US")}` }).waitFor();
await tab.waitForTimeout(2000); // Until what the load has left behind is done.

const session = await tab.context().newCDPSession(tab);
await session.send("Performance.enable");
const script = async () => {
  const { metrics } = await session.send("Performance.getMetrics");
  return metrics.find((m) => m.name === "ScriptDuration").value;
};

// Each frame gets one event of the wheel.
async function measure(events) {
  const before = await script();
  const seconds = await tab.evaluate(
    async ([count, [there, back]]) => {
      const canvas = document.querySelector("canvas");
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      await frame();
      const begin = performance.now();
      for (let i = 0; i < count; i++) {
        const way = i % 40 < 20 ? there : back;
        const options = { ...way, cancelable: true, clientX: 700, clientY: 300 };
        canvas.dispatchEvent(new WheelEvent("wheel", options));
        await frame();
      }
      return (performance.now() - begin) / 1000;
    },
    [frames, events],
  );
  const ms = ((await script()) - before) * 1000;
  return { frames_per_second: round(frames / seconds), script_ms_per_frame: round(ms / frames) };
}

const round = (value) => Math.round(value * 10) / 10;
const pan = await measure([{ deltaX: 7 }, { deltaX: -7 }]);
const zoom = await measure([{ deltaY: -10 }, { deltaY: 10 }]);
console.log(JSON.stringify({ attempts, pan, zoom }));
await browser.close();
server.closeAllConnections();
server.close();
