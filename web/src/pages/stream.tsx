// The page of the task stream.

import { useEffect, useRef, useState } from "preact/hooks";
import { opColor, phaseColors, phaseNames, theme, token } from "../colors";
import { Surface } from "../draw/surface";
import { type Row, type Shares, Timeline } from "../draw/timeline";
import { bytes, clock, count, duration, percent } from "../format";
import { frozen } from "../frozen";
import { go, link } from "../router";
import { phases, runs } from "../runs";
import { useTopics, workers } from "../store";
import { presently } from "../time";
import { Card, Empty } from "../ui/parts";

// rowsNow lists the slots of the workers, and those of lost workers that have runs. Slots count
// from 1; a run of slot 0 had none of its own.
function rowsNow(): Row[] {
  const rows: Row[] = [];
  const lanes = new Map(runs.lanes.map((l, i) => [`${l.worker}/${l.slot}`, i]));
  for (const w of workers.value.values()) {
    if (w.state === "WORKER_STATE_LOST") continue;
    for (let slot = 1; slot <= (w.slots ?? 0); slot++) {
      const name = `${w.workerId}/${slot}`;
      rows.push({ worker: w.name ?? "", slot, lane: lanes.get(name) ?? -1, gone: false });
      lanes.delete(name);
    }
  }
  for (const index of lanes.values()) {
    const lane = runs.lanes[index];
    if (!lane || lane.runs.length === 0) continue;
    const worker = workers.value.get(String(lane.worker));
    const gone = worker?.state !== "WORKER_STATE_ACTIVE";
    const name = worker?.name ?? `#${lane.worker}`;
    rows.push({ worker: gone ? `${name} (lost)` : name, slot: lane.slot, lane: index, gone });
  }
  return rows.sort(
    (a, b) => a.worker.localeCompare(b.worker, "en", { numeric: true }) || a.slot - b.slot,
  );
}

// nowMs is the time as runs have theirs.
function nowMs(): number {
  return presently() - runs.origin;
}

// A zoom rests after so many milliseconds without an event.
const restMs = 120;
// The sum of what is in view takes at most so much of a frame.
const sliceMs = 3;

