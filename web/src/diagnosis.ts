// Says in words why tasks take long: transfers, spilling, stragglers.

import { bytes, duration, num, percent, plural, rate } from "./format";
import { link } from "./router";
import type { RunBatch } from "./runs";
import type { SlowRoute, Worker } from "./types";

export interface Finding {
  id: string;
  subject: string;
  text: string;
  remedy: string;
  // The time that it is about, in milliseconds since 1970: since when, or between which times.
  since: number;
  until?: number;
  address: string;
  action: string;
}

// Running is a task that runs, and for how long it has.
export interface Running {
  task: string;
  key: string;
  op: string;
  worker: string;
  ms: number;
}

export interface Evidence {
  // The latest finished attempts.
  batch: RunBatch;
  workers: Worker[];
  running: Running[];
  // Bytes per second that move between memory and disk, by worker.
  spilling: ReadonlyMap<string, number>;
  // The time since which spilling is measured.
  spillingSince: number;
  // The time at which the scheduler started, and the present one, in milliseconds since 1970.
  origin: number;
  now: number;
  idleSlots: number;
  slowRoutes: SlowRoute[];
}

// Attempts that ended before this many milliseconds count for medians only.
const recent = 120_000;
// From this part of the time of tasks on, transfers or waits for memory are a cause.
const share = 0.2;
// Less than these milliseconds in all is too little to slow down anybody.
const least = 1000;
// A worker that moves fewer bytes per second does not wait for its disk.
const moved = 1 << 20;
// The largest number of stragglers that are named.
const named = 3;

interface Attempt {
  task: string;
  key: string;
  op: string;
  worker: string;
  run: number;
  fetch: number;
  wait: number;
  all: number;
  // In milliseconds since 1970: the begin of its fetches, that of its function, its end.
  begin: number;
  start: number;
  end: number;
}

function attemptsIn(batch: RunBatch, workers: Worker[], origin: number): Attempt[] {
  const columns = batch.columns ?? [];
  const at = new Map(columns.map((name, i) => [name, i]));
  const names = new Map(workers.map((w) => [w.workerId, w.name ?? ""]));
  return (batch.rows ?? []).map((row) => {
    const text = (name: string) => String(row[at.get(name) ?? -1] ?? "");
    const of = (name: string) => Number(row[at.get(name) ?? -1] ?? 0);
    const run = of("run_ms");
    const wait = of("wait_ms") + of("spill_ms");
    return {
      task: text("task_id"),
      key: text("key"),
      op: batch.op?.[of("op_index")] ?? "",
      worker: names.get(of("worker_id")) ?? batch.workers?.[text("worker_id")] ?? "",
      run,
      fetch: of("fetch_ms"),
      wait,
      all: of("fetch_ms") + wait + of("deserialize_ms") + run + of("publish_ms"),
      begin: origin + of("start_ms") - of("deserialize_ms") - wait - of("fetch_ms"),
      start: origin + of("start_ms"),
      end: origin + of("start_ms") + run + of("publish_ms"),
    };
  });
}

const total = (of: Attempt[], value: (a: Attempt) => number) =>
  of.reduce((sum, a) => sum + value(a), 0);

// byWorker gives the workers, the one with the largest sum first.
function byWorker(of: Attempt[], value: (a: Attempt) => number): string[] {
  const sums = new Map<string, number>();
  for (const a of of) sums.set(a.worker, (sums.get(a.worker) ?? 0) + value(a));
  return [...sums].sort((a, b) => b[1] - a[1]).map(([worker]) => worker);
}

// timesOf gives the time that attempts took together.
function timesOf(of: Attempt[]): { since: number; until: number } {
  return {
    since: of.reduce((time, a) => Math.min(time, a.begin), Number.POSITIVE_INFINITY),
    until: of.reduce((time, a) => Math.max(time, a.end), 0),
  };
}

// worstOf gives the attempts of the function that loses most time, if that is a part to speak of.
// The time of other functions would hide it.
function worstOf(ended: Attempt[], lost: (a: Attempt) => number): Attempt[] {
  const byOp = new Map<string, Attempt[]>();
  for (const a of ended) {
    const list = byOp.get(a.op);
    if (list) list.push(a);
    else byOp.set(a.op, [a]);
  }
  const bad = [...byOp.values()].filter((list) => {
    const sum = total(list, lost);
    return sum >= least && sum >= share * total(list, (a) => a.all);
  });
  return bad.sort((a, b) => total(b, lost) - total(a, lost))[0] ?? [];
}

