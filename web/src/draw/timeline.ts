// The task stream: one row for each slot, and the runs of the slot along the time.

import { failureColor, opColor, phaseColors, token } from "../colors";
import { clock, fitted } from "../format";
import { type Lane, runs } from "../runs";
import {
  type Columns,
  changed,
  draw,
  Packed,
  type Paints,
  parts,
  stride,
  widePixels,
} from "./strips";

export interface Row {
  // The head of the rows of a worker; empty in its further rows.
  worker: string;
  slot: number;
  // The index of the lane in runs.lanes; -1: it has run nothing yet.
  lane: number;
  // The worker is lost.
  gone: boolean;
}

export interface Window {
  from: number;
  to: number;
}

// Summary of the part of the history that is in view, in milliseconds of slots.
export interface Shares {
  ops: Map<number, { count: number; ms: number; failed: number }>;
  phases: { fetch: number; spill: number; wait: number; deserialize: number; publish: number };
  run: number;
  idle: number;
}

const gutter = 132;
const axis = 26;
// The shortest window, in milliseconds.
const shortest = 0.05;

// Cover is what is drawn at one scale, with a margin on both sides, so that panning moves pictures.
interface Cover {
  from: number;
  scale: number; // pixels of the screen for a millisecond
  columns: number;
  op: number;
  // By lane.
  strips: Map<Lane, Picture>;
}

// Part is the part of a cover that is in view: its columns, the time at its left, and the pixels of
// the page for a millisecond.
interface Part {
  cover: Cover;
  offset: number;
  columns: number;
  from: number;
  scale: number;
}

// Picture is the strip of a lane. It is out of date when the lane has other runs.
interface Picture {
  canvas: HTMLCanvasElement;
  waits: boolean;
  wide: number[];
  size: number;
  sorts: number;
}

const [DESERIALIZE, PUBLISH] = [parts.indexOf("deserialize"), parts.indexOf("publish")];

interface Colors {
  panel: string;
  line: string;
  track: string;
  text: string;
  soft: string;
  faint: string;
}

export class Timeline {
  view: Window = { from: 0, to: 60_000 };
  rows: Row[] = [];
  scroll = 0;
  // Only runs of this op are drawn in full colour; -1: all.
  op = -1;
  hovered = -1;
  private width = 1;
  private height = 1;
  private colors: Colors | null = null;
  private packed = new WeakMap<Lane, Packed>();
  private cover: Cover | null = null;
  // Pictures may be stretched.
  private rough = false;

  // recolor takes the colours of the page again.
  recolor(): void {
    this.colors = null;
    this.cover = null;
  }

  // of gives the attempts of a lane as they are now.
  private of(lane: Lane): Packed {
    let packed = this.packed.get(lane);
    if (!packed) {
      packed = new Packed();
      this.packed.set(lane, packed);
    }
    packed.update(lane, columns());
    return packed;
  }

  get rowHeight(): number {
    const free = (this.height - axis) / Math.max(this.rows.length, 1);
    return Math.max(16, Math.min(56, Math.floor(free)));
  }

  x(ms: number): number {
    const { from, to } = this.view;
    return gutter + ((ms - from) * (this.width - gutter)) / (to - from);
  }

  ms(x: number): number {
    const { from, to } = this.view;
    return from + ((x - gutter) * (to - from)) / Math.max(this.width - gutter, 1);
  }

  zoom(factor: number, x = (this.width + gutter) / 2): void {
    const at = this.ms(Math.max(x, gutter));
    const { from, to } = this.view;
    if ((to - from) * factor < shortest) return;
    this.view = { from: at - (at - from) * factor, to: at + (to - at) * factor };
    this.rough = true;
  }

  // settle ends a zoom: while it goes on, pictures are stretched, since drawing all of them for each
  // step would take too long.
  settle(): void {
    this.rough = false;
  }

  pan(pixels: number): void {
    const { from, to } = this.view;
    const ms = (pixels * (to - from)) / Math.max(this.width - gutter, 1);
    this.view = { from: from + ms, to: to + ms };
  }

  scrollBy(pixels: number): void {
    const most = Math.max(0, this.rows.length * this.rowHeight - (this.height - axis));
    this.scroll = Math.min(most, Math.max(0, this.scroll + pixels));
  }

  // follow moves the end of the view to a moment, by whole pixels, so that nothing flickers. It
  // reports whether the view has moved.
  follow(now: number): boolean {
    const width = this.view.to - this.view.from;
    const pixel = width / Math.max(this.width - gutter, 1);
    const to = Math.floor(now / pixel) * pixel;
    if (to === this.view.to) return false;
    this.view = { from: to - width, to };
    return true;
  }