export function StreamPage() {
  useTopics("runs");
  const canvas = useRef<HTMLCanvasElement>(null);
  const strip = useRef<HTMLCanvasElement>(null);
  const [timeline] = useState(() => new Timeline());
  const [follow, setFollow] = useState(!frozen);
  const following = useRef(true);
  following.current = follow;
  const [tip, setTip] = useState<{ x: number; y: number; run: number } | null>(null);
  const [shares, setShares] = useState<Shares | null>(null);
  const [missing, setMissing] = useState({ count: 0, fit: true });
  const [op, setOp] = useState(-1);
  const [size, setSize] = useState(runs.size);
  timeline.op = op;
  const redraw = useRef(() => {});
  const zooming = useRef(0);
  // settle draws exactly what a zoom has stretched, once it rests.
  const settle = () => {
    window.clearTimeout(zooming.current);
    zooming.current = window.setTimeout(() => {
      timeline.settle();
      redraw.current();
    }, restMs);
  };

  useEffect(() => {
    const [element, below] = [canvas.current, strip.current];
    if (!element || !below) return;
    let closed = false;
    const surface = new Surface(element, (c, w, h) => timeline.paint(c, w, h));
    const busy = new Busy();
    const overview = new Surface(below, (c, w, h) => paintStrip(c, w, h, timeline, busy));
    const span = timeline.view.to - timeline.view.from;
    timeline.view = { from: nowMs() - span, to: nowMs() };
    if (frozen) void all();
    const draw = () => {
      surface.draw();
      overview.draw();
    };
    redraw.current = draw;
    let frames = 0;
    const tick = () => {
      if (closed) return;
      if (following.current) {
        if (timeline.follow(nowMs())) surface.draw();
        if (frames++ % 15 === 0) overview.draw();
      }
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    const update = () => {
      timeline.rows = rowsNow();
      setSize(runs.size);
      draw();
    };
    update();
    const unfollow = [
      runs.follow(update),
      workers.follow(update),
      theme.follow(() => {
        timeline.recolor();
        draw();
      }),
    ];
    // The sum of what is in view, while it is made.
    let sum: ReturnType<typeof timeline.shares> | null = null;
    const add = () => {
      if (closed || !sum) return;
      const end = performance.now() + sliceMs;
      let step = sum.next();
      while (!step.done && performance.now() < end) step = sum.next();
      if (!step.done) {
        requestAnimationFrame(add);
        return;
      }
      sum = null;
      setShares(step.value);
    };
    const timer = setInterval(() => {
      if (!sum) {
        sum = timeline.shares();
        requestAnimationFrame(add);
      }
      if (busy.stale()) overview.draw();
      const { count, newest, fit } = runs.missing(timeline.view.from, timeline.view.to);
      setMissing({ count, fit });
      if (!frozen && !following.current && fit) void runs.fill(newest);
      if (timeline.view.from < (runs.size ? runs.span()[0] : 0)) void runs.older();
    }, 500);
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      if (
        event.ctrlKey ||
        event.metaKey ||
        (!event.shiftKey && event.deltaX === 0 && !event.altKey)
      ) {
        if (event.deltaY !== 0) timeline.zoom(1.0018 ** event.deltaY, event.offsetX);
        settle();
      } else if (event.altKey) timeline.scrollBy(event.deltaY);
      else {
        timeline.pan(event.deltaX || event.deltaY);
        setFollow(false);
      }
      draw();
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => {
      closed = true;
      clearInterval(timer);
      window.clearTimeout(zooming.current);
      for (const f of unfollow) f();
      element.removeEventListener("wheel", wheel);
      surface.close();
      overview.close();
    };
  }, []);

  const all = async () => {
    await runs.all();
    const [from, to] = runs.span();
    const margin = Math.max((to - from) * 0.02, 1);
    timeline.view = { from: from - margin, to: to + margin };
    setFollow(false);
    redraw.current();
  };
  const drag = (event: PointerEvent) => {
    const element = event.currentTarget as HTMLElement;
    element.setPointerCapture(event.pointerId);
    const begin = { x: event.clientX, y: event.clientY };
    let [x, y] = [event.clientX, event.clientY];
    let moved = false;
    const move = (e: PointerEvent) => {
      moved ||= Math.abs(e.clientX - begin.x) + Math.abs(e.clientY - begin.y) > 4;
      if (!moved) return;
      if (e.clientX !== x) setFollow(false);
      timeline.pan(x - e.clientX);
      timeline.scrollBy(y - e.clientY);
      [x, y] = [e.clientX, e.clientY];
      redraw.current();
    };
    const up = (e: PointerEvent) => {
      element.removeEventListener("pointermove", move);
      if (moved) return;
      const run = timeline.at(e.offsetX, e.offsetY);
      if (run >= 0) go(link("tasks", runs.tasks[run] ?? ""));
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", up, { once: true });
  };
  const hover = (event: PointerEvent) => {
    const run = event.buttons ? -1 : timeline.at(event.offsetX, event.offsetY);
    if (run !== timeline.hovered) {
      timeline.hovered = run;
      redraw.current();
    }
    setTip(run >= 0 ? { x: event.clientX, y: event.clientY, run } : null);
  };
  const press = (event: KeyboardEvent) => {
    const pan = event.shiftKey ? 400 : 80;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      timeline.pan(event.key === "ArrowLeft" ? -pan : pan);
      setFollow(false);
    } else if (event.key === "ArrowUp") timeline.scrollBy(-timeline.rowHeight);
    else if (event.key === "ArrowDown") timeline.scrollBy(timeline.rowHeight);
    else if (event.key === "+" || event.key === "=") timeline.zoom(0.75);
    else if (event.key === "-") timeline.zoom(1 / 0.75);
    else if (event.key === "f") setFollow(true);
    else if (event.key === "0") void all();
    else return;
    event.preventDefault();
    settle();
    redraw.current();
  };
  const span = (minutes: number) => {
    const to = following.current ? nowMs() : timeline.view.to;
    timeline.view = { from: to - minutes * 60_000, to };
    redraw.current();
  };
  const seek = (event: PointerEvent) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const [from, to] = stripSpan();
    const at =
      from + ((to - from) * event.offsetX) / (event.currentTarget as HTMLElement).clientWidth;
    const half = (timeline.view.to - timeline.view.from) / 2;
    timeline.view = { from: at - half, to: at + half };
    setFollow(false);
    redraw.current();
  };
  return (
    <>
      <div class="bar-of-controls">
        {!frozen && (
          <button
            class="button"
            type="button"
            aria-pressed={follow}
            onClick={() => setFollow(!follow)}
          >
            Follow
          </button>
        )}
        {[10 / 60, 1, 5, 30].map((minutes) => (
          <button class="button" type="button" key={minutes} onClick={() => span(minutes)}>
            {minutes < 1 ? "10 s" : `${minutes} min`}
          </button>
        ))}
        <button class="button" type="button" onClick={() => void all()}>
          All
        </button>
        <div class="space" />
        <div class="legend">
          {phases.map((p) => (
            <span key={p}>
              <i class="swatch" style={{ background: phaseColors[p] }} />
              {phaseNames[p]}
            </span>
          ))}
        </div>
      </div>
      <div
        class="grid"
        style={{ gridTemplateColumns: "minmax(0, 1fr) 272px", flex: 1, minHeight: 0 }}
      >
        <section class="card fill" aria-label="Task stream">
          <div class="canvas">
            {size === 0 && (
              <div style={{ position: "absolute", inset: 0, zIndex: 1, pointerEvents: "none" }}>
                <Empty title="No task has ended yet">Each row is a slot of a worker.</Empty>
              </div>
            )}
            <canvas
              ref={canvas}
              tabIndex={0}
              role="img"
              aria-label={`The latest ${count(size)} attempts of tasks, by slot and time. The table beside it sums up what is in view. Arrows pan, plus and minus zoom, f follows, 0 shows all.`}
              style={{ cursor: tip ? "pointer" : "grab" }}
              onPointerDown={drag}
              onPointerMove={hover}
              onPointerLeave={() => setTip(null)}
              onKeyDown={press}
            />
          </div>
          <div
            class="canvas"
            style={{ flex: "none", height: "44px", borderTop: "1px solid var(--line)" }}
          >
            <canvas
              ref={strip}
              role="img"
              aria-label="The whole kept history, with the part in view"
              onPointerDown={seek}
              onPointerMove={seek}
            />
          </div>
        </section>
        <InView shares={shares} missing={missing} op={op} choose={setOp} />
      </div>
      {tip && <Tip {...tip} />}
    </>
  );
}

