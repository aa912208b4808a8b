// The page of the memory: who holds what, and why it stays.

import type { ComponentChildren } from "preact";
import { call, callWorker, messageOf } from "../api";
import { flowing, flows } from "../flows";
import { bytes, count, duration, millis, num, percent, plural, rate } from "../format";
import { Holders, keepersOf, Users } from "../keepers";
import { link, place, setQuery } from "../router";
import { useStore, workers } from "../store";
import type { Holding, Keeper, Memory, Task, Worker } from "../types";
import { FreePiece } from "../ui/freepiece";
import { Bar, Card, Empty, Op, Stat, Table, TaskLink, useCall } from "../ui/parts";

interface Row extends Holding {
  worker: string;
  bytes: number;
  pinned: boolean;
  task: Task | undefined;
  keepers: Keeper[] | undefined;
}

interface Read {
  rows: Row[];
  tiers: { worker: string; memory: Memory }[];
  failed: { worker: string; error: string }[];
}

// The largest number of workers whose memory is read at once.
const readWorkers = 32;
// The largest holdings, of which the page says why they stay.
const explained = 30;

async function read(names: string[]): Promise<Read> {
  const result: Read = { rows: [], tiers: [], failed: [] };
  await Promise.all(
    names.slice(0, readWorkers).map(async (worker) => {
      try {
        const memory = await callWorker<Memory>(worker, "DescribeMemory", { limit: 30 });
        result.tiers.push({ worker, memory });
        const pinned = new Set((memory.pinned ?? []).map((h) => `${h.taskId}/${h.reservationId}`));
        for (const h of memory.largest ?? []) {
          const size = (h.tierBytes ?? []).reduce<number>((s, b) => s + num(b), 0);
          result.rows.push({
            ...h,
            worker,
            bytes: size,
            pinned: pinned.has(`${h.taskId}/${h.reservationId}`),
            task: undefined,
            keepers: undefined,
          });
        }
      } catch (e) {
        result.failed.push({ worker, error: messageOf(e) });
      }
    }),
  );
  result.rows.sort((a, b) => b.bytes - a.bytes);
  result.rows.splice(60);
  // The scheduler knows why a result stays: its holders, and the tasks that need it.
  const rows = result.rows.slice(0, explained).filter((row) => num(row.taskId));
  const keepers = keepersOf(rows.map((row) => String(row.taskId)));
  await Promise.all(
    rows.map(async (row) => {
      const found = await call<{ task: Task }>("GetTask", {
        task: { id: String(row.taskId) },
      }).catch(() => null);
      row.task = found?.task;
      row.keepers = (await keepers)[String(row.taskId)];
    }),
  );
  result.tiers.sort((a, b) => a.worker.localeCompare(b.worker, "en", { numeric: true }));
  return result;
}

// Why says why a holding stays in memory.
function Why({ row }: { row: Row }) {
  const t = row.task;
  const parts: ComponentChildren[] = [];
  if (row.owner) {
    const o = row.owner;
    if (o.taskId)
      parts.push(
        <>
          reserved for task <TaskLink id={o.taskId} />
        </>,
      );
    else if (o.executorSlot !== undefined)
      parts.push(`reserved by the executor of slot ${o.executorSlot}`);
    else if (o.workerId) parts.push(`reserved for worker #${o.workerId}`);
    else parts.push("reserved for a client that writes");
  }
  if (t?.holders) parts.push(<Holders of={row.keepers} total={t.holders} />);
  if (t?.waitingDependents) parts.push(<Users of={row.keepers} total={t.waitingDependents} />);
  if (row.pins?.length) parts.push(`pinned: ${row.pins.slice(0, 2).join(", ")}`);
  if (row.leaseCount) parts.push(`${plural(row.leaseCount, "reader")} outside`);
  if (row.copy) parts.push("a copy");
  if (parts.length === 0 && t) parts.push("nothing needs it any more");
  return (
    <span class="soft">
      {parts.map((part, i) => (
        <span key={i}>
          {i > 0 && "; "}
          {part}
        </span>
      ))}
    </span>
  );
}

