// The matrix of the routes: how each worker reads from each other one.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { theme, token } from "../colors";
import { sizesOf, smallestCell } from "../draw/matrix";
import { Surface } from "../draw/surface";
import { bytes, count, fitted, num, rate, word } from "../format";
import { inkOn, pathColors } from "../ink";
import { place, setQuery } from "../router";
import { alarms, useRoutes, useStore, workers } from "../store";
import type { Route, Worker } from "../types";
import { Card, Empty } from "../ui/parts";
import { Routes as RouteTable } from "./worker";

// The routes that a reader uses, by the number of the peer: there are as many cells as pairs of
// workers, and a list does not change.
const used = new WeakMap<Route[], Map<number, Route>>();

// best gives the route that a reader uses: the first open one of the peer, else the first.
function best(reader: Worker, peer: Worker): Route | undefined {
  const list = reader.routes ?? [];
  let byPeer = used.get(list);
  if (!byPeer) {
    byPeer = new Map();
    for (const r of list) {
      const known = byPeer.get(r.peerWorkerId ?? 0);
      const better = r.state === "ROUTE_STATE_OPEN" && known?.state !== "ROUTE_STATE_OPEN";
      if (!known || better) byPeer.set(r.peerWorkerId ?? 0, r);
    }
    used.set(list, byPeer);
  }
  return byPeer.get(peer.workerId ?? 0);
}

type Figure = "rate" | "bytes";

function figureOf(route: Route | undefined, figure: Figure): number {
  if (!route) return 0;
  return figure === "rate"
    ? (route.bytesPerSecond ?? route.connectBytesPerSecond ?? 0)
    : num(route.receivedBytes);
}

export function Routes() {
  const routesOf = useRoutes();
  const all = [...useStore(workers).values()]
    .filter((w) => w.state !== "WORKER_STATE_LOST")
    .map((w) => ({ ...w, routes: routesOf(w) }))
    .sort((a, b) => (a.name ?? "").localeCompare(b.name ?? "", "en", { numeric: true }));
  const { query } = useStore(place);
  const figure: Figure = query.get("show") === "bytes" ? "bytes" : "rate";
  const [at, setAt] = useState<[number, number] | null>(null);
  const reader = at ? all[at[0]] : undefined;
  const peer = at ? all[at[1]] : undefined;
  const route = reader && peer ? best(reader, peer) : undefined;
  const slow = byRate(all);
  const judged = new Set(useStore(alarms).map((a) => a.id));
  if (all.length < 2) {
    return (
      <Empty title="There are fewer than two workers" of="workers">
        Routes are between two workers.
      </Empty>
    );
  }
  return (
    <>
      <div class="bar-of-controls">
        <button
          class="button"
          type="button"
          aria-pressed={figure === "rate"}
          onClick={() => setQuery({ show: "" })}
        >
          Rate
        </button>
        <button
          class="button"
          type="button"
          aria-pressed={figure === "bytes"}
          onClick={() => setQuery({ show: "bytes" })}
        >
          Bytes moved
        </button>
        <div class="space" />
        <div class="legend">
          {Object.entries(pathColors).map(([name, color]) => (
            <span key={name}>
              <i class="swatch" style={{ background: color }} />
              {name}
            </span>
          ))}
        </div>
      </div>
      <div class="grid two">
        <Card
          title="Rows read from columns"
          aside={
            reader && peer
              ? `${reader.name} reads from ${peer.name}`
              : "The fainter a cell, the slower the route"
          }
        >
          <Matrix all={all} figure={figure} at={at} choose={setAt} />
        </Card>
        <div class="column">
          <Card title={reader && peer ? `${reader.name} ← ${peer.name}` : "Slowest routes"}>
            {reader && peer ? (
              route ? (
                <dl class="facts">
                  <dt>Path</dt>
                  <dd>
                    {word(route.path, "TRANSFER_PATH_")} {route.transport}
                  </dd>
                  <dt>State</dt>
                  <dd>
                    {word(route.state, "ROUTE_STATE_")} {route.reason}
                  </dd>
                  <dt>Rate</dt>
                  <dd>
                    {figureOf(route, "rate") > 0 ? rate(figureOf(route, "rate")) : "not measured"}
                  </dd>
                  <dt>Received</dt>
                  <dd>
                    {bytes(num(route.receivedBytes))} in{" "}
                    {num(route.succeededFetches) === 1
                      ? "1 fetch"
                      : `${count(num(route.succeededFetches))} fetches`}
                    , {count(num(route.failedFetches))} failed
                  </dd>
                  <dt>Staged</dt>
                  <dd>{route.staged || "no"}</dd>
                  <dt>Choice</dt>
                  <dd>{route.connectionReason || "–"}</dd>
                </dl>
              ) : (
                <span class="faint">Nothing was read on this route yet.</span>
              )
            ) : slow.length === 0 ? (
              <span class="faint">No route has a measured rate yet.</span>
            ) : (
              slow.slice(0, 8).map(({ reader: r, route: x }) => (
                <div
                  key={`${r.name}-${x.peerWorkerId}`}
                  style={{ display: "flex", gap: "8px", padding: "3px 0" }}
                >
                  <span class="clip">
                    {r.name} ← {x.peer}
                  </span>
                  <span style={{ marginLeft: "auto" }} class="nowrap">
                    {rate(figureOf(x, "rate"))}
                  </span>
                  {judged.has(`slow_route/${r.name} from ${x.peer}`) && (
                    <span class="badge bad">slow</span>
                  )}
                </div>
              ))
            )}
          </Card>
        </div>
      </div>
      <div style={{ marginTop: "14px" }}>
        {reader ? (
          <RouteTable title={`Routes of ${reader.name}`} routes={reader.routes ?? []} />
        ) : (
          <RouteTable
            title="Routes in use"
            routes={slow.map(({ reader: r, route: x }) => ({ ...x, reader: r.name }))}
          />
        )}
      </div>
    </>
  );
}

