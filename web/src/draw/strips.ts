// The attempts of a lane as a strip of pixels: what the task stream shows of attempts that are
// narrower than a few pixels. There may be hundreds of thousands, so nothing here makes an object
// for one of them.

import type { Lane } from "../runs";

// The parts of an attempt, in the order in which they lie in Packed.parts.
export const parts = ["fetch", "spill", "wait", "deserialize", "run", "publish"] as const;
export const stride = parts.length;
const [FETCH, SPILL, WAIT, DESERIALIZE, RUN, PUBLISH] = [0, 1, 2, 3, 4, 5] as const;

// Packed has what is drawn of the attempts of a lane, beside each other and by their starts.
export class Packed {
  size = 0;
  starts = new Float64Array(256);
  // Milliseconds of each part.
  parts = new Float32Array(256 * stride);
  // Twice the number of the op, and one more if the attempt failed.
  kinds = new Int32Array(256);
  private sorts = -1;

  // update takes what has come to the lane.
  update(lane: Lane, columns: Columns): void {
    if (this.sorts !== lane.sorts) {
      this.size = 0;
      this.sorts = lane.sorts;
    }
    const list = lane.runs;
    if (list.length > this.starts.length) this.grow(list.length);
    const all = [columns.fetch, columns.spill, columns.wait, columns.deserialize];
    all.push(columns.run, columns.publish);
    for (let i = this.size; i < list.length; i++) {
      const r = list[i] as number;
      this.starts[i] = columns.start[r] as number;
      this.kinds[i] = 2 * (columns.op[r] as number) + (columns.failed[r] as number);
      for (let p = 0; p < stride; p++)
        this.parts[i * stride + p] = (all[p] as Numbers)[r] as number;
    }
    this.size = list.length;
  }

  // end is the time at which an attempt ends.
  end(i: number): number {
    const at = i * stride;
    const p = this.parts;
    const deserialize = p[at + DESERIALIZE] as number;
    return (
      (this.starts[i] as number) +
      deserialize +
      (p[at + RUN] as number) +
      (p[at + PUBLISH] as number)
    );
  }

  // before is the time that an attempt waited before its start.
  before(i: number): number {
    const at = i * stride;
    const p = this.parts;
    return (p[at + FETCH] as number) + (p[at + SPILL] as number) + (p[at + WAIT] as number);
  }

  // first finds the first attempt that may reach beyond a time.
  first(ms: number): number {
    let low = 0;
    let high = this.size;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.starts[middle] as number) < ms) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  private grow(size: number): void {
    const capacity = Math.max(size, 2 * this.starts.length);
    const bigger = <T extends Float64Array | Float32Array | Int32Array>(next: T, old: T): T => {
      next.set(old);
      return next;
    };
    this.starts = bigger(new Float64Array(capacity), this.starts);
    this.parts = bigger(new Float32Array(capacity * stride), this.parts);
    this.kinds = bigger(new Int32Array(capacity), this.kinds);
  }
}

type Numbers = ArrayLike<number>;

// Columns are those of all attempts, by their index.
export interface Columns {
  start: Numbers;
  fetch: Numbers;
  spill: Numbers;
  wait: Numbers;
  deserialize: Numbers;
  run: Numbers;
  publish: Numbers;
  op: Numbers;
  failed: Numbers;
}

// Paints are colours as 0xBBGGRR.
export interface Paints {
  ops: number[];
  failure: number;
  // Of each part; that of `run` is not used.
  parts: number[];
}

// Attempts from this many pixels on are not in strips: they have edges and names.
export const widePixels = 4;
const dimmed = 1 << 24;

// Layer gathers parts of attempts by pixels. Each pixel gets the colour of the part that has most of
// it, and is the fainter the less of it is busy.
class Layer {
  private busy = new Float32Array(0);
  private most = new Float32Array(0);
  private paint = new Int32Array(0);
  private columns = 0;

  reset(columns: number): void {
    if (columns > this.busy.length) {
      this.busy = new Float32Array(columns);
      this.most = new Float32Array(columns);
      this.paint = new Int32Array(columns);
    } else {
      this.busy.fill(0, 0, columns);
      this.most.fill(0, 0, columns);
    }
    this.columns = columns;
  }

  add(x0: number, x1: number, paint: number): void {
    const first = x0 > 0 ? x0 | 0 : 0;
    if (x1 <= first + 1) {
      // Most attempts have a part of one pixel.
      if (x1 > first && first < this.columns) this.put(first, x1 - Math.max(x0, first), paint);
      return;
    }
    const last = Math.min(x1, this.columns);
    for (let x = first; x < last; x++) this.put(x, Math.min(x1, x + 1) - Math.max(x0, x), paint);
  }