function transfers(e: Evidence, recentOnes: Attempt[]): Finding[] {
  const ended = worstOf(recentOnes, (a) => a.fetch);
  if (ended.length === 0) return [];
  const [fetched, all] = [total(ended, (a) => a.fetch), total(ended, (a) => a.all)];
  const readers = byWorker(
    ended.filter((a) => a.fetch > 0),
    (a) => a.fetch,
  );
  let text = `take ${percent(fetched, all)} of the time of ${ended[0]?.op}, most of it on worker ${readers[0]}`;
  let remedy =
    "Use fewer and larger inputs, or run tasks where their inputs are: the page of a task explains its place";
  // A slow route on which the function read nothing is no cause.
  const routes = readers.flatMap((r) => e.slowRoutes.find((s) => s.reader === r) ?? []);
  const slow = routes.find((r) => !r.good) ?? routes[0];
  if (slow) {
    const [speed, median] = [slow.bytes_per_second, slow.median_bytes_per_second];
    text += `. The slowest route is ${slow.peer} → ${slow.reader}: ${rate(speed)} by ${slow.path}`;
    if (!slow.good) {
      text += `; the median of ${slow.alike} such routes of ${slow.reader} is ${rate(median)}`;
      remedy = `"millrace topo" says why the route has this path, and "millrace doctor" what its hosts lack. Until it is mended: millrace drain ${slow.peer}`;
    }
  }
  return [
    {
      id: "transfers",
      subject: "Transfers",
      text,
      remedy,
      ...timesOf(ended),
      address: link("routes"),
      action: "Compare the routes",
    },
  ];
}

function spilling(e: Evidence, recentOnes: Attempt[]): Finding[] {
  const ended = worstOf(recentOnes, (a) => a.wait);
  const [waited, all] = [total(ended, (a) => a.wait), total(ended, (a) => a.all)];
  const waits = ended.length > 0;
  const [worst] = [...e.spilling].sort((a, b) => b[1] - a[1]);
  const spills = worst !== undefined && worst[1] >= moved;
  if (!waits && !spills) return [];
  const name = spills ? worst[0] : (byWorker(ended, (a) => a.wait)[0] ?? "");
  const worker = e.workers.find((w) => w.name === name);
  const parts: string[] = [];
  if (spills) parts.push(`moves ${rate(worst[1])} between its memory and its disk`);
  if (waits)
    parts.push(`${spills ? "and " : ""}${ended[0]?.op} waits ${percent(waited, all)} of its time`);
  const limit = bytes(num(worker?.memoryLimitBytes));
  return [
    {
      id: "memory",
      subject: `Too little memory: worker ${name}`,
      text: `${parts.join(", ")}. Its memory has ${limit}, and ${bytes(num(worker?.spilledBytes))} are on its disk`,
      remedy: "Release results, add workers, or give each more memory (--memory-limit)",
      ...(waits ? timesOf(ended) : { since: e.spillingSince, until: e.now }),
      address: `${link("memory")}?worker=${encodeURIComponent(name)}`,
      action: "See what fills the memory",
    },
  ];
}

function stragglers(e: Evidence, attempts: Attempt[], ended: Attempt[]): Finding[] {
  const times = new Map<string, number[]>();
  for (const a of attempts) {
    const list = times.get(a.op);
    if (list) list.push(a.run);
    else times.set(a.op, [a.run]);
  }
  const medians = new Map<string, number>();
  for (const [op, list] of times) {
    list.sort((a, b) => a - b);
    if (list.length >= 3) medians.set(op, list[list.length >> 1] ?? 0);
  }
  const long = (op: string, ms: number, factor: number) => {
    const median = medians.get(op);
    return median !== undefined && ms > Math.max(2000, factor * median);
  };
  const idle = e.idleSlots > 0 ? `, and ${plural(e.idleSlots, "slot")} idle` : "";
  const found = [
    ...e.running
      .filter((r) => long(r.op, r.ms, 3))
      .map((r) => ({
        ...r,
        has: "has run for",
        tail: idle,
        since: e.now - r.ms,
        until: undefined,
      })),
    ...ended
      .filter((a) => long(a.op, a.run, 5))
      .map((a) => ({
        ...{ ...a, ms: a.run, has: "ran for", tail: "" },
        ...{ since: a.start, until: a.start + a.run },
      })),
  ].sort((a, b) => b.ms - a.ms);
  return found.slice(0, named).map((t) => ({
    id: `straggler-${t.task}`,
    subject: `Straggler: task ${t.key || t.task}`,
    text: `${t.has} ${duration(t.ms)} on worker ${t.worker}; the median of ${t.op} is ${duration(medians.get(t.op) ?? 0)}${t.tail}`,
    remedy: `Look at its input and its output: it may have more to do than others, and is then better split or submitted first. If each task of ${t.worker} is slow, look at that worker`,
    since: t.since,
    until: t.until,
    address: link("tasks", t.task),
    action: "Look at the task",
  }));
}

// diagnose gives the causes that the evidence shows.
export function diagnose(e: Evidence): Finding[] {
  const attempts = attemptsIn(e.batch, e.workers, e.origin);
  const ended = attempts.filter((a) => a.end > e.now - recent);
  return [...stragglers(e, attempts, ended), ...transfers(e, ended), ...spilling(e, ended)];
}
