// The page of one worker.

import { call, callWorker, isMissing, messageOf } from "../api";
import { flowing, flows } from "../flows";
import { ago, bytes, count, duration, millis, num, plural, rate, readable, word } from "../format";
import { frozen } from "../frozen";
import { link } from "../router";
import { useRoutes, useStore, workers } from "../store";
import type {
  ExecutorProcess,
  Int64,
  LogLine,
  Memory,
  NetworkDevice,
  Route,
  Task,
  Worker,
} from "../types";
import { FreePiece } from "../ui/freepiece";
import {
  Bar,
  Card,
  type Column,
  Empty,
  Facts,
  Missing,
  Op,
  Stat,
  StateBadge,
  Table,
  TaskLink,
  Text,
  useCall,
  useNow,
} from "../ui/parts";
import { LogLines } from "./activity";
import { busySlots, memoryParts, Orders } from "./workers";

export function WorkerPage(props: { name: string }) {
  const routesOf = useRoutes();
  // The newest incarnation: those before it are lost.
  const known = [...useStore(workers).values()]
    .filter((w) => w.name === props.name)
    .sort((a, b) => (b.workerId ?? 0) - (a.workerId ?? 0))[0];
  const looked = useCall(
    () =>
      call<{ worker: Worker }>("GetWorker", {
        worker: { name: props.name },
        view: "WORKER_VIEW_FULL",
      }),
    [props.name, known?.state],
    5000,
  );
  const found = looked.value?.worker;
  // The stream sends what network devices carry only when something else changes.
  const w = found ? { ...found, ...known, networkDevices: found.networkDevices } : known;
  const now = useNow();
  if (!w && isMissing(looked.error)) {
    return (
      <Missing
        what={`worker ${props.name}`}
        why="The scheduler knows the workers that are registered, and the latest that were lost. They are on the page"
        section="workers"
        list="Workers & GPUs"
      />
    );
  }
  if (!w) return <Empty title={looked.error ? messageOf(looked.error) : "Looking up the worker"} />;
  const state = word(w.state, "WORKER_STATE_");
  const lost = state === "lost";
  const flow = flows.of(String(w.workerId ?? 0));
  return (
    <>
      <div class="bar-of-controls">
        <StateBadge state={w.state} prefix="WORKER_STATE_" />
        <span class="soft">
          {w.host}, process {num(w.pid)}
          {w.gpu?.name ? `, ${w.gpu.name}` : ""}
        </span>
        <div class="space" />
        <Orders worker={w} />
      </div>
      {w.spillFailure && (
        <div class="notice bad round">It cannot write to its disk: {w.spillFailure}</div>
      )}
      {w.drain && <Drain worker={w} />}
      <div class="grid stats">
        <Stat
          title="Slots"
          figure={`${busySlots(w)} / ${w.slots ?? 0}`}
          note={`${plural(w.assignedTasks ?? 0, "task")} assigned, ${count(num(w.finishedTasks))} finished`}
        />
        <Stat
          title="Memory"
          figure={bytes(num(w.memoryUsedBytes))}
          note={`of ${bytes(num(w.memoryLimitBytes))}, ${plural(num(w.objects), "object")}`}
        >
          <Bar label="Memory" whole={num(w.memoryLimitBytes)} parts={memoryParts(w)} />
        </Stat>
        <Stat
          title="On disk"
          figure={bytes(num(w.spilledBytes))}
          note={`${flowing(flow.written)} written, ${flowing(flow.read)} read; ${bytes(num(w.spillWrittenBytes))} and ${bytes(num(w.spillReadBytes))} so far`}
        />
        <Stat
          title="Transfers"
          figure={flowing(flow.received)}
          unit="received"
          note={`${flowing(flow.sent)} sent; ${bytes(num(w.receivedBytes))} and ${bytes(num(w.sentBytes))} so far`}
        />
        <Stat
          title="Deaths"
          figure={w.deathCount ?? 0}
          note={`${num(w.executorDeaths)} of its executors`}
        />
      </div>
      {w.gpu && <Gpu worker={w} />}
      <div class="grid even">
        <Card title="Process">
          <Facts
            of={[
              ["Started", ago(w.createTime, now)],
              ["Last seen", ago(w.lastSeenTime, now)],
              ["Data address", <span class="mono">{w.dataAddress}</span>],
              ["Resident memory", bytes(num(w.rssBytes))],
              ["Executors", w.executors?.join(", ")],
              [
                "Resources",
                Object.entries(w.resources ?? {})
                  .map(([k, v]) => `${k} ${v}`)
                  .join(", "),
              ],
              ["Supervised", w.supervised ? "yes" : "no"],
              ["Version", w.version],
              ["Last executor death", w.lastExecutorDeath],
            ]}
          />
        </Card>
        {!lost && <Running name={props.name} />}
        {(w.networkDevices?.length ?? 0) > 0 && (
          <Network devices={w.networkDevices ?? []} reports={reports(w)} />
        )}
      </div>
      {!lost && !frozen && w.executors?.some((kind) => kind !== "native") && (
        <Executors name={props.name} now={now} />
      )}
      {!lost && <Tiers name={props.name} />}
      {routesOf(w).length > 0 && <Routes routes={routesOf(w)} />}
      {(w.deaths?.length ?? 0) > 0 && <Deaths worker={w} now={now} />}
      {!lost && <Tail name={props.name} />}
    </>
  );
}

