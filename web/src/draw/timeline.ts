// The task stream: one row for each slot, and the runs of the slot along the time.

import { failureColor, opColor, phaseColors, token } from "../colors";
import { clock } from "../format";
import { runs } from "../runs";

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

  // recolor takes the colours of the page again.
  recolor(): void {
    this.colors = null;
  }

  get rowHeight(): number {
    const free = (this.height - axis) / Math.max(this.rows.length, 1);
    return Math.max(16, Math.min(40, Math.floor(free)));
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
    let i = first(lane.runs, ms - slack);
    for (; i < lane.runs.length; i++) {
      const run = lane.runs[i] as number;
      const start = runs.of("start_ms")[run] ?? 0;
      if (start - before(run) > ms + slack) break;
      if (runs.end(run) >= ms - slack) return run;
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
    c.save();
    c.beginPath();
    c.rect(0, axis, width, height - axis);
    c.clip();
    const step = this.rowHeight;
    const begin = Math.floor(this.scroll / step);
    const end = Math.min(this.rows.length, Math.ceil((this.scroll + height - axis) / step));
    for (let i = begin; i < end; i++) {
      const row = this.rows[i] as Row;
      const y = axis + i * step - this.scroll;
      const head = this.rows[i - 1]?.worker !== row.worker;
      this.paintRow(c, row, y, step, head, colors);
    }
    c.restore();
  }

  // shares sums up what the slots in view did.
  shares(): Shares {
    const result: Shares = {
      ops: new Map(),
      phases: { fetch: 0, spill: 0, wait: 0, deserialize: 0, publish: 0 },
      run: 0,
      idle: 0,
    };
    const { from, to } = this.view;
    const [left, right] = [Math.max(from, 0), to];
    const overlap = (a: number, b: number) => Math.max(0, Math.min(b, right) - Math.max(a, left));
    const of = runs.of.bind(runs);
    const [starts, times, failures] = [of("start_ms"), of("run_ms"), of("state")];
    const [des, pub] = [of("deserialize_ms"), of("publish_ms")];
    const [fetches, spills, waits] = [of("fetch_ms"), of("spill_ms"), of("wait_ms")];
    for (const row of this.rows) {
      const lane = runs.lanes[row.lane];
      let busy = 0;
      let last = left;
      for (let i = lane ? first(lane.runs, left) : 0; lane && i < lane.runs.length; i++) {
        const r = lane.runs[i] as number;
        const start = starts[r] ?? 0;
        if (start > right) break;
        const d = des[r] ?? 0;
        const run = overlap(start + d, start + d + (times[r] ?? 0));
        const ended = start + d + (times[r] ?? 0) + (pub[r] ?? 0);
        result.run += run;
        result.phases.deserialize += overlap(start, start + d);
        result.phases.publish += overlap(ended - (pub[r] ?? 0), ended);
        busy += overlap(start, ended);
        // Before the start only what no earlier run covers counts: the slot waited for it.
        let gap = overlap(Math.max(last, start - before(r)), start);
        for (const [phase, ms] of [
          ["wait", waits[r] ?? 0],
          ["spill", spills[r] ?? 0],
          ["fetch", fetches[r] ?? 0],
        ] as const) {
          const part = Math.min(gap, ms);
          result.phases[phase] += part;
          gap -= part;
          busy += part;
        }
        last = Math.max(last, ended);
        const op = runs.opOf[r] ?? 0;
        const sum = result.ops.get(op) ?? { count: 0, ms: 0, failed: 0 };
        sum.count++;
        sum.ms += run;
        if (failures[r]) sum.failed++;
        result.ops.set(op, sum);
      }
      result.idle += Math.max(0, right - left - busy);
    }
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

  private paintRow(
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
    const lane = runs.lanes[row.lane];
    if (lane) {
      // What nothing covers is idle.
      const left = Math.max(gutter, this.x(runs.of("start_ms")[lane.runs[0] ?? -1] ?? 0));
      c.globalAlpha = 0.45;
      c.fillStyle = colors.track;
      const last = lane.runs[lane.runs.length - 1] ?? -1;
      const right = row.gone ? this.x(runs.end(last)) : this.width;
      c.fillRect(left, y + 2, Math.max(0, right - left), step - 4);
      c.globalAlpha = 1;
      c.save();
      c.beginPath();
      c.rect(gutter, y, this.width - gutter, step);
      c.clip();
      this.paintRuns(c, lane.runs, y + 2, step - 4);
      c.restore();
    }
    c.font = "12px system-ui, sans-serif";
    c.textBaseline = "middle";
    if (head) {
      c.fillStyle = colors.text;
      c.fillText(
        row.worker.length > 15 ? `${row.worker.slice(0, 14)}…` : row.worker,
        12,
        y + step / 2,
      );
    }
    c.fillStyle = colors.faint;
    c.textAlign = "right";
    c.fillText(String(row.slot), gutter - 10, y + step / 2);
    c.textAlign = "left";
  }

  private paintRuns(c: CanvasRenderingContext2D, list: number[], y: number, h: number): void {
    const { from, to } = this.view;
    const scale = (this.width - gutter) / (to - from);
    const of = runs.of.bind(runs);
    const [starts, times, states] = [of("start_ms"), of("run_ms"), of("state")];
    const [des, pub] = [of("deserialize_ms"), of("publish_ms")];
    const [fetches, spills, waits] = [of("fetch_ms"), of("spill_ms"), of("wait_ms")];
    let last = 0; // the end of the run before, in pixels
    const cell = new Cell(c, y, h);
    c.font = "11px system-ui, sans-serif";
    for (let i = first(list, from); i < list.length; i++) {
      const r = list[i] as number;
      const start = starts[r] ?? 0;
      if (start - before(r) > to) break;
      const d = des[r] ?? 0;
      const run = times[r] ?? 0;
      const p = pub[r] ?? 0;
      const x0 = gutter + (start - from) * scale;
      const x1 = x0 + (d + run + p) * scale;
      const op = runs.opOf[r] ?? 0;
      const dim = this.op >= 0 && op !== this.op;
      const color = states[r] ? failureColor : opColor(op);
      // What came before the start, where no earlier run has the place.
      let x = x0;
      for (const [ms, paint] of [
        [waits[r] ?? 0, phaseColors.wait],
        [spills[r] ?? 0, phaseColors.spill],
        [fetches[r] ?? 0, phaseColors.fetch],
      ] as const) {
        if (ms <= 0 || x <= last) continue;
        const left = Math.max(last, x - ms * scale);
        if (x - left >= 0.5) {
          c.globalAlpha = dim ? 0.12 : 0.85;
          c.fillStyle = paint;
          c.fillRect(left, y + h / 4, x - left, h / 2);
        }
        x = left;
      }
      last = Math.max(last, x1);
      if (x1 - x0 < 1.5) {
        cell.add(x0, x1 - x0, color, dim);
        continue;
      }
      cell.flush();
      const alpha = dim ? 0.15 : 1;
      c.globalAlpha = alpha;
      // A gap of half a pixel keeps neighbours apart.
      const right = x1 - (x1 - x0 > 4 ? 0.75 : 0);
      c.fillStyle = color;
      c.fillRect(x0, y, right - x0, h);
      if (d * scale >= 0.75) {
        c.fillStyle = phaseColors.deserialize;
        c.fillRect(x0, y, d * scale, h);
      }
      if (p * scale >= 0.75) {
        c.fillStyle = phaseColors.publish;
        c.fillRect(right - p * scale, y, p * scale, h);
      }
      if (r === this.hovered) {
        c.strokeStyle = this.colors?.text ?? "#000";
        c.lineWidth = 1.5;
        c.strokeRect(x0 + 0.75, y + 0.75, right - x0 - 1.5, h - 1.5);
      }
      const room = Math.min(right, this.width) - Math.max(x0, gutter) - d * scale - 10;
      if (room > 30 && h >= 11 && !dim) {
        const letters = Math.floor(room / 6);
        const name = runs.ops[op] ?? "";
        c.fillStyle = "#fff";
        c.fillText(
          name.length > letters ? `${name.slice(0, letters - 1)}…` : name,
          Math.max(x0 + d * scale, gutter) + 5,
          y + h / 2 + 0.5,
        );
      }
    }
    cell.flush();
    c.globalAlpha = 1;
  }
}

// Cell gathers runs that are narrower than a pixel. Each pixel gets the colour of the run that has
// most of it, and is the fainter the less of it is busy.
class Cell {
  private pixel = -1;
  private busy = 0;
  private most = 0;
  private color = "";
  private dim = false;

  constructor(
    private c: CanvasRenderingContext2D,
    private y: number,
    private h: number,
  ) {}

  add(x: number, width: number, color: string, dim: boolean): void {
    const pixel = Math.floor(x);
    if (pixel !== this.pixel) {
      this.flush();
      this.pixel = pixel;
    }
    this.busy += width;
    if (width >= this.most) {
      this.most = width;
      this.color = color;
      this.dim = dim;
    }
  }

  flush(): void {
    if (this.pixel >= 0) {
      this.c.globalAlpha = this.dim ? 0.15 : Math.min(1, 0.35 + 0.65 * this.busy);
      this.c.fillStyle = this.color;
      this.c.fillRect(this.pixel, this.y, 1, this.h);
    }
    this.pixel = -1;
    this.busy = 0;
    this.most = 0;
  }
}

// before is the time that a run waited before its start.
function before(run: number): number {
  return (
    (runs.of("fetch_ms")[run] ?? 0) +
    (runs.of("spill_ms")[run] ?? 0) +
    (runs.of("wait_ms")[run] ?? 0)
  );
}

// first finds the first run of a lane that may reach beyond a moment.
function first(list: number[], ms: number): number {
  const starts = runs.of("start_ms");
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((starts[list[middle] as number] ?? 0) < ms) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
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
