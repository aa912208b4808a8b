// The page of one graph: its drawing, its functions, its tasks.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, isMissing, messageOf } from "../api";
import { theme } from "../colors";
import { Dag } from "../draw/dag";
import { type Edge, type Layout, layOut, type Node } from "../draw/layout";
import { Surface } from "../draw/surface";
import { bytes, count, duration, millis, num, plural, progress, word } from "../format";
import { frozen } from "../frozen";
import { go, link, place, setQuery } from "../router";
import { graphs, useStore } from "../store";
import type { Graph, Task } from "../types";
import { FlameCard } from "../ui/flame";
import {
  Bar,
  Card,
  Empty,
  Missing,
  Op,
  Restarted,
  Stat,
  StateBadge,
  Table,
  TaskLink,
  useCall,
  useNow,
} from "../ui/parts";
import { partsOf, sizeOf } from "./graphs";

// The largest number of tasks that are drawn one by one, and that are read at all.
const drawnTasks = 5000;
const readTasks = 10_000;

async function tasksOf(graph: string): Promise<Task[]> {
  const tasks: Task[] = [];
  let pageToken = "";
  do {
    const page = await call<{ tasks?: Task[]; nextPageToken?: string }>("ListTasks", {
      graphId: graph,
      pageSize: 1000,
      pageToken,
    });
    tasks.push(...(page.tasks ?? []));
    pageToken = page.nextPageToken ?? "";
  } while (pageToken && tasks.length < readTasks);
  return tasks;
}

function nodeOf(t: Task): Node {
  const key = t.key ?? `t${t.taskId}`;
  const op = t.op?.name ?? "";
  return {
    id: key,
    label: op.split(".").pop() || key,
    op,
    state: word(t.state, "TASK_STATE_"),
    ms: millis(t.runTime),
    task: String(t.taskId),
    count: 1,
    critical: false,
    x: 0,
    y: 0,
  };
}

// drawing makes the nodes: tasks, or ops if there are too many.
function drawing(tasks: Task[], graph: Graph, condensed: boolean): Layout {
  const index = new Map<string, number>();
  const nodes: Node[] = [];
  const edges: Edge[] = [];
  if (!condensed) {
    for (const t of tasks) {
      index.set(t.key ?? "", nodes.length);
      nodes.push(nodeOf(t));
    }
    for (const [to, t] of tasks.entries()) {
      for (const key of t.inputs ?? []) {
        const from = index.get(key);
        if (from !== undefined) edges.push({ from, to, critical: false });
      }
    }
    return layOut(nodes, edges);
  }
  const opOf = new Map(tasks.map((t) => [t.key ?? "", t.op?.name ?? ""]));
  for (const o of graph.ops ?? []) {
    index.set(o.op ?? "", nodes.length);
    const all = sizeOf(o.counts);
    nodes.push({
      id: o.op ?? "",
      label: `${(o.op ?? "").split(".").pop()?.slice(0, 9)} ×${all}`,
      op: o.op ?? "",
      state: num(o.counts?.failed)
        ? "failed"
        : num(o.counts?.running)
          ? "running"
          : num(o.counts?.waiting)
            ? "waiting"
            : "succeeded",
      ms: millis(o.runTime) / Math.max(all, 1),
      task: "",
      count: all,
      critical: false,
      x: 0,
      y: 0,
    });
  }
  const pairs = new Set<string>();
  for (const t of tasks) {
    const to = index.get(t.op?.name ?? "");
    for (const key of t.inputs ?? []) {
      const from = index.get(opOf.get(key) ?? "\0");
      if (from === undefined || to === undefined || from === to) continue;
      if (pairs.has(`${from}-${to}`)) continue;
      pairs.add(`${from}-${to}`);
      edges.push({ from, to, critical: false });
    }
  }
  return layOut(nodes, edges);
}