  // at finds the run at a place; -1: there is none.
  at(x: number, y: number): number {
    if (x < gutter || y < axis) return -1;
    const row = this.rows[Math.floor((y - axis + this.scroll) / this.rowHeight)];
    const lane = row && runs.lanes[row.lane];
    if (!lane) return -1;
    const ms = this.ms(x);
    const slack = ((this.view.to - this.view.from) / this.width) * 2;
    const p = this.of(lane);
    for (let i = p.first(ms - slack); i < p.size; i++) {
      if ((p.starts[i] as number) - p.before(i) > ms + slack) break;
      if (p.end(i) >= ms - slack) return lane.runs[i] as number;
    }
    return -1;
  }

  paint(c: CanvasRenderingContext2D, width: number, height: number): void {
    this.width = width;
    this.height = height;
    this.colors ??= {
      panel: token("panel"),
      line: token("line-soft"),
      track: token("track"),
      text: token("text"),
      soft: token("soft"),
      faint: token("faint"),
    };
    const colors = this.colors;
    c.fillStyle = colors.panel;
    c.fillRect(0, 0, width, height);
    this.paintGrid(c, colors);
    const step = this.rowHeight;
    const begin = Math.floor(this.scroll / step);
    const end = Math.min(this.rows.length, Math.ceil((this.scroll + height - axis) / step));
    const part = this.part();
    for (const inner of [true, false]) {
      c.save();
      c.beginPath();
      c.rect(inner ? gutter : 0, axis, width, height - axis);
      c.clip();
      c.imageSmoothingEnabled = false;
      for (let i = begin; i < end; i++) {
        const row = this.rows[i] as Row;
        const y = axis + i * step - this.scroll;
        if (inner) this.paintRuns(c, row, y, step, part, colors);
        else this.paintHead(c, row, y, step, this.rows[i - 1]?.worker !== row.worker, colors);
      }
      c.restore();
    }
  }

  // part gives what is in view. The present cover stays if it has the scale and the time.
  private part(): Part {
    const ratio = window.devicePixelRatio || 1;
    const columns = Math.ceil(Math.max(this.width - gutter, 1) * ratio);
    const { from, to } = this.view;
    const scale = columns / (to - from);
    const old = this.cover;
    if (old && old.op === this.op) {
      const exact = Math.abs(old.scale / scale - 1) < 1e-9;
      const begin = (from - old.from) * old.scale;
      const end = (to - old.from) * old.scale;
      // The view begins at a whole column, so that nothing flickers.
      const offset = Math.round(begin);
      if (exact && offset >= 0 && offset + columns <= old.columns)
        return {
          ...{ cover: old, offset, columns, scale: scale / ratio },
          from: old.from + offset / old.scale,
        };
      const near = Math.abs(Math.log2(old.scale / scale)) < 1;
      if (this.rough && near && begin >= 0 && end <= old.columns)
        return {
          ...{ cover: old, offset: begin, columns: end - begin, scale: scale / ratio, from },
        };
    }
    const margin = Math.ceil(columns / 2);
    const cover: Cover = {
      from: from - margin / scale,
      ...{ scale, columns: columns + 2 * margin, op: this.op, strips: new Map() },
    };
    this.cover = cover;
    return { cover, offset: margin, columns, from, scale: scale / ratio };
  }

  // picture gives the strip of a lane, and draws it if the lane has other runs now.
  private picture(lane: Lane, cover: Cover): Picture {
    const old = cover.strips.get(lane);
    if (old && old.size === lane.runs.length && old.sorts === lane.sorts) return old;
    const packed = this.of(lane);
    if (old && old.sorts === lane.sorts) {
      this.extend(old, packed, cover);
      return old;
    }
    const strip = draw(packed, cover, paints(), cover.op);
    const canvas = old?.canvas ?? document.createElement("canvas");
    canvas.width = cover.columns;
    canvas.height = 2;
    put(canvas, strip.pixels, 0);
    const { waits, wide } = strip;
    const picture = { canvas, waits, wide, size: lane.runs.length, sorts: lane.sorts };
    cover.strips.set(lane, picture);
    return picture;
  }

  // extend draws what has come to the end of a lane, in the columns where it is.
  private extend(picture: Picture, packed: Packed, cover: Cover): void {
    const [begin, end] = changed(packed, picture.size, cover);
    picture.size = packed.size;
    if (end <= begin) return;
    const view = { from: cover.from + begin / cover.scale, scale: cover.scale };
    const strip = draw(packed, { ...view, columns: end - begin }, paints(), cover.op);
    put(picture.canvas, strip.pixels, begin);
    picture.waits ||= strip.waits;
    const first = packed.first(view.from);
    picture.wide = [...picture.wide.filter((i) => i < first), ...strip.wide];
  }