// reports says whether a worker tells what it does now. The figures of others are the last that it
// told.
function reports(worker: Worker): boolean {
  return ["active", "draining", "drained"].includes(word(worker.state, "WORKER_STATE_"));
}

function Drain({ worker }: { worker: Worker }) {
  const d = worker.drain;
  if (!d) return null;
  const figures = [
    `${plural(num(d.copiedObjects), "object")} copied (${bytes(num(d.copiedBytes))})`,
    `${count(num(d.remainingObjects))} remain (${bytes(num(d.remainingBytes))})`,
    `${count(num(d.stayingObjects))} cannot be copied.`,
  ];
  return (
    <div class="notice round">
      <strong>{word(d.purpose, "DRAIN_PURPOSE_")}</strong>
      {d.reason ? ` (${d.reason})` : ""}
      {/* Nothing is known of what an absent worker has. */}
      {reports(worker) ? `: ${figures.join(", ")}` : ""}
      {d.staying?.slice(0, 5).map((s) => (
        <div key={s.taskId}>
          <TaskLink id={s.taskId} name={s.key} /> {bytes(num(s.bytes))}: {s.reason}
        </div>
      ))}
    </div>
  );
}

// traffic says what the links of a GPU carry; it has nothing that the driver does not count.
function traffic(worker: Worker): [string, string][] {
  const h = worker.gpuHealth ?? {};
  const flow = flows.of(String(worker.workerId ?? 0));
  const said: [string, string][] = [];
  if (h.nvLinkReceivedBytes !== undefined)
    said.push([
      "Over NVLink",
      `${flowing(flow.nvLinkReceived)} received, ${flowing(flow.nvLinkSent)} sent; ${bytes(num(h.nvLinkReceivedBytes))} and ${bytes(num(h.nvLinkSentBytes))} so far`,
    ]);
  if (h.pcieReceivedBytesPerSecond !== undefined && reports(worker))
    said.push([
      "Over PCIe",
      `${rate(h.pcieReceivedBytesPerSecond)} received, ${rate(h.pcieSentBytesPerSecond ?? 0)} sent`,
    ]);
  return said;
}

// Network says what the devices carry by which the worker reaches others: of all programs of its
// host, or of its container if that has a network of its own. Rates are those of a worker that
// reports.
function Network({ devices, reports }: { devices: NetworkDevice[]; reports: boolean }) {
  const rateOf = (perSecond: number | undefined) =>
    perSecond === undefined || !reports ? "–" : rate(perSecond);
  return (
    <Card title="Network devices" aside="all programs of the host" bare>
      <Table
        label="Network devices"
        rows={devices}
        id={(d) => d.name ?? ""}
        columns={[
          { name: "Device", by: (d) => d.name ?? "", cell: (d) => d.name },
          {
            name: "Receives",
            right: true,
            by: (d) => d.receivedBytesPerSecond ?? -1,
            cell: (d) => rateOf(d.receivedBytesPerSecond),
          },
          {
            name: "Sends",
            right: true,
            by: (d) => d.sentBytesPerSecond ?? -1,
            cell: (d) => rateOf(d.sentBytesPerSecond),
          },
          {
            name: "Received",
            right: true,
            by: (d) => num(d.receivedBytes),
            cell: (d) => bytesOf(d.receivedBytes),
          },
          {
            name: "Sent",
            right: true,
            by: (d) => num(d.sentBytes),
            cell: (d) => bytesOf(d.sentBytes),
          },
        ]}
      />
    </Card>
  );
}