export function GraphPage(props: { id: string }) {
  const followed = useStore(graphs).get(props.id);
  const looked = useCall(
    () => call<{ graph: Graph }>("GetGraph", { graphId: props.id }),
    [props.id, followed?.state],
  );
  const graph = followed ?? looked.value?.graph;
  const running = graph?.state === "GRAPH_STATE_RUNNING";
  const small = sizeOf(graph?.counts) <= 1000;
  const read = useCall(
    async () => (graph ? await tasksOf(props.id) : []),
    [props.id, graph?.state],
    running ? (small ? 2000 : 10_000) : 0,
  );
  const { query } = useStore(place);
  const now = useNow();
  if (!graph && isMissing(looked.error)) {
    return (
      <Missing
        what={`graph g${props.id}`}
        why="The scheduler forgets graphs that ended long ago, and whose results nobody holds. Those it knows are on the page"
        section="graphs"
        list="Graphs"
      />
    );
  }
  if (!graph)
    return <Empty title={looked.error ? messageOf(looked.error) : "Looking up the graph"} />;
  const tasks = read.value ?? [];
  const all = sizeOf(graph.counts);
  const done = num(graph.counts?.succeeded) + num(graph.counts?.released);
  const took =
    (graph.endTime ? Date.parse(graph.endTime) : now) - Date.parse(graph.createTime ?? "");
  const condensed = all > drawnTasks || query.get("by") === "function";
  const tabs: [string, string][] = [
    ["drawing", "Drawing"],
    ["functions", "Functions"],
    ["tasks", "Tasks"],
    ["flame", "Flame graph"],
  ];
  const show = query.get("show");
  const tab = tabs.some(([id]) => id === show) ? show : "drawing";
  return (
    <>
      <div class="bar-of-controls">
        <StateBadge state={graph.state} prefix="GRAPH_STATE_" />
        <span class="soft">
          {graph.name || "unnamed"}, namespace {graph.namespace || "default"}
        </span>
        <div class="space" />
        {tabs.map(([id, name]) => (
          <button
            class="button"
            type="button"
            key={id}
            aria-pressed={tab === id}
            onClick={() => setQuery({ show: id === "drawing" ? "" : id })}
          >
            {name}
          </button>
        ))}
        {!frozen && (
          <a class="button" href={`api/trace?graph=${props.id}`} download>
            Export for Perfetto
          </a>
        )}
      </div>
      <div class="grid stats" style={{ marginBottom: "14px" }}>
        <Stat
          title="Progress"
          figure={progress(done, all)}
          note={`${count(done)} of ${plural(all, "task")}`}
        >
          <Bar label="Progress" parts={partsOf(graph.counts)} />
        </Stat>
        <Stat
          title={running ? "Runs for" : "Took"}
          figure={duration(took)}
          note={running ? "not ended yet" : ""}
        />
        <Stat
          title="Run time of all tasks"
          figure={duration((graph.ops ?? []).reduce((s, o) => s + millis(o.runTime), 0))}
          note="sum of its functions"
        />
        <Stat
          title="Results"
          figure={bytes((graph.ops ?? []).reduce((s, o) => s + num(o.outputBytes), 0))}
        />
        <Stat
          title="Failed"
          figure={count(num(graph.counts?.failed))}
          note={num(graph.counts?.cancelled) ? `${graph.counts?.cancelled} cancelled` : ""}
        />
      </div>
      {graph.firstError && (
        <div class="notice bad round" style={{ overflowWrap: "anywhere" }}>
          {graph.firstError}
        </div>
      )}
      <Restarted
        begun={graph.createTime}
        lacks=", so run times, the critical path and what is exported lack them"
      />
      {tab === "functions" && <Functions graph={graph} tasks={tasks} />}
      {tab === "tasks" && <Tasks tasks={tasks} />}
      {tab === "flame" && (
        <FlameCard
          title="Flame graph of its functions"
          of={`graph=${props.id}`}
          running={running}
        />
      )}
      {tab === "drawing" && (
        <Drawing
          graph={graph}
          tasks={tasks}
          condensed={condensed}
          forced={all > drawnTasks}
          missing={all - tasks.length}
          loaded={read.value !== null}
        />
      )}
    </>
  );
}

