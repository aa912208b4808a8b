// A real cluster for the tests: three workers with little memory, and a job that spills and fails.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

export const root = new URL("../..", import.meta.url).pathname;

// until polls until a function gives something. A busy machine takes minutes to start a cluster.
export async function until(what, find, seconds = 300) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await sleep(100)) {
    const found = await find();
    if (found) return found;
  }
  throw new Error(`${what}: not within ${seconds} s`);
}

// start runs a program. Its says() waits until the program has written something that a pattern or a
// text matches, and gives the match.
export function start(command, args, options) {
  const process = spawn(command, args, { cwd: root, stdio: ["pipe", "pipe", "pipe"], ...options });
  let text = "";
  const add = (data) => {
    text += data;
  };
  process.stdout.on("data", add);
  process.stderr.on("data", add);
  const ended = new Promise((resolve) => process.on("exit", resolve));
  const says = (word, seconds) => {
    const find = () => {
      const found = text.match(word);
      if (process.exitCode !== null && !found) throw new Error(`${command}: ${text}`);
      return found;
    };
    return until(`"${word}" of ${command}`, find, seconds);
  };
  return { process, ended, says };
}

// startCluster starts a cluster with workers host-0 and so on, and the job that most tests look at.
export async function startCluster({ workers = 3, withJob = true } = {}) {
  const folder = mkdtempSync(join(tmpdir(), "millrace-web-"));
  const file = join(folder, "scheduler.json");
  const python = join(root, ".venv/bin/python");
  const millrace = process.env.MILLRACE_BIN ?? join(root, "bin/millrace");
  const up = start(millrace, [
    ...["up", "--workers", String(workers), "--slots", "2"],
    ...["--memory-limit", "32MiB", "--spill-limit", "1GiB"],
    ...[
      "--python",
      python,
      "--scheduler-file",
      file,
      "--http",
      "127.0.0.1:0",
      "--spare-executors",
      "0",
    ],
  ]);
  await up.says("ready 127");
  const { http, token } = JSON.parse(readFileSync(file, "utf8"));
  const url = `http://${http}/`;
  const only = ["token", "read-only", "--scheduler-file", file];
  const reader = execFileSync(millrace, only, { encoding: "utf8" }).trim();
  const call = async (method, request = {}) => {
    const response = await fetch(`${url}api/millrace.v1.SchedulerService/${method}`, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(request),
    });
    if (!response.ok) throw new Error(`${method}: ${await response.text()}`);
    return await response.json();
  };
  const env = { ...process.env, MILLRACE_SCHEDULER_FILE: file };
  // program runs one more process beside the cluster. Its end() tells it to stop.
  const program = (command, args, stopIt) => {
    const started = start(command, args, { env });
    const end = async () => {
      stopIt(started.process);
      await started.ended;
    };
    return { ...started, end };
  };
  const run = (file, ...args) =>
    program(python, [join(root, "web/test", file), ...args], (p) => p.stdin.end());
  const worker = (args) =>
    program(millrace, ["worker", "--python", python, ...args], (p) => p.kill("SIGTERM"));
  const job = withJob ? run("job.py") : null;
  const stop = async () => {
    await job?.end();
    up.process.kill("SIGTERM");
    await up.ended;
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    await job?.says("begun");
  } catch (error) {
    await stop();
    throw error;
  }
  return { url, token, reader, env, call, python: run, worker, scheduler: up.process, stop };
}

const given = new Set();

// freePort finds a port on which nobody listens, below the kernel's range of ephemeral ports: with a
// port of that range, a client that dials it while no process listens can be connected to itself.
// It gives no port twice. The Go tests and those of Python take ports above these.
export async function freePort() {
  const range = readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8");
  const lowest = Number(range.split(/\s+/)[0]);
  const first = Math.max(lowest - 18_000, 1024);
  for (;;) {
    const port = first + Math.floor(Math.random() * 6_000);
    const server = net.createServer();
    const free = await new Promise((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => resolve(true));
    });
    if (!free) continue;
    await new Promise((resolve) => server.close(resolve));
    if (given.has(port)) continue;
    given.add(port);
    return port;
  }
}