  // shares sums up what the slots in view did. It gives nothing after each row, so that its caller
  // can go on in the next frame; it goes on with the view of its begin.
  *shares(): Generator<void, Shares> {
    const result: Shares = {
      ops: new Map(),
      phases: { fetch: 0, spill: 0, wait: 0, deserialize: 0, publish: 0 },
      run: 0,
      idle: 0,
    };
    const { from, to } = this.view;
    const [left, right] = [Math.max(from, 0), to];
    const overlap = (a: number, b: number) => Math.max(0, Math.min(b, right) - Math.max(a, left));
    // What came before a start, the last one first.
    const waits = (["wait", "spill", "fetch"] as const).map((name) => parts.indexOf(name));
    const [sums, ms] = [new Float64Array(stride), new Float64Array(runs.ops.length)];
    const [counts, failed] = [new Int32Array(runs.ops.length), new Int32Array(runs.ops.length)];
    for (const row of this.rows) {
      const lane = runs.lanes[row.lane];
      const p = lane && this.of(lane);
      let busy = 0;
      let last = left;
      for (let i = p ? p.first(left) : 0; p && i < p.size; i++) {
        const start = p.starts[i] as number;
        if (start > right) break;
        const at = i * stride;
        const ended = p.end(i);
        const begun = start + (p.parts[at + DESERIALIZE] as number);
        const done = ended - (p.parts[at + PUBLISH] as number);
        const run = overlap(begun, done);
        result.run += run;
        sums[DESERIALIZE] = (sums[DESERIALIZE] as number) + overlap(start, begun);
        sums[PUBLISH] = (sums[PUBLISH] as number) + overlap(done, ended);
        busy += overlap(start, ended);
        // Before the start only what no earlier run covers counts: the slot waited for it.
        let gap = overlap(Math.max(last, start - p.before(i)), start);
        for (const wait of waits) {
          if (gap <= 0) break;
          const part = Math.min(gap, p.parts[at + wait] as number);
          sums[wait] = (sums[wait] as number) + part;
          gap -= part;
          busy += part;
        }
        last = Math.max(last, ended);
        const kind = p.kinds[i] as number;
        const op = kind >> 1;
        counts[op] = (counts[op] as number) + 1;
        ms[op] = (ms[op] as number) + run;
        failed[op] = (failed[op] as number) + (kind & 1);
      }
      result.idle += Math.max(0, right - left - busy);
      yield;
    }
    for (const [op, count] of counts.entries())
      if (count > 0) result.ops.set(op, { count, ms: ms[op] ?? 0, failed: failed[op] ?? 0 });
    for (const [i, name] of parts.entries()) if (name !== "run") result.phases[name] = sums[i] ?? 0;
    return result;
  }

  private paintGrid(c: CanvasRenderingContext2D, colors: Colors): void {
    const { from, to } = this.view;
    const step = niceStep(((to - from) * 110) / Math.max(this.width - gutter, 1));
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillStyle = colors.faint;
    c.strokeStyle = colors.line;
    c.lineWidth = 1;
    c.beginPath();
    const offset = runs.origin;
    for (let t = Math.ceil((from + offset) / step) * step; t <= to + offset; t += step) {
      const x = Math.round(this.x(t - offset)) + 0.5;
      if (x < gutter) continue;
      c.moveTo(x, axis);
      c.lineTo(x, this.height);
      const label =
        step >= 1000 ? clock(t) : step >= 1 ? clock(t, true) : `${clock(t, true)}.${micro(t)}`;
      if (x + 4 + c.measureText(label).width < this.width) c.fillText(label, x + 4, axis / 2);
    }
    c.moveTo(0, axis - 0.5);
    c.lineTo(this.width, axis - 0.5);
    c.stroke();
  }

  private paintHead(
    c: CanvasRenderingContext2D,
    row: Row,
    y: number,
    step: number,
    head: boolean,
    colors: Colors,
  ): void {
    if (head && y > axis) {
      c.fillStyle = colors.track;
      c.fillRect(0, y, this.width, 1);
    }
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    if (head) {
      c.fillStyle = colors.text;
      const room = gutter - 38;
      c.fillText(
        fitted(row.worker, (text) => c.measureText(text).width <= room),
        12,
        y + step / 2,
      );
    }
    c.fillStyle = colors.faint;
    c.textAlign = "right";
    c.fillText(String(row.slot), gutter - 10, y + step / 2);
    c.textAlign = "left";
  }

