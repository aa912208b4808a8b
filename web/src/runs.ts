// The attempts of tasks that the page knows, in columns, and by lane: one lane is one slot of one
// worker.

import { get } from "./api";

export interface RunBatch {
  // Of an older page: the number before which there is more.
  before?: number;
  op?: string[];
  columns?: string[];
  workers?: Record<string, string>;
  rows?: (number | string)[][];
}

export interface Lane {
  worker: number;
  slot: number;
  // The indices of its runs, by their starts.
  runs: number[];
  // Rises when they change in another way than by more at the end.
  sorts: number;
}

const defaultColumns =
  "number task_id op_index worker_id slot start_ms run_ms fetch_ms wait_ms deserialize_ms publish_ms output_bytes input_bytes state key".split(
    " ",
  );

// The number of TASK_STATE_SUCCEEDED.
const succeeded = 5;

// The largest number of runs that the page keeps, and the number for which it has room at first.
const kept = 300_000;
const room = 4096;

export const phases = ["fetch", "spill", "wait", "deserialize", "publish"] as const;
export type Phase = (typeof phases)[number];

const figures = [
  "number",
  "start_ms",
  "run_ms",
  "fetch_ms",
  "spill_ms",
  "wait_ms",
  "deserialize_ms",
  "publish_ms",
  "output_bytes",
  "input_bytes",
  "state",
] as const;
type Figure = (typeof figures)[number];

class Runs {
  size = 0;
  // The number of the newest run.
  last = 0;
  // The number of the oldest run; no older ones are kept by the scheduler if `complete`.
  oldest = Number.POSITIVE_INFINITY;
  complete = false;
  // Times are in milliseconds since this moment, which is in milliseconds since 1970.
  origin = 0;
  ops: string[] = [];
  lanes: Lane[] = [];
  // Columns have room for more than size runs.
  opOf = new Int32Array(room);
  laneOf = new Int32Array(room);
  // The numbers of the tasks, as text: a script cannot hold all of them as numbers.
  tasks: string[] = [];
  keys: string[] = [];
  // Rises with each change.
  version = 0;

  private data = new Map<Figure, Float64Array>(figures.map((f) => [f, new Float64Array(room)]));
  // The begin of the first run and the end of the last one.
  private covered: [number, number] = [Number.POSITIVE_INFINITY, 0];
  private columns = defaultColumns;
  private opIndex = new Map<string, number>();
  private laneIndex = new Map<string, number>();
  private listeners = new Set<() => void>();
  // The fetch in progress. It gives whether the scheduler has answered.
  private loading: Promise<boolean> | null = null;
  // The numbers of the runs that the page knows.
  private known = new Set<number>();
  // How often the oldest runs were dropped: then no older ones are wanted.
  private dropped = 0;
  // The scheduler does not keep the runs up to this number any more.
  private gone = 0;

  of(figure: Figure): Float64Array {
    return this.data.get(figure) as Float64Array;
  }

  begin(origin: number): void {
    this.origin = origin;
  }

  follow(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  }

  clear(): void {
    this.size = 0;
    this.known.clear();
    this.gone = 0;
    this.last = 0;
    this.oldest = Number.POSITIVE_INFINITY;
    this.complete = false;
    this.lanes = [];
    this.covered = [Number.POSITIVE_INFINITY, 0];
    this.laneIndex.clear();
    this.tasks.length = 0;
    this.keys.length = 0;
    this.version++;
  }

  // op gives the index of an op, by which it has its colour.
  op(name: string): number {
    let index = this.opIndex.get(name);
    if (index === undefined) {
      index = this.ops.length;
      this.ops.push(name);
      this.opIndex.set(name, index);
    }
    return index;
  }

