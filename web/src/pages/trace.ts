// Writes the runs of a graph as a file that Perfetto opens.

import { phaseNames } from "../colors";
import { phases, runs } from "../runs";
import { workers } from "../store";
import type { Graph, Task } from "../types";

// save offers the file to the viewer. Times in it are in microseconds since 1970.
export function save(graph: Graph, tasks: Task[]): void {
  const wanted = new Set(tasks.map((t) => String(t.taskId)));
  const events: object[] = [];
  const seen = new Set<number>();
  const of = (f: Parameters<typeof runs.of>[0], i: number) => runs.of(f)[i] ?? 0;
  for (let i = 0; i < runs.size; i++) {
    if (!wanted.has(runs.tasks[i] ?? "")) continue;
    const lane = runs.lanes[runs.laneOf[i] ?? 0];
    if (!lane) continue;
    const [pid, tid] = [lane.worker, lane.slot];
    const at = (ms: number) => (runs.origin + ms) * 1000;
    if (!seen.has(pid)) {
      seen.add(pid);
      const name = workers.value.get(String(pid))?.name ?? `worker ${pid}`;
      events.push({ ph: "M", name: "process_name", pid, args: { name } });
    }
    const start = of("start_ms", i);
    const begin = start + of("deserialize_ms", i);
    const args = {
      key: runs.keys[i],
      task: runs.tasks[i],
      result_bytes: of("output_bytes", i),
      failed: of("state", i) !== 0,
    };
    events.push({
      ph: "X",
      cat: "task",
      name: runs.ops[runs.opOf[i] ?? 0],
      pid,
      tid,
      ts: at(begin),
      dur: of("run_ms", i) * 1000,
      args,
    });
    let before = start;
    for (const phase of ["wait", "spill", "fetch"] as const) {
      const ms = of(`${phase}_ms`, i);
      before -= ms;
      // Phases before the start overlap earlier runs of the slot, so they have tracks of their own.
      if (ms > 0)
        events.push({
          ph: "X",
          cat: phase,
          name: phaseNames[phase],
          pid,
          tid: 1000 + tid,
          ts: at(before),
          dur: ms * 1000,
          args: { task: args.task },
        });
    }
    for (const phase of phases.slice(3)) {
      const ms = of(`${phase}_ms`, i);
      const from = phase === "deserialize" ? start : begin + of("run_ms", i);
      if (ms > 0)
        events.push({
          ph: "X",
          cat: phase,
          name: phaseNames[phase],
          pid,
          tid,
          ts: at(from),
          dur: ms * 1000,
        });
    }
  }
  const blob = new Blob([JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" })], {
    type: "application/json",
  });
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = `millrace-g${graph.graphId}.json`;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
