// The list of the graphs.

import { ago, count, duration, num, plural } from "../format";
import { link } from "../router";
import { graphs, useStore } from "../store";
import type { Counts, Graph } from "../types";
import { Bar, Card, Empty, type Part, StateBadge, Table, useNow } from "../ui/parts";

export function partsOf(c: Counts | undefined): Part[] {
  const n = (...states: (keyof Counts)[]) => states.reduce((s, state) => s + num(c?.[state]), 0);
  return [
    { name: "done", value: n("succeeded"), color: "var(--bar-done)" },
    { name: "released", value: n("released"), color: "var(--bar-released)" },
    { name: "failed", value: n("failed", "cancelled"), color: "var(--bar-failed)" },
    { name: "running", value: n("running", "assigned", "rescuing"), color: "var(--bar-running)" },
    { name: "waiting", value: n("waiting", "ready"), color: "var(--bar-waiting)" },
  ];
}

export function sizeOf(c: Counts | undefined): number {
  return partsOf(c).reduce((s, p) => s + p.value, 0);
}

export function Graphs() {
  const all = [...useStore(graphs).values()];
  const now = useNow();
  return (
    <Card title={plural(all.length, "graph")} bare>
      {all.length === 0 ? (
        <Empty title="No graph was submitted yet" of="graphs" />
      ) : (
        <Table<Graph>
          label="Graphs"
          rows={all}
          id={(g) => String(g.graphId)}
          sort="Graph"
          down
          columns={[
            {
              name: "Graph",
              by: (g) => num(g.graphId),
              cell: (g) => (
                <a href={link("graphs", String(g.graphId))}>
                  g{g.graphId} {g.name}
                </a>
              ),
            },
            {
              name: "State",
              by: (g) => g.state ?? "",
              cell: (g) => <StateBadge state={g.state} prefix="GRAPH_STATE_" />,
            },
            {
              name: "Progress",
              cell: (g) => (
                <div style={{ minWidth: "220px" }}>
                  <Bar label={`g${g.graphId}`} parts={partsOf(g.counts)} />
                </div>
              ),
            },
            {
              name: "Tasks",
              right: true,
              by: (g) => sizeOf(g.counts),
              cell: (g) => count(sizeOf(g.counts)),
            },
            {
              name: "Failed",
              right: true,
              by: (g) => num(g.counts?.failed),
              cell: (g) =>
                num(g.counts?.failed) ? (
                  <span class="badge bad">{count(num(g.counts?.failed))}</span>
                ) : (
                  0
                ),
            },
            {
              name: "Namespace",
              by: (g) => g.namespace ?? "",
              cell: (g) => g.namespace || "default",
            },
            {
              name: "Took",
              right: true,
              cell: (g) =>
                duration(
                  (g.endTime ? Date.parse(g.endTime) : now) - Date.parse(g.createTime ?? ""),
                ),
            },
            {
              name: "Submitted",
              right: true,
              by: (g) => g.createTime ?? "",
              cell: (g) => ago(g.createTime, now),
            },
            {
              name: "First error",
              cell: (g) => (
                <div class="soft clip" style={{ maxWidth: "340px" }} title={g.firstError}>
                  {g.firstError}
                </div>
              ),
            },
          ]}
        />
      )}
    </Card>
  );
}