function Drawing(props: {
  graph: Graph;
  tasks: Task[];
  condensed: boolean;
  forced: boolean;
  missing: number;
  loaded: boolean;
}) {
  const ref = useRef<HTMLCanvasElement>(null);
  const [dag] = useState(() => new Dag());
  const surface = useRef<Surface | null>(null);
  const [tip, setTip] = useState<{ x: number; y: number; node: Node } | null>(null);
  const [critical, setCritical] = useState(0);
  const shape = useRef("");
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const s = new Surface(element, (c, w, h) => dag.paint(c, w, h));
    surface.current = s;
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      dag.zoom(0.998 ** event.deltaY, event.offsetX, event.offsetY);
      s.draw();
    };
    element.addEventListener("wheel", wheel, { passive: false });
    const unfollow = theme.follow(() => s.draw());
    return () => {
      unfollow();
      element.removeEventListener("wheel", wheel);
      s.close();
    };
  }, []);
  useEffect(() => {
    dag.layout = drawing(props.tasks, props.graph, props.condensed);
    setCritical(dag.layout.criticalMs);
    const now = `${props.condensed} ${dag.layout.width} ${dag.layout.height}`;
    if (
      shape.current !== now &&
      surface.current &&
      !(dag.moved && shape.current.startsWith(`${props.condensed}`))
    )
      dag.fit(surface.current.width, surface.current.height);
    shape.current = now;
    surface.current?.draw();
  }, [props.tasks, props.condensed, props.condensed ? props.graph : null]);
  const drag = (event: PointerEvent) => {
    const element = event.currentTarget as HTMLElement;
    element.setPointerCapture(event.pointerId);
    let [x, y] = [event.clientX, event.clientY];
    let moved = 0;
    const move = (e: PointerEvent) => {
      moved += Math.abs(e.clientX - x) + Math.abs(e.clientY - y);
      dag.pan(e.clientX - x, e.clientY - y);
      [x, y] = [e.clientX, e.clientY];
      surface.current?.draw();
    };
    const up = (e: PointerEvent) => {
      element.removeEventListener("pointermove", move);
      const node = moved < 5 ? dag.layout?.nodes[dag.at(e.offsetX, e.offsetY)] : undefined;
      if (node?.task) go(link("tasks", node.task));
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", up, { once: true });
  };
  const hover = (event: PointerEvent) => {
    const at = dag.at(event.offsetX, event.offsetY);
    if (at !== dag.hovered) {
      dag.hovered = at;
      surface.current?.draw();
    }
    const node = dag.layout?.nodes[at];
    setTip(node ? { x: event.clientX, y: event.clientY, node } : null);
  };
  const press = (event: KeyboardEvent) => {
    const s = surface.current;
    if (!s) return;
    const moves: Record<string, [number, number]> = {
      ArrowUp: [0, 60],
      ArrowDown: [0, -60],
      ArrowLeft: [60, 0],
      ArrowRight: [-60, 0],
    };
    const move = moves[event.key];
    if (move) dag.pan(...move);
    else if (event.key === "+" || event.key === "=") dag.zoom(1.25, s.width / 2, s.height / 2);
    else if (event.key === "-") dag.zoom(0.8, s.width / 2, s.height / 2);
    else if (event.key === "0") dag.fit(s.width, s.height);
    else return;
    event.preventDefault();
    s.draw();
  };
  const note = [
    critical > 0 ? `critical path ${duration(critical)}` : "",
    props.missing > 0 && props.loaded
      ? `${plural(props.missing, "task")} forgotten or not read`
      : "",
  ].filter(Boolean);
  return (
    <section class="card" aria-label="Drawing">
      <header>
        <h2>{props.condensed ? "By function" : "By task"}</h2>
        <span class="faint">{note.join(", ")}</span>
        <div class="aside legend">
          <span>
            <i class="swatch" style={{ background: "#c4183c" }} />
            critical path
          </span>
          {!props.forced && (
            <button
              class="button"
              type="button"
              onClick={() => setQuery({ by: props.condensed ? "" : "function" })}
            >
              {props.condensed ? "Show tasks" : "Show functions"}
            </button>
          )}
        </div>
      </header>
      <div class="canvas" style={{ height: "max(360px, calc(100vh - 330px))" }}>
        <canvas
          ref={ref}
          tabIndex={0}
          role="img"
          aria-label="The tasks and their dependencies. Arrows pan, plus and minus zoom, 0 shows all. The list of tasks has the same figures."
          style={{ cursor: tip ? "pointer" : "grab" }}
          onPointerDown={drag}
          onPointerMove={hover}
          onPointerLeave={() => setTip(null)}
          onKeyDown={press}
        />
      </div>
      {tip && (
        <div
          class="tip"
          style={{
            left: `${Math.min(tip.x + 14, window.innerWidth - 300)}px`,
            top: `${tip.y + 14}px`,
          }}
        >
          <b>{tip.node.op}</b>
          <div class="mono faint">{tip.node.id}</div>
          <div>
            {tip.node.state}
            {tip.node.ms > 0
              ? `, ran ${duration(tip.node.ms)}${tip.node.count > 1 ? " on average" : ""}`
              : ""}
          </div>
        </div>
      )}
    </section>
  );
}

interface FunctionRow {
  op: string;
  counts: Graph["counts"];
  ms: number;
  bytes: number;
  median: number;
  slowest: Task | undefined;
}

// straggles says that one task of a function took much longer than most of them.
function straggles(r: FunctionRow): boolean {
  const longest = millis(r.slowest?.runTime);
  return longest > 3 * r.median && longest > 200 && longest > 0.01 * r.ms;
}