function InView(props: {
  shares: Shares | null;
  missing: { count: number; fit: boolean };
  op: number;
  choose: (op: number) => void;
}) {
  const s = props.shares;
  if (!s) return <Card title="In view">{""}</Card>;
  const waits = phases.reduce((sum, p) => sum + s.phases[p], 0);
  const all = Math.max(s.run + s.idle + waits, 1e-9);
  const rows: [string, number, string][] = [
    ["functions", s.run, "var(--bar-running)"],
    ...phases.map((p): [string, number, string] => [phaseNames[p], s.phases[p], phaseColors[p]]),
    ["idle", s.idle, "var(--track)"],
  ];
  const idle = s.run + s.idle + waits === 0;
  const ops = [...s.ops].sort((a, b) => b[1].ms - a[1].ms).slice(0, 40);
  return (
    <section class="card" aria-label="In view" style={{ overflow: "auto" }}>
      <header>
        <h2>Slots in view</h2>
      </header>
      {props.missing.count > 0 && (
        <p class="body soft">
          A sample: {count(props.missing.count)} more attempts ended in this time, so more of it was
          busy.{" "}
          {props.missing.fit
            ? "Without Follow the page fetches them."
            : "They are more than the page keeps: a shorter time shows all."}
        </p>
      )}
      <div class="body">
        {idle && <p class="soft">No slot has run anything in this time.</p>}
        {rows
          .filter(([, ms]) => ms > 0)
          .map(([name, ms, color]) => (
            <div
              key={name}
              style={{ display: "flex", alignItems: "center", gap: "8px", padding: "2px 0" }}
            >
              <i class="swatch" style={{ background: color }} />
              <span class="soft">{name}</span>
              <span style={{ marginLeft: "auto" }}>{percent(ms, all)}</span>
            </div>
          ))}
      </div>
      {ops.length > 0 && (
        <header>
          <h2>Functions</h2>
          {props.op >= 0 && (
            <button class="button plain aside" type="button" onClick={() => props.choose(-1)}>
              Show all
            </button>
          )}
        </header>
      )}
      <ul style={{ listStyle: "none", padding: "0 8px 12px" }}>
        {ops.map(([op, sum]) => (
          <li key={op}>
            <button
              class="button plain"
              type="button"
              aria-pressed={props.op === op}
              style={{
                width: "100%",
                height: "auto",
                padding: "3px 6px",
                opacity: props.op >= 0 && props.op !== op ? 0.55 : 1,
              }}
              onClick={() => props.choose(props.op === op ? -1 : op)}
              title={`${runs.ops[op]}: ${count(sum.count)} attempts, ${duration(sum.ms)}`}
            >
              <i class="swatch" style={{ background: opColor(op) }} />
              <span class="clip">{runs.ops[op]}</span>
              {sum.failed > 0 && <span class="badge bad">{sum.failed}</span>}
              <span class="faint" style={{ marginLeft: "auto" }}>
                {duration(sum.ms / Math.max(sum.count, 1))}
              </span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Tip(props: { x: number; y: number; run: number }) {
  const of = (f: Parameters<typeof runs.of>[0]) => runs.of(f)[props.run] ?? 0;
  const lane = runs.lanes[runs.laneOf[props.run] ?? 0];
  const rows: [string, string][] = [
    [
      "worker",
      `${workers.value.get(String(lane?.worker))?.name ?? lane?.worker}, slot ${lane?.slot}`,
    ],
    ["begin", clock(of("start_ms") + runs.origin, true)],
    ["run", duration(of("run_ms"))],
    ...(["fetch", "spill", "wait", "deserialize", "publish"] as const)
      .map((p): [string, number] => [phaseNames[p], of(`${p}_ms`)])
      .filter(([, ms]) => ms > 0)
      .map(([name, ms]): [string, string] => [name, duration(ms)]),
    ["inputs", bytes(of("input_bytes"))],
    ["result", bytes(of("output_bytes"))],
  ];
  const left = Math.min(props.x + 14, window.innerWidth - 320);
  const top = Math.min(props.y + 14, window.innerHeight - 240);
  return (
    <div class="tip" style={{ left: `${left}px`, top: `${top}px` }}>
      <b>{runs.ops[runs.opOf[props.run] ?? 0]}</b>{" "}
      {of("state") ? <span class="badge bad">failed</span> : ""}
      <div class="faint mono clip">{runs.keys[props.run] || `t${runs.tasks[props.run]}`}</div>
      <table>
        <tbody>
          {rows.map(([name, value]) => (
            <tr key={name}>
              <td class="faint">{name}</td>
              <td>{value}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function stripSpan(): [number, number] {
  const [from, to] = runs.span();
  return to > from ? [from, to + (to - from) * 0.01] : [0, 1];
}

// The shortest time between two pictures of the history.
const pictureMs = 1000;

// Busy is how many slots were busy over the whole history, as a picture.
class Busy {
  private canvas = document.createElement("canvas");
  private drawn = "";
  private version = -1;
  private time = Number.NEGATIVE_INFINITY;
  // The time that it shows.
  span: [number, number] = [0, 1];

  // stale says whether the history has changed and it is time to draw it again. A live history
  // changes ten times a second.
  stale(): boolean {
    return this.version !== runs.version && performance.now() - this.time > pictureMs;
  }

  // picture draws it again if the history, the size or the colours have changed.
  picture(width: number, height: number, color: string): HTMLCanvasElement {
    const now = `${width} ${height} ${color}`;
    if (this.drawn === now && !this.stale()) return this.canvas;
    this.drawn = now;
    this.version = runs.version;
    this.time = performance.now();
    this.span = stripSpan();
    this.canvas.width = Math.max(1, Math.ceil(width));
    this.canvas.height = Math.max(1, height);
    const [from, to] = this.span;
    const columns = new Float64Array(this.canvas.width);
    const scale = width / (to - from);
    const [starts, times] = [runs.of("start_ms"), runs.of("run_ms")];
    for (let i = 0; i < runs.size; i++) {
      const a = ((starts[i] as number) - from) * scale;
      const b = a + (times[i] as number) * scale;
      for (let x = Math.floor(a); x <= b && x < width; x++)
        columns[x] = (columns[x] as number) + Math.min(b, x + 1) - Math.max(a, x);
    }
    const most = columns.reduce((a, b) => Math.max(a, b), 1e-9);
    const c = this.canvas.getContext("2d");
    if (!c) return this.canvas;
    c.fillStyle = color;
    for (const [x, busy] of columns.entries()) {
      const h = (busy / most) * (height - 10);
      if (h > 0) c.fillRect(x, height - h, 1, h);
    }
    return this.canvas;
  }
}

// paintStrip shows the whole history, and what of it is in view.
function paintStrip(
  c: CanvasRenderingContext2D,
  width: number,
  height: number,
  timeline: Timeline,
  busy: Busy,
) {
  c.fillStyle = token("panel");
  c.fillRect(0, 0, width, height);
  c.globalAlpha = 0.55;
  c.drawImage(busy.picture(width, height, token("bar-running")), 0, 0);
  const [from, to] = busy.span;
  const scale = width / (to - from);
  const left = (timeline.view.from - from) * scale;
  const right = (timeline.view.to - from) * scale;
  c.fillStyle = token("text");
  c.globalAlpha = 0.09;
  c.fillRect(left, 0, Math.max(right - left, 2), height);
  c.globalAlpha = 0.5;
  c.fillRect(left, 0, 1, height);
  c.fillRect(Math.max(right, left + 2), 0, 1, height);
  c.globalAlpha = 1;
}
