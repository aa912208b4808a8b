// The first page of a report: what ran in its time.

import { bytes, clock, count, duration, percent } from "../format";
import { type Frozen, frozen } from "../frozen";
import { runs } from "../runs";
import { useStore, workers } from "../store";
import { FlameCard } from "../ui/flame";
import { Bar, Card, Op, Stat, Table, Text } from "../ui/parts";

interface FunctionRow {
  op: number;
  count: number;
  failed: number;
  ms: number;
  bytes: number;
}

function functions(): FunctionRow[] {
  const rows = new Map<number, FunctionRow>();
  for (let i = 0; i < runs.size; i++) {
    const op = runs.opOf[i] ?? 0;
    const row = rows.get(op) ?? { op, count: 0, failed: 0, ms: 0, bytes: 0 };
    row.count++;
    row.failed += runs.of("state")[i] ? 1 : 0;
    row.ms += runs.of("run_ms")[i] ?? 0;
    row.bytes += runs.of("output_bytes")[i] ?? 0;
    rows.set(op, row);
  }
  return [...rows.values()];
}

export function ReportPage() {
  return frozen ? <Report of={frozen} /> : null;
}

function Report(props: { of: Frozen }) {
  const { of } = props;
  const list = [...useStore(workers).values()].filter((w) => w.state === "WORKER_STATE_ACTIVE");
  const slots = list.reduce((s, w) => s + (w.slots ?? 0), 0);
  const rows = functions();
  const sum = (figure: "count" | "failed" | "ms" | "bytes") =>
    rows.reduce((s, r) => s + r[figure], 0);
  // A report of all that is kept begins with the first attempt.
  const start = Math.max(Date.parse(of.start), runs.origin + runs.span()[0]);
  const took = Date.parse(of.end) - (Date.parse(of.start) || start);
  return (
    <>
      <div class="grid stats">
        <Stat
          title="Time"
          figure={duration(took)}
          note={`from ${clock(Date.parse(of.start) || start)} to ${clock(Date.parse(of.end))}`}
        />
        <Stat title="Attempts" figure={count(sum("count"))} note={`${sum("failed")} failed`} />
        <Stat
          title="Time in functions"
          figure={duration(sum("ms"))}
          note={`${percent(sum("ms"), Math.max(took, 1) * Math.max(slots, 1))} of ${slots} slots`}
        />
        <Stat title="Results" figure={bytes(sum("bytes"))} />
        <Stat title="Workers" figure={list.length} />
      </div>
      <Card title="Functions" bare>
        <Table
          label="Functions"
          rows={rows}
          id={(r) => r.op}
          sort="Run time"
          down
          columns={[
            {
              name: "Function",
              by: (r) => runs.ops[r.op] ?? "",
              cell: (r) => <Op name={runs.ops[r.op] ?? ""} />,
            },
            {
              name: "Share",
              cell: (r) => (
                <div style={{ minWidth: "160px" }}>
                  <Bar
                    label={runs.ops[r.op] ?? ""}
                    whole={sum("ms")}
                    parts={[{ name: "run time", value: r.ms, color: "var(--bar-running)" }]}
                  />
                </div>
              ),
            },
            { name: "Run time", right: true, by: (r) => r.ms, cell: (r) => duration(r.ms) },
            { name: "Attempts", right: true, by: (r) => r.count, cell: (r) => count(r.count) },
            {
              name: "Mean",
              right: true,
              by: (r) => r.ms / r.count,
              cell: (r) => duration(r.ms / r.count),
            },
            { name: "Results", right: true, by: (r) => r.bytes, cell: (r) => bytes(r.bytes) },
            { name: "Failed", right: true, by: (r) => r.failed, cell: (r) => count(r.failed) },
          ]}
        />
      </Card>
      <FlameCard title="Flame graph of all functions" of="" running={false} />
      {of.code && (
        <Card title="Code">
          <Text>{of.code}</Text>
        </Card>
      )}
    </>
  );
}