  private put(x: number, part: number, paint: number): void {
    this.busy[x] = (this.busy[x] as number) + part;
    if (part >= (this.most[x] as number)) {
      this.most[x] = part;
      this.paint[x] = paint;
    }
  }

  // write writes the pixels, and reports whether there is anything.
  write(to: Uint32Array, at: number, full: number, faint: number): boolean {
    let any = false;
    for (let x = 0; x < this.columns; x++) {
      const busy = this.busy[x] as number;
      if (busy === 0) {
        to[at + x] = 0;
        continue;
      }
      any = true;
      const paint = this.paint[x] as number;
      const alpha = paint & dimmed ? faint : full * Math.min(1, 0.35 + 0.65 * busy);
      to[at + x] = (Math.round(255 * alpha) << 24) | (paint & 0xffffff);
    }
    return any;
  }
}

const [runs, waits] = [new Layer(), new Layer()];

// changed gives the columns of a view in which the attempts from one on are drawn, with what came
// before their starts.
export function changed(p: Packed, from: number, view: View): [number, number] {
  let [first, last] = [Number.POSITIVE_INFINITY, 0];
  for (let i = from; i < p.size; i++) {
    first = Math.min(first, (p.starts[i] as number) - p.before(i));
    last = Math.max(last, p.end(i));
  }
  const column = (ms: number) => Math.floor((ms - view.from) * view.scale);
  return [Math.max(0, column(first)), Math.min(view.columns, column(last) + 1)];
}

export interface View {
  from: number; // milliseconds
  scale: number; // pixels for a millisecond
  columns: number;
}

export interface Strip {
  // Two rows of pixels: what ran, and what came before a start.
  pixels: Uint32Array;
  waits: boolean;
  // The attempts of the lane that are wide.
  wide: number[];
}

// draw draws the attempts from a time on, at a number of pixels per millisecond. Only those of one op
// have their full colour; -1: all.
export function draw(p: Packed, view: View, paints: Paints, only: number): Strip {
  const { from, scale, columns } = view;
  runs.reset(columns);
  waits.reset(columns);
  const wide: number[] = [];
  const first = p.first(from);
  // The end of the attempt before, in pixels.
  let last = first > 0 ? (p.end(first - 1) - from) * scale : Number.NEGATIVE_INFINITY;
  const to = from + columns / scale;
  const { starts, parts: ms, kinds, size } = p;
  for (let i = first; i < size; i++) {
    const start = starts[i] as number;
    const at = i * stride;
    const before =
      (ms[at + FETCH] as number) + (ms[at + SPILL] as number) + (ms[at + WAIT] as number);
    if (start - before > to) break;
    const deserialize = (ms[at + DESERIALIZE] as number) * scale;
    const run = (ms[at + RUN] as number) * scale;
    const publish = (ms[at + PUBLISH] as number) * scale;
    const kind = kinds[i] as number;
    const dim = only >= 0 && kind >> 1 !== only ? dimmed : 0;
    const x0 = (start - from) * scale;
    const x1 = x0 + deserialize + run + publish;
    // What came before the start, where no earlier attempt has the place.
    let x = x0;
    for (let part = before > 0 ? WAIT : -1; part >= FETCH && x > last; part--) {
      const wait = (ms[at + part] as number) * scale;
      if (wait <= 0) continue;
      const left = Math.max(last, x - wait);
      waits.add(left, x, (paints.parts[part] as number) | dim);
      x = left;
    }
    last = Math.max(last, x1);
    if (x1 - x0 >= widePixels) {
      wide.push(i);
      continue;
    }
    const color = (kind & 1 ? paints.failure : (paints.ops[kind >> 1] ?? 0)) | dim;
    const begun = deserialize >= 0.75 ? x0 + deserialize : x0;
    const ended = publish >= 0.75 ? x1 - publish : x1;
    if (begun > x0) runs.add(x0, begun, (paints.parts[DESERIALIZE] as number) | dim);
    runs.add(begun, ended, color);
    if (ended < x1) runs.add(ended, x1, (paints.parts[PUBLISH] as number) | dim);
  }
  const pixels = new Uint32Array(2 * columns);
  runs.write(pixels, 0, 1, 0.15);
  return { pixels, waits: waits.write(pixels, columns, 0.85, 0.12), wide };
}