  private paintRuns(
    c: CanvasRenderingContext2D,
    row: Row,
    top: number,
    step: number,
    part: Part,
    colors: Colors,
  ): void {
    const lane = runs.lanes[row.lane];
    if (!lane || lane.runs.length === 0) return;
    const p = this.of(lane);
    const [y, h] = [top + 2, step - 4];
    const { from, scale } = part;
    const at = (ms: number) => gutter + (ms - from) * scale;
    // What nothing covers is idle.
    const left = Math.max(gutter, at(p.starts[0] as number));
    const end = row.gone ? at(p.end(p.size - 1)) : this.width;
    c.globalAlpha = 0.45;
    c.fillStyle = colors.track;
    c.fillRect(left, y, Math.max(0, end - left), h);
    c.globalAlpha = 1;
    const picture = this.picture(lane, part.cover);
    const { offset, columns } = part;
    const shown = this.width - gutter;
    if (picture.waits)
      c.drawImage(picture.canvas, offset, 1, columns, 1, gutter, y + h / 4, shown, h / 2);
    c.drawImage(picture.canvas, offset, 0, columns, 1, gutter, y, shown, h);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    for (const i of picture.wide) {
      const x0 = at(p.starts[i] as number);
      const x1 = at(p.end(i));
      if (x1 < gutter || x0 > this.width) continue;
      const kind = p.kinds[i] as number;
      const op = kind >> 1;
      const dim = this.op >= 0 && op !== this.op;
      c.globalAlpha = dim ? 0.15 : 1;
      // A gap of half a pixel keeps neighbours apart.
      const right = x1 - 0.75;
      c.fillStyle = kind & 1 ? failureColor : opColor(op);
      c.fillRect(x0, y, right - x0, h);
      const deserialize = (p.parts[i * stride + DESERIALIZE] as number) * scale;
      if (deserialize >= 0.75) {
        c.fillStyle = phaseColors.deserialize;
        c.fillRect(x0, y, deserialize, h);
      }
      const publish = (p.parts[i * stride + PUBLISH] as number) * scale;
      if (publish >= 0.75) {
        c.fillStyle = phaseColors.publish;
        c.fillRect(right - publish, y, publish, h);
      }
      const room = Math.min(right, this.width) - Math.max(x0, gutter) - deserialize - 10;
      if (room > 30 && h >= 11 && !dim) {
        const letters = Math.floor(room / 6);
        const name = runs.ops[op] ?? "";
        c.fillStyle = "#fff";
        c.fillText(
          name.length > letters ? `${name.slice(0, letters - 1)}…` : name,
          Math.max(x0 + deserialize, gutter) + 5,
          y + h / 2 + 0.5,
        );
      }
    }
    c.globalAlpha = 1;
    if (runs.laneOf[this.hovered] !== row.lane) return;
    const x0 = at(runs.of("start_ms")[this.hovered] ?? 0);
    c.strokeStyle = colors.text;
    c.lineWidth = 1.5;
    const width = Math.max(at(runs.end(this.hovered)) - x0, widePixels);
    c.strokeRect(x0 + 0.75, y + 0.75, width - 2.25, h - 1.5);
  }
}

// put writes the two rows of pixels of a strip.
function put(canvas: HTMLCanvasElement, pixels: Uint32Array, x: number): void {
  const bytes = new Uint8ClampedArray(pixels.buffer as ArrayBuffer);
  canvas.getContext("2d")?.putImageData(new ImageData(bytes, pixels.length / 2, 2), x, 0);
}

// columns gives those of all attempts.
function columns(): Columns {
  return {
    ...{ start: runs.of("start_ms"), fetch: runs.of("fetch_ms"), spill: runs.of("spill_ms") },
    ...{ wait: runs.of("wait_ms"), deserialize: runs.of("deserialize_ms") },
    ...{ run: runs.of("run_ms"), publish: runs.of("publish_ms") },
    ...{ op: runs.opOf, failed: runs.of("state") },
  };
}

// paints gives the colours of strips.
function paints(): Paints {
  const number = (color: string) => {
    const [r = 0, g = 0, b = 0] = [1, 3, 5].map((i) => Number.parseInt(color.slice(i, i + 2), 16));
    return (b << 16) | (g << 8) | r;
  };
  return {
    ops: runs.ops.map((_, i) => number(opColor(i))),
    failure: number(failureColor),
    parts: parts.map((name) => (name === "run" ? 0 : number(phaseColors[name]))),
  };
}

// niceStep rounds a time up to one that reads well on an axis.
function niceStep(ms: number): number {
  for (let unit = 0.001; unit < 1000; unit *= 10) {
    for (const n of [1, 2, 5]) if (n * unit >= ms) return n * unit;
  }
  for (const s of [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200]) {
    if (s * 1000 >= ms) return s * 1000;
  }
  return 86_400_000;
}

function micro(ms: number): string {
  return String(Math.round((ms - Math.floor(ms)) * 1000)).padStart(3, "0");
}