  add(batch: RunBatch): void {
    if (batch.columns) this.columns = batch.columns;
    const names = batch.op ?? [];
    const ops = names.map((name) => this.op(name));
    const at = (name: string) => this.columns.indexOf(name);
    this.reserve(this.size + (batch.rows?.length ?? 0));
    const places = figures.map((f) => [this.of(f), at(f)] as const);
    const [op, worker, slot, key] = [at("op_index"), at("worker_id"), at("slot"), at("key")];
    const [number, start, task] = [at("number"), at("start_ms"), at("task_id")];
    const [deserialize, state] = [at("deserialize_ms"), at("state")];
    // The lanes to which an earlier run came, with the number of runs that they had before.
    const disordered = new Map<Lane, number>();
    const sizes = this.lanes.map((lane) => lane.runs.length);
    for (const row of batch.rows ?? []) {
      const n = Number(row[number]);
      if (this.known.has(n)) continue;
      this.known.add(n);
      const index = this.size++;
      for (const [column, place] of places) column[index] = place < 0 ? 0 : Number(row[place] ?? 0);
      // The slot is taken from the begin of the deserialisation, before the function starts.
      const begun = Number(row[start]) - Number(row[deserialize] ?? 0);
      this.of("start_ms")[index] = begun;
      this.of("state")[index] = Number(row[state]) === succeeded ? 0 : 1;
      this.opOf[index] = ops[Number(row[op])] ?? this.op("?");
      this.tasks.push(String(row[task] ?? ""));
      this.keys.push(key < 0 ? "" : String(row[key] ?? ""));
      const lane = this.lane(Number(row[worker]), Number(row[slot] ?? 0));
      const place = this.lanes[lane] as Lane;
      const before = place.runs[place.runs.length - 1];
      if (before !== undefined && (this.of("start_ms")[before] ?? 0) > begun) {
        disordered.set(place, sizes[lane] ?? 0);
      }
      place.runs.push(index);
      this.laneOf[index] = lane;
      this.last = Math.max(this.last, n);
      this.oldest = Math.min(this.oldest, n);
      this.cover(index);
    }
    const starts = this.of("start_ms");
    for (const [lane, old] of disordered) {
      order(lane.runs, old, starts);
      lane.sorts++;
    }
    if (this.size > kept) this.shrink();
    this.changed();
  }

  // older fetches runs before those that the page knows, and says whether the scheduler has
  // answered.
  older(): Promise<boolean> {
    if (this.complete || this.size >= kept) return Promise.resolve(true);
    this.loading ??= this.loadOlder().finally(() => {
      this.loading = null;
    });
    return this.loading;
  }

  // all fetches all kept runs, up to a request that the scheduler does not answer.
  async all(): Promise<void> {
    let answered = true;
    while (answered && !this.complete && this.size < kept) answered = await this.older();
  }

  // missing gives the runs that are kept and not known between those of a time, as their number and
  // the newest of them. The scheduler sends a sample of the runs that end in a short time: the
  // first one, the last one, and some between them. They fit if the page may keep all of them.
  missing(from: number, to: number): { count: number; newest: number; fit: boolean } {
    const [numbers, starts, times] = [this.of("number"), this.of("start_ms"), this.of("run_ms")];
    const [des, pub] = [this.of("deserialize_ms"), this.of("publish_ms")];
    let [low, high] = [Number.POSITIVE_INFINITY, 0];
    for (let i = 0; i < this.size; i++) {
      const start = starts[i] as number;
      if (start > to) continue;
      if (start + (des[i] as number) + (times[i] as number) + (pub[i] as number) < from) continue;
      const n = numbers[i] as number;
      if (n < low) low = n;
      if (n > high) high = n;
    }
    low = Math.max(low, this.gone + 1);
    let count = Math.max(high - low + 1, 0);
    for (let i = 0; i < this.size; i++) {
      const n = numbers[i] as number;
      if (n >= low && n <= high) count--;
    }
    let newest = count > 0 ? high : 0;
    while (this.known.has(newest)) newest--;
    return { count, newest, fit: count <= kept - this.size };
  }

  // fill fetches a page of missing runs, from the newest of them on; 0: none is missing.
  fill(newest: number): Promise<unknown> {
    if (newest === 0 || this.loading || this.size >= kept) return Promise.resolve();
    this.loading = this.load(newest + 1)
      .then((batch) => {
        if (batch && !this.known.has(newest)) this.gone = newest;
        return batch !== null;
      })
      .finally(() => {
        this.loading = null;
      });
    return this.loading;
  }

  private async loadOlder(): Promise<boolean> {
    const { dropped } = this;
    const batch = await this.load(Number.isFinite(this.oldest) ? this.oldest : 0);
    if (batch && dropped === this.dropped) this.complete = batch.before === undefined;
    return batch !== null;
  }

  // load fetches a page of runs before a number; 0: the newest. It gives null if the scheduler
  // does not answer.
  private async load(before: number): Promise<RunBatch | null> {
    try {
      const from = before > 0 ? `before=${before}&` : "";
      const batch = await get<RunBatch>(`api/runs?${from}limit=5000`);
      this.add(batch);
      return batch;
    } catch {
      return null;
    }
  }

  // span is the time that the runs cover, in milliseconds since the origin.
  span(): [number, number] {
    return this.size > 0 ? this.covered : [0, 0];
  }