function bytesOf(sum: Int64 | undefined): string {
  return sum === undefined ? "–" : bytes(num(sum));
}

function Gpu({ worker }: { worker: Worker }) {
  const h = worker.gpuHealth ?? {};
  const g = worker.gpu ?? {};
  const total = num(g.memoryBytes);
  return (
    <div class="grid even" style={{ margin: "14px 0" }}>
      <Card title={g.name || "GPU"}>
        <div class="meter">
          <span class="soft">kernels</span>
          <Bar
            label="Kernels"
            whole={100}
            parts={[{ name: "busy", value: h.utilizationPercent ?? 0, color: "var(--bar-done)" }]}
          />
          <span class="what">{h.utilizationPercent ?? 0} %</span>
        </div>
        <div class="meter">
          <span class="soft">memory bus</span>
          <Bar
            label="Memory bus"
            whole={100}
            parts={[{ name: "busy", value: h.memoryPercent ?? 0, color: "var(--bar-running)" }]}
          />
          <span class="what">{h.memoryPercent ?? 0} %</span>
        </div>
        <div class="meter">
          <span class="soft">memory</span>
          <Bar
            label="GPU memory"
            whole={total}
            parts={[
              {
                name: "ours",
                value: num(h.usedBytes) - num(h.foreignBytes),
                color: "var(--bar-running)",
              },
              { name: "others", value: num(h.foreignBytes), color: "var(--bar-failed)" },
            ]}
          />
          <span class="what nowrap">
            {bytes(num(h.usedBytes))} / {bytes(total)}
          </span>
        </div>
        {h.throttleReasons?.length ? (
          <div class="notice round">The clock is lowered: {h.throttleReasons.join(", ")}</div>
        ) : null}
      </Card>
      <Card title="GPU health">
        <Facts
          of={[
            ["Clock", `${h.clockMhz ?? 0} MHz`],
            ["Temperature", `${h.celsius ?? 0} °C`],
            ["Power", `${Math.round(h.watts ?? 0)} W`],
            ["Xid errors", num(h.xids) ? <span class="badge bad">{num(h.xids)}</span> : "none"],
            ["Last event", h.lastEvent],
            [
              "ECC errors",
              `${num(h.correctedEccErrors)} corrected, ${num(h.uncorrectedEccErrors)} not`,
            ],
            ["Other processes", `${h.foreignProcesses ?? 0} with ${bytes(num(h.foreignBytes))}`],
            ["Place", g.placement],
            ["PCI", g.pciBusId],
            ["Network cards", g.netDevices],
            ["NVLink", (g.links ?? []).map((l) => `${l.nvLinks ?? 0} links`).join(", ")],
            ...traffic(worker),
          ]}
        />
      </Card>
    </div>
  );
}

function Running(props: { name: string }) {
  const tasks = useCall(
    () =>
      call<{ tasks?: Task[] }>("ListTasks", {
        worker: { name: props.name },
        states: ["TASK_STATE_ASSIGNED", "TASK_STATE_RUNNING"],
        pageSize: 50,
      }),
    [props.name],
    2000,
  );
  const rows = tasks.value?.tasks ?? [];
  return (
    <Card title="Running now" bare>
      {rows.length === 0 ? (
        <Empty title={tasks.error ? messageOf(tasks.error) : "Nothing runs"} />
      ) : (
        <Table
          label="Running now"
          rows={rows}
          id={(t) => t.taskId ?? 0}
          columns={[
            { name: "Task", cell: (t) => <TaskLink id={t.taskId} name={t.key} /> },
            { name: "Function", cell: (t) => <Op name={t.op?.name ?? ""} /> },
            { name: "State", cell: (t) => <StateBadge state={t.state} prefix="TASK_STATE_" /> },
          ]}
        />
      )}
    </Card>
  );
}