// byRate lists the routes with a measured rate, the slowest first. Whether one is too slow is for the
// alarms of the scheduler to say, which compare it with routes of its kind.
function byRate(all: Worker[]) {
  const found: { reader: Worker; route: Route }[] = [];
  for (const reader of all) {
    for (const peer of all) {
      const route = best(reader, peer);
      if (route && figureOf(route, "rate") > 0) found.push({ reader, route });
    }
  }
  return found.sort((a, b) => figureOf(a.route, "rate") - figureOf(b.route, "rate"));
}

function Matrix(props: {
  all: Worker[];
  figure: Figure;
  at: [number, number] | null;
  choose: (at: [number, number] | null) => void;
}) {
  const ref = useRef<HTMLCanvasElement>(null);
  const surface = useRef<Surface | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const n = props.all.length;
  const frame = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(0);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const measure = () => setRoom(element.clientWidth);
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);
  const { cell, label, head } = sizesOf(n, room);
  const colors = useStore(theme);
  useEffect(() => {
    if (!ref.current) return;
    const s = new Surface(ref.current, (c, w, h) =>
      paint(c, w, h, latest.current, cell, label, head),
    );
    surface.current = s;
    return () => s.close();
  }, [cell, label, head, n, colors]);
  useEffect(() => surface.current?.draw());
  const locate = (event: PointerEvent): [number, number] | null => {
    const column = Math.floor((event.offsetX - label) / cell);
    const row = Math.floor((event.offsetY - head) / cell);
    return row >= 0 && column >= 0 && row < n && column < n && row !== column
      ? [row, column]
      : null;
  };
  const press = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const [row, column] = props.at ?? [0, 0];
    props.choose([(row + move[0] + n) % n, (column + move[1] + n) % n]);
  };
  return (
    <div
      ref={frame}
      style={{ overflow: "auto", maxHeight: cell > smallestCell ? undefined : "72vh" }}
    >
      <canvas
        ref={ref}
        tabIndex={0}
        role="img"
        aria-label={`Matrix of the routes of ${n} workers. Arrows choose a pair; its route is described beside the matrix.`}
        style={{
          width: `${label + n * cell}px`,
          height: `${head + n * cell}px`,
          display: "block",
        }}
        onPointerDown={(e) => props.choose(locate(e))}
        onKeyDown={press}
      />
    </div>
  );
}

function paint(
  c: CanvasRenderingContext2D,
  width: number,
  height: number,
  props: { all: Worker[]; figure: Figure; at: [number, number] | null },
  cell: number,
  label: number,
  head: number,
) {
  c.fillStyle = token("panel");
  c.fillRect(0, 0, width, height);
  const most = Math.max(
    ...props.all.flatMap((a) => props.all.map((b) => figureOf(best(a, b), props.figure))),
    1e-9,
  );
  const [track, soft, text, bad] = [token("track"), token("soft"), token("text"), token("bad")];
  c.font = "12px system-ui, sans-serif";
  c.textBaseline = "middle";
  for (const [i, reader] of props.all.entries()) {
    const y = head + i * cell;
    if (cell >= 14) {
      c.fillStyle = soft;
      c.textAlign = "right";
      c.fillText(
        fitted(reader.name, (t) => c.measureText(t).width <= label - 16),
        label - 8,
        y + cell / 2,
      );
      c.save();
      c.translate(label + i * cell + cell / 2, head - 10);
      c.rotate(cell >= 64 ? 0 : -Math.PI / 3);
      c.textAlign = cell >= 64 ? "center" : "left";
      // A name that is turned by a third of a half circle takes half of its length to the right.
      const right = width - label - i * cell - cell / 2;
      const room = cell >= 64 ? cell - 4 : Math.min(head, 2 * right);
      c.fillText(
        fitted(reader.name, (t) => c.measureText(t).width <= room),
        0,
        0,
      );
      c.restore();
      c.textAlign = "left";
    }
    for (const [j, peer] of props.all.entries()) {
      const x = label + j * cell;
      const route = i === j ? undefined : best(reader, peer);
      const value = figureOf(route, props.figure);
      c.globalAlpha = 1;
      c.fillStyle = track;
      if (i === j) c.globalAlpha = 0.35;
      c.fillRect(x + 1, y + 1, cell - 2, cell - 2);
      if (route) {
        const share = value > 0 ? 0.25 + 0.75 * (value / most) : 0.12;
        const color = pathColors[word(route.path, "TRANSFER_PATH_")] ?? soft;
        c.globalAlpha = share;
        c.fillStyle = color;
        c.fillRect(x + 1, y + 1, cell - 2, cell - 2);
        c.globalAlpha = 1;
        if (num(route.failedFetches) > 0) {
          c.fillStyle = bad;
          c.fillRect(x + cell - 6, y + 3, 3, 3);
        }
        const said = props.figure === "rate" ? rate(value) : bytes(value);
        if (value > 0 && c.measureText(said).width < cell - 6) {
          c.fillStyle = inkOn(color, share, track);
          c.textAlign = "center";
          c.fillText(said, x + cell / 2, y + cell / 2);
          c.textAlign = "left";
        }
      }
      c.globalAlpha = 1;
      if (props.at?.[0] === i && props.at[1] === j) {
        c.strokeStyle = text;
        c.lineWidth = 2;
        c.strokeRect(x + 1, y + 1, cell - 2, cell - 2);
      }
    }
  }
}