  private cover(i: number): void {
    const [first, end] = this.covered;
    this.covered = [Math.min(first, this.of("start_ms")[i] ?? 0), Math.max(end, this.end(i))];
  }

  end(i: number): number {
    const of = (f: Figure) => this.of(f)[i] ?? 0;
    return of("start_ms") + of("deserialize_ms") + of("run_ms") + of("publish_ms");
  }

  private lane(worker: number, slot: number): number {
    const name = `${worker}/${slot}`;
    let index = this.laneIndex.get(name);
    if (index === undefined) {
      index = this.lanes.length;
      this.lanes.push({ worker, slot, runs: [], sorts: 0 });
      this.laneIndex.set(name, index);
    }
    return index;
  }

  // reserve makes room for a number of runs.
  private reserve(size: number): void {
    if (size <= this.opOf.length) return;
    const capacity = Math.max(size, 2 * this.opOf.length);
    for (const [figure, column] of this.data) {
      const next = new Float64Array(capacity);
      next.set(column);
      this.data.set(figure, next);
    }
    const [ops, lanes] = [new Int32Array(capacity), new Int32Array(capacity)];
    ops.set(this.opOf);
    lanes.set(this.laneOf);
    [this.opOf, this.laneOf] = [ops, lanes];
  }

  // shrink drops the oldest ones, about a tenth: a sample tells up to which number. It runs while
  // more come, so it sorts and copies no more than it must.
  private shrink(): void {
    const numbers = this.of("number");
    const sample = numbers.subarray(0, this.size).filter((_, i) => i % 64 === 0);
    const limit = sample.sort()[Math.floor(sample.length / 10)] ?? 0;
    // The new index of each run; -1: it is dropped.
    const to = new Int32Array(this.size);
    let size = 0;
    for (let i = 0; i < this.size; i++) {
      const n = numbers[i] as number;
      if (n < limit) this.known.delete(n);
      to[i] = n < limit ? -1 : size++;
    }
    const compact = <T>(column: { [index: number]: T }) => {
      for (let i = 0; i < this.size; i++) {
        const place = to[i] as number;
        if (place >= 0) column[place] = column[i] as T;
      }
    };
    for (const column of this.data.values()) compact(column);
    for (const column of [this.opOf, this.laneOf]) compact(column);
    for (const column of [this.keys, this.tasks]) {
      compact(column);
      column.length = size;
    }
    for (const lane of this.lanes) {
      lane.runs = lane.runs.map((i) => to[i] as number).filter((i) => i >= 0);
      lane.sorts++;
    }
    this.size = size;
    this.oldest = limit;
    this.complete = true;
    this.dropped++;
    const starts = this.of("start_ms");
    const first = this.lanes.map((lane) => starts[lane.runs[0] ?? -1] ?? Number.POSITIVE_INFINITY);
    this.covered[0] = Math.min(...first);
  }

  private changed(): void {
    this.version++;
    for (const listener of this.listeners) listener();
  }
}

// order puts a list of runs into the order of their starts. All but those from a place on are in
// order, and most often they are few, or later than nearly all others.
function order(list: number[], from: number, starts: Float64Array): void {
  const start = (i: number) => starts[i] as number;
  const later = list.splice(from).sort((a, b) => start(a) - start(b));
  let [i, j] = [list.length - 1, later.length - 1];
  list.length += later.length;
  for (let place = list.length - 1; j >= 0; place--) {
    const [old, next] = [list[i] as number, later[j] as number];
    if (i >= 0 && start(old) > start(next)) {
      list[place] = old;
      i--;
    } else {
      list[place] = next;
      j--;
    }
  }
}

export const runs = new Runs();

// Attempt is one finished attempt of a task.
export interface Attempt extends Record<Exclude<Figure, "state">, number> {
  failed: boolean;
  op: string;
  worker: string;
  key: string;
}

// attemptsOf asks for the attempts of a task, the newest first.
export async function attemptsOf(task: string): Promise<Attempt[]> {
  const batch = await get<RunBatch>(`api/runs?task=${task}`);
  const columns = batch.columns ?? defaultColumns;
  const at = (name: string) => columns.indexOf(name);
  return (batch.rows ?? []).map((row) => {
    const values = figures.map((f) => [f, Number(row[at(f)] ?? 0)] as const);
    const attempt = Object.fromEntries(values) as Record<Figure, number>;
    return {
      ...attempt,
      failed: attempt.state !== succeeded,
      op: batch.op?.[Number(row[at("op_index")])] ?? "",
      worker: batch.workers?.[String(row[at("worker_id")])] ?? "",
      key: String(row[at("key")] ?? ""),
    };
  });
}