// spills says what a worker moves between its memory and the tiers below.
function spills(w: Worker | undefined): string {
  const { written = 0, read = 0 } = flows.of(String(w?.workerId ?? 0));
  return written + read > 0 ? `; spills ${rate(written)}, reads ${rate(read)} back` : "";
}

export function MemoryPage() {
  const { query } = useStore(place);
  const only = query.get("worker") ?? "";
  const all = [...useStore(workers).values()].filter((w) => w.state !== "WORKER_STATE_LOST");
  const names = all
    .map((w) => w.name ?? "")
    .filter((n) => only === "" || n === only)
    .sort();
  const memory = useCall(() => read(names), [names.join()], 3000);
  const sum = (f: (w: Worker) => unknown) => all.reduce((s, w) => s + num(f(w)), 0);
  const moving = { written: 0, read: 0 };
  for (const w of all) {
    const { written = 0, read = 0 } = flows.of(String(w.workerId ?? 0));
    moving.written += written;
    moving.read += read;
  }
  const rows = memory.value?.rows ?? [];
  const waiting = (memory.value?.tiers ?? []).flatMap((t) =>
    (t.memory.reservations ?? [])
      .filter((r) => !r.granted)
      .map((r) => ({ ...r, worker: t.worker })),
  );
  return (
    <>
      {only !== "" && names.length === 0 && (
        <div class="notice round" role="alert">
          No worker {only} is registered now. Choose another one below.
        </div>
      )}
      <div class="grid stats" style={{ marginBottom: "14px" }}>
        <Stat
          title="Memory"
          figure={bytes(sum((w) => w.memoryUsedBytes))}
          note={`of ${bytes(sum((w) => w.memoryLimitBytes))}`}
        />
        <Stat
          title="On disk"
          figure={bytes(sum((w) => w.spilledBytes))}
          note="for results that memory has no room for"
        />
        <Stat
          title="Spilling"
          figure={flowing(moving.written)}
          note={`${flowing(moving.read)} read back; ${bytes(sum((w) => w.spillWrittenBytes))} and ${bytes(sum((w) => w.spillReadBytes))} since the start`}
        />
        <Stat
          title="Objects"
          figure={count(sum((w) => w.objects))}
          note={`on ${plural(all.length, "worker")}`}
        />
        <Stat
          title="Waiting for memory"
          figure={waiting.length}
          unit="requests"
          note={
            waiting.length
              ? `oldest ${duration(Math.max(...waiting.map((r) => millis(r.age))))}`
              : "none waits"
          }
        />
      </div>
      <div class="bar-of-controls">
        <select
          class="field"
          aria-label="Worker"
          value={only}
          onChange={(e) => setQuery({ worker: e.currentTarget.value })}
        >
          <option value="">all workers</option>
          {all.map((w) => (
            <option key={w.name} value={w.name}>
              {w.name}
            </option>
          ))}
        </select>
        {all.length > readWorkers && only === "" && (
          <span class="faint">The first {readWorkers} workers are shown.</span>
        )}
      </div>
      {memory.value?.failed.map((f) => (
        <div class="notice round" key={f.worker}>
          {f.worker} cannot be read: {f.error}
        </div>
      ))}
      <div class="grid two">
        <Card title="Largest holders" bare>
          {rows.length === 0 ? (
            <Empty title={memory.value ? "No worker holds anything" : "Reading the workers"} />
          ) : (
            <Table
              label="Largest holders"
              rows={rows}
              id={(r) => `${r.worker}-${r.taskId}-${r.reservationId}`}
              columns={[
                {
                  name: "Holder",
                  cell: (r) => (
                    <div style={{ width: "210px" }} class="clip">
                      {num(r.taskId) ? (
                        <>
                          {r.task?.op?.name && <Op name={r.task.op.name} />}
                          <div class="clip">
                            <TaskLink id={r.taskId} name={r.task?.key} />
                          </div>
                        </>
                      ) : (
                        `reservation ${r.reservationId}`
                      )}
                    </div>
                  ),
                },
                {
                  name: "Worker",
                  by: (r) => r.worker,
                  cell: (r) => <a href={link("workers", r.worker)}>{r.worker}</a>,
                },
                {
                  name: "Memory",
                  right: true,
                  by: (r) => num(r.tierBytes?.[0]),
                  cell: (r) => bytes(num(r.tierBytes?.[0])),
                },
                {
                  name: "Below",
                  right: true,
                  by: (r) => r.bytes - num(r.tierBytes?.[0]),
                  cell: (r) => bytes(r.bytes - num(r.tierBytes?.[0])),
                },
                { name: "Why it stays", cell: (r) => <Why row={r} /> },
              ]}
            />
          )}
        </Card>
        <div class="column">
          {(memory.value?.tiers ?? []).map(({ worker, memory: m }) => (
            <Card key={worker} title={worker} aside={<a href={link("workers", worker)}>Worker</a>}>
              {(m.tiers ?? []).map((t) => (
                <div class="meter" key={t.name}>
                  <span class="soft">{t.name}</span>
                  <Bar
                    label={`${worker} ${t.name}`}
                    whole={num(t.sizeBytes)}
                    parts={[
                      {
                        name: "must stay",
                        value: Math.max(0, num(t.objectBytes) - num(t.evictableBytes)),
                        color: "#6f67e8",
                      },
                      {
                        name: "could leave",
                        value: Math.min(num(t.evictableBytes), num(t.objectBytes)),
                        color: "#a9bdf5",
                      },
                      {
                        name: "no objects",
                        value: Math.max(0, num(t.usedBytes) - num(t.objectBytes)),
                        color: "#8d99ab",
                      },
                    ]}
                  />
                  <span class="what nowrap">
                    {bytes(num(t.usedBytes))}{" "}
                    <span class="faint">{percent(num(t.usedBytes), num(t.sizeBytes))}</span>
                  </span>
                  <FreePiece tier={t} />
                </div>
              ))}
              <div class="faint" style={{ fontSize: "12px" }}>
                {plural(num(m.smallObjectCount), "small object")} with{" "}
                {bytes(num(m.smallObjectBytes))}; process {bytes(num(m.rssBytes))}
                {spills(all.find((w) => w.name === worker))}
              </div>
              {(m.tiers ?? []).map(
                (t) =>
                  t.failure && (
                    <div key={t.name} class="notice bad round">
                      {t.failure}
                    </div>
                  ),
              )}
            </Card>
          ))}
          {names.length > 0 && (
            <div class="legend">
              <span>
                <i class="swatch" style={{ background: "#6f67e8" }} />
                objects that must stay
              </span>
              <span>
                <i class="swatch" style={{ background: "#a9bdf5" }} />
                objects that could leave
              </span>
              <span>
                <i class="swatch" style={{ background: "#8d99ab" }} />
                reservations and unused parts of blocks
              </span>
            </div>
          )}
        </div>
      </div>
      {waiting.length > 0 && (
        <Card title="Requests that wait for memory" bare>
          <Table
            label="Requests that wait for memory"
            rows={waiting}
            id={(r) => `${r.worker}-${r.reservationId}`}
            columns={[
              { name: "Worker", cell: (r) => r.worker },
              {
                name: "For",
                cell: (r) =>
                  r.owner?.taskId ? <TaskLink id={r.owner.taskId} /> : "another process",
              },
              {
                name: "Wants",
                right: true,
                by: (r) => num(r.requestedBytes),
                cell: (r) => bytes(num(r.requestedBytes)),
              },
              {
                name: "Waits",
                right: true,
                by: (r) => millis(r.age),
                cell: (r) => duration(millis(r.age)),
              },
            ]}
          />
        </Card>
      )}
    </>
  );
}