// The largest number of processes that the page shows.
const shownProcesses = 200;

// Executors lists the processes that run functions, and those that would replace one.
function Executors(props: { name: string; now: number }) {
  const found = useCall(
    () =>
      callWorker<{ processes?: ExecutorProcess[]; processCount?: number }>(
        props.name,
        "DescribeExecutors",
        { limit: shownProcesses },
        "ExecutorService",
      ),
    [props.name],
    2000,
  );
  const rows = found.value?.processes ?? [];
  const total = found.value?.processCount ?? 0;
  return (
    <Card
      title="Executor processes"
      aside={total > rows.length ? `${rows.length} of ${count(total)}` : undefined}
      bare
    >
      {found.error && rows.length > 0 ? (
        <div class="notice bad round">{messageOf(found.error)}</div>
      ) : null}
      {rows.length === 0 ? (
        <Empty
          title={
            found.error
              ? messageOf(found.error)
              : found.value
                ? "No process is alive"
                : "Asking the worker"
          }
        >
          {found.value ? "They start when tasks need them." : undefined}
        </Empty>
      ) : (
        <Table
          label="Executor processes"
          rows={rows}
          id={(p) => String(p.pid)}
          columns={[
            {
              name: "Executor",
              by: (p) => `${p.kind} ${String(p.slot ?? 1e6).padStart(7, "0")}`,
              cell: (p) => (
                <>
                  {p.kind}{" "}
                  <span class="faint">{p.slot === undefined ? "no slot" : `slot ${p.slot}`}</span>
                </>
              ),
            },
            { name: "Process", right: true, by: (p) => num(p.pid), cell: (p) => String(p.pid) },
            {
              name: "State",
              by: (p) => p.state ?? "",
              cell: (p) => <StateBadge state={p.state} prefix="EXECUTOR_STATE_" />,
            },
            {
              name: "Task",
              cell: (p) =>
                num(p.taskId) ? (
                  <>
                    <Op name={p.op ?? ""} /> <TaskLink id={p.taskId} name={p.key} />
                  </>
                ) : (
                  ""
                ),
            },
            {
              name: "Since",
              right: true,
              by: (p) => p.stateTime ?? "",
              cell: (p) => ago(p.stateTime, props.now),
            },
            {
              name: "Queued",
              right: true,
              by: (p) => p.queuedTasks ?? 0,
              cell: (p) => count(p.queuedTasks ?? 0),
            },
            {
              name: "Tasks ended",
              right: true,
              by: (p) => num(p.finishedTasks),
              cell: (p) => count(num(p.finishedTasks)),
            },
            {
              name: "Memory",
              right: true,
              by: (p) => num(p.memoryBytes),
              cell: (p) => bytes(num(p.memoryBytes)),
            },
            {
              name: "Started",
              right: true,
              by: (p) => p.createTime ?? "",
              cell: (p) => ago(p.createTime, props.now),
            },
          ]}
        />
      )}
    </Card>
  );
}

function Tiers(props: { name: string }) {
  const memory = useCall(
    () => callWorker<Memory>(props.name, "DescribeMemory", { limit: 1 }),
    [props.name],
    3000,
  );
  const tiers = memory.value?.tiers ?? [];
  if (tiers.length === 0) return null;
  return (
    <Card
      title="Memory by tier"
      aside={<a href={`${link("memory")}?worker=${encodeURIComponent(props.name)}`}>Holders</a>}
    >
      {tiers.map((t) => (
        <div class="meter" key={t.name}>
          <span class="soft">{t.name}</span>
          <Bar
            label={t.name ?? ""}
            whole={num(t.sizeBytes)}
            parts={[
              { name: "objects", value: num(t.objectBytes), color: "var(--bar-running)" },
              {
                name: "other",
                value: Math.max(0, num(t.usedBytes) - num(t.objectBytes)),
                color: "#9b7bea",
              },
            ]}
          />
          <span class="what nowrap">
            {bytes(num(t.usedBytes))} <span class="faint">/ {bytes(num(t.sizeBytes))}</span>
          </span>
          <FreePiece tier={t} />
        </div>
      ))}
    </Card>
  );
}