function Functions(props: { graph: Graph; tasks: Task[] }) {
  const all = (props.graph.ops ?? []).reduce((s, o) => s + millis(o.runTime), 0);
  const rows = (props.graph.ops ?? []).map((o): FunctionRow => {
    const timed = props.tasks
      .filter((t) => t.op?.name === o.op && t.runTime)
      .sort((a, b) => millis(a.runTime) - millis(b.runTime));
    return {
      op: o.op ?? "",
      counts: o.counts,
      ms: millis(o.runTime),
      bytes: num(o.outputBytes),
      median: millis(timed[timed.length >> 1]?.runTime),
      slowest: timed[timed.length - 1],
    };
  });
  return (
    <Card title="Where the time went" bare>
      <Table
        label="Functions"
        rows={rows}
        id={(r) => r.op}
        sort="Run time"
        down
        columns={[
          {
            name: "Function",
            by: (r) => r.op,
            cell: (r) => (
              <div style={{ maxWidth: "280px" }}>
                <Op name={r.op} />
              </div>
            ),
          },
          {
            name: "Share",
            cell: (r) => (
              <div style={{ minWidth: "160px" }}>
                <Bar
                  label={r.op}
                  whole={all}
                  parts={[{ name: "run time", value: r.ms, color: "var(--bar-running)" }]}
                />
              </div>
            ),
          },
          { name: "Run time", right: true, by: (r) => r.ms, cell: (r) => duration(r.ms) },
          {
            name: "Tasks",
            right: true,
            by: (r) => sizeOf(r.counts),
            cell: (r) => count(sizeOf(r.counts)),
          },
          {
            name: "Progress",
            cell: (r) => (
              <div style={{ minWidth: "120px" }}>
                <Bar label={r.op} parts={partsOf(r.counts)} />
              </div>
            ),
          },
          { name: "Median", right: true, by: (r) => r.median, cell: (r) => duration(r.median) },
          {
            name: "Slowest",
            right: true,
            by: (r) => millis(r.slowest?.runTime),
            cell: (r) =>
              r.slowest ? (
                <>
                  {straggles(r) ? <span class="badge warn">straggler</span> : ""}{" "}
                  <a href={link("tasks", String(r.slowest.taskId))}>
                    {duration(millis(r.slowest.runTime))}
                  </a>
                  {(r.slowest.worker || r.slowest.replicas?.[0]) && (
                    <span class="faint"> on {r.slowest.worker || r.slowest.replicas?.[0]}</span>
                  )}
                </>
              ) : (
                "–"
              ),
          },
          { name: "Results", right: true, by: (r) => r.bytes, cell: (r) => bytes(r.bytes) },
        ]}
      />
    </Card>
  );
}

function Tasks(props: { tasks: Task[] }) {
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const states = [...new Set(props.tasks.map((t) => t.state ?? ""))].sort();
  const rows = props.tasks.filter(
    (t) =>
      (state === "" || t.state === state) &&
      (text === "" || `${t.key} ${t.op?.name}`.toLowerCase().includes(text.toLowerCase())),
  );
  return (
    <>
      <div class="bar-of-controls">
        <select
          class="field"
          aria-label="State"
          value={state}
          onChange={(e) => setState(e.currentTarget.value)}
        >
          <option value="">all states</option>
          {states.map((s) => (
            <option key={s} value={s}>
              {word(s, "TASK_STATE_")}
            </option>
          ))}
        </select>
        <input
          class="field"
          type="search"
          style={{ width: "280px" }}
          placeholder="Filter by key or function"
          aria-label="Filter by key or function"
          value={text}
          onInput={(e) => setText(e.currentTarget.value)}
        />
      </div>
      <Card title={plural(rows.length, "task")} bare>
        <Table
          label="Tasks"
          rows={rows}
          id={(t) => String(t.taskId)}
          columns={[
            {
              name: "Task",
              by: (t) => t.key ?? "",
              cell: (t) => (
                <span class="nowrap">
                  <TaskLink id={t.taskId} name={t.key} />
                </span>
              ),
            },
            {
              name: "Function",
              by: (t) => t.op?.name ?? "",
              cell: (t) => <Op name={t.op?.name ?? ""} />,
            },
            {
              name: "State",
              by: (t) => t.state ?? "",
              cell: (t) => <StateBadge state={t.state} prefix="TASK_STATE_" />,
            },
            {
              name: "Worker",
              by: (t) => t.worker ?? "",
              cell: (t) => t.worker || t.replicas?.[0] || "",
            },
            {
              name: "Run time",
              right: true,
              by: (t) => millis(t.runTime),
              cell: (t) => (t.runTime ? duration(millis(t.runTime)) : "–"),
            },
            {
              name: "Result",
              right: true,
              by: (t) => num(t.outputBytes),
              cell: (t) => bytes(num(t.outputBytes)),
            },
            {
              name: "Attempts",
              right: true,
              by: (t) => t.attempt ?? 0,
              cell: (t) => t.attempt ?? 0,
            },
            {
              name: "Error",
              cell: (t) => (
                <div class="soft clip" style={{ maxWidth: "320px" }}>
                  {t.error?.message}
                </div>
              ),
            },
          ]}
        />
      </Card>
    </>
  );
}