// Routes lists routes; those of several readers name the reader.
export function Routes(props: { title?: string; routes: (Route & { reader?: string })[] }) {
  return (
    <Card title={props.title ?? "Routes"} bare>
      <Table
        label="Routes"
        rows={props.routes}
        id={(r) => `${r.reader}-${r.peerWorkerId}-${r.path}`}
        columns={columnsOf(props.routes.some((r) => r.reader))}
      />
    </Card>
  );
}

function Deaths(props: { worker: Worker; now: number }) {
  return (
    <Card title="Deaths of its processes">
      {[...(props.worker.deaths ?? [])].reverse().map((d) => (
        <div key={`${d.pid}-${d.endTime}`} style={{ padding: "6px 0" }}>
          <strong>{d.cause}</strong>{" "}
          <span class="faint">
            process {num(d.pid)}, {ago(d.endTime, props.now)}
          </span>
          {d.runningKeys?.length ? (
            <div class="soft">It ran {d.runningKeys.slice(0, 5).join(", ")}.</div>
          ) : null}
          {d.logTail && <Text height={180}>{readable(d.logTail)}</Text>}
        </div>
      ))}
    </Card>
  );
}

function Tail(props: { name: string }) {
  const log = useCall(
    () => callWorker<{ lines?: LogLine[] }>(props.name, "GetWorkerLog", { limit: 100 }),
    [props.name],
    3000,
  );
  const lines = log.value?.lines ?? [];
  return (
    <Card
      title="Log"
      aside={<a href={`${link("logs")}?from=${encodeURIComponent(props.name)}`}>All logs</a>}
      bare
    >
      {lines.length === 0 ? (
        <Empty title={log.error ? messageOf(log.error) : "No lines"} />
      ) : (
        <LogLines
          lines={lines
            .slice(-100)
            .reverse()
            .map((l) => ({ ...l, from: props.name }))}
          height={320}
        />
      )}
    </Card>
  );
}

function columnsOf(readers: boolean): Column<Route & { reader?: string }>[] {
  const columns: Column<Route & { reader?: string }>[] = [
    {
      name: "From",
      by: (r) => r.peer ?? "",
      cell: (r) => <a href={link("workers", r.peer ?? "")}>{r.peer}</a>,
    },
    {
      name: "Path",
      by: (r) => r.path ?? "",
      cell: (r) => `${word(r.path, "TRANSFER_PATH_")} ${r.transport ?? ""}`,
    },
    {
      name: "State",
      by: (r) => r.state ?? "",
      cell: (r) => <StateBadge state={r.state} prefix="ROUTE_STATE_" />,
    },
    {
      name: "Rate",
      right: true,
      by: (r) => r.bytesPerSecond ?? 0,
      cell: (r) => (r.bytesPerSecond ? rate(r.bytesPerSecond) : "–"),
    },
    {
      name: "Latency",
      right: true,
      by: (r) => millis(r.latency),
      cell: (r) => (r.latency ? duration(millis(r.latency)) : "–"),
    },
    {
      name: "Received",
      right: true,
      by: (r) => num(r.receivedBytes),
      cell: (r) => bytes(num(r.receivedBytes)),
    },
    {
      name: "Fetches",
      right: true,
      by: (r) => num(r.succeededFetches),
      cell: (r) => count(num(r.succeededFetches)),
    },
    {
      name: "Failed",
      right: true,
      by: (r) => num(r.failedFetches),
      cell: (r) => count(num(r.failedFetches)),
    },
    {
      name: "Why",
      cell: (r) => (
        <span class="soft">
          {r.reason || r.connectionReason || (r.staged ? `staged at ${r.staged}` : "")}
        </span>
      ),
    },
  ];
  if (readers) {
    columns.unshift({
      name: "Reader",
      by: (r) => r.reader ?? "",
      cell: (r) => r.reader,
    });
  }
  return columns;
}
