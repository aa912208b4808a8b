// The table of the workers, and the orders that operators may give.

import { useState } from "preact/hooks";
import { call, messageOf } from "../api";
import { ago, bytes, count, num, plural, word } from "../format";
import { link } from "../router";
import { isOperator, session, useStore, workers } from "../store";
import type { Worker } from "../types";
import { Bar, Card, type Column, Dialog, Empty, StateBadge, Table, useNow } from "../ui/parts";

export function memoryParts(w: Worker) {
  return [{ name: "used", value: num(w.memoryUsedBytes), color: "var(--bar-running)" }];
}

// busySlots is the number of slots with a task. A worker may have more tasks than slots, so that none
// is idle between two.
export function busySlots(w: Worker): number {
  return Math.min(w.assignedTasks ?? 0, w.slots ?? 0);
}

export function WorkersPage() {
  const all = [...useStore(workers).values()];
  const now = useNow();
  const lost = all.filter((w) => w.state === "WORKER_STATE_LOST").length;
  const title = plural(all.length - lost, "worker") + (lost > 0 ? `, ${lost} lost` : "");
  const hasGpus = all.some((w) => w.gpu);
  const columns: Column<Worker>[] = [
    {
      name: "Worker",
      by: (w) => w.name ?? "",
      cell: (w) => <a href={link("workers", w.name ?? "")}>{w.name}</a>,
    },
    {
      name: "State",
      by: (w) => w.state ?? "",
      cell: (w) => <StateBadge state={w.state} prefix="WORKER_STATE_" />,
    },
    { name: "Host", by: (w) => w.host ?? "", cell: (w) => w.host },
    {
      name: "Slots",
      right: true,
      by: busySlots,
      cell: (w) => (
        <>
          {busySlots(w)} <span class="faint">/ {w.slots ?? 0}</span>
        </>
      ),
    },
    {
      name: "Finished",
      right: true,
      by: (w) => num(w.finishedTasks),
      cell: (w) => count(num(w.finishedTasks)),
    },
    {
      name: "Memory",
      by: (w) => num(w.memoryUsedBytes),
      cell: (w) => (
        <div style={{ minWidth: "150px" }}>
          <Bar label="Memory" whole={num(w.memoryLimitBytes)} parts={memoryParts(w)} height={6} />
          <span class="faint" style={{ fontSize: "12px" }}>
            {bytes(num(w.memoryUsedBytes))} / {bytes(num(w.memoryLimitBytes))}
          </span>
        </div>
      ),
    },
    {
      name: "On disk",
      right: true,
      by: (w) => num(w.spilledBytes),
      cell: (w) => bytes(num(w.spilledBytes)),
    },
    {
      name: "Received",
      right: true,
      by: (w) => num(w.receivedBytes),
      cell: (w) => bytes(num(w.receivedBytes)),
    },
    {
      name: "Sent",
      right: true,
      by: (w) => num(w.sentBytes),
      cell: (w) => bytes(num(w.sentBytes)),
    },
    {
      name: "Deaths",
      right: true,
      by: (w) => w.deathCount ?? 0,
      cell: (w) => (w.deathCount ? <span class="badge bad">{w.deathCount}</span> : 0),
    },
    {
      name: "Seen",
      right: true,
      cell: (w) => (
        <span class="faint">
          {w.state === "WORKER_STATE_ACTIVE" ? "now" : ago(w.lastSeenTime, now)}
        </span>
      ),
    },
  ];
  if (hasGpus) columns.splice(5, 0, ...gpuColumns);
  return (
    <Card title={title} bare>
      {all.length === 0 ? (
        <Empty title="No worker is registered" of="workers">
          Start one with “millrace worker”.
        </Empty>
      ) : (
        <Table
          label="Workers"
          rows={all}
          columns={columns}
          id={(w) => w.workerId ?? 0}
          sort="Worker"
        />
      )}
    </Card>
  );
}

const gpuColumns: Column<Worker>[] = [
  {
    name: "GPU",
    by: (w) => w.gpuHealth?.utilizationPercent ?? -1,
    cell: (w) =>
      w.gpuHealth ? (
        <div style={{ minWidth: "110px" }}>
          <Bar
            label="GPU"
            whole={100}
            height={6}
            parts={[
              {
                name: "busy",
                value: w.gpuHealth.utilizationPercent ?? 0,
                color: "var(--bar-done)",
              },
            ]}
          />
          <span class="faint" style={{ fontSize: "12px" }}>
            {w.gpuHealth.utilizationPercent ?? 0} % · {w.gpu?.name}
          </span>
        </div>
      ) : (
        "–"
      ),
  },
  {
    name: "Temp.",
    right: true,
    by: (w) => w.gpuHealth?.celsius ?? 0,
    cell: (w) =>
      w.gpuHealth ? (
        <span class={w.gpuHealth.throttleReasons?.length ? "badge warn" : ""}>
          {w.gpuHealth.celsius} °C
        </span>
      ) : (
        "–"
      ),
  },
  {
    name: "Power",
    right: true,
    by: (w) => w.gpuHealth?.watts ?? 0,
    cell: (w) => (w.gpuHealth ? `${Math.round(w.gpuHealth.watts ?? 0)} W` : "–"),
  },
  {
    name: "Xid",
    right: true,
    by: (w) => num(w.gpuHealth?.xids),
    cell: (w) =>
      num(w.gpuHealth?.xids) ? <span class="badge bad">{num(w.gpuHealth?.xids)}</span> : 0,
  },
];

interface Order {
  name: string;
  method: string;
  request: object;
  does: string;
}

function ordersFor(w: Worker): Order[] {
  const drained = word(w.state, "WORKER_STATE_").startsWith("drain");
  const orders: Order[] = [];
  if (drained) {
    orders.push({
      name: "Put back into use",
      method: "DrainWorkers",
      request: { undo: true },
      does: "It gets tasks again.",
    });
  } else {
    orders.push({
      name: "Drain",
      method: "DrainWorkers",
      request: {},
      does: "It gets no new tasks, finishes those that run, and others copy what it alone holds. Its process stays.",
    });
  }
  orders.push({
    name: "Retire",
    method: "RetireWorkers",
    request: {},
    does: "It is drained, and then its process ends for good.",
  });
  if (w.supervised) {
    orders.push({
      name: "Restart",
      method: "RestartWorkers",
      request: {},
      does: "It is drained, and then its process ends and is started again.",
    });
  }
  return orders;
}

// Orders are the buttons of operators. Each asks first.
export function Orders({ worker }: { worker: Worker }) {
  useStore(session);
  const [order, setOrder] = useState<Order | null>(null);
  if (!isOperator() || word(worker.state, "WORKER_STATE_") === "lost") return null;
  return (
    <>
      {ordersFor(worker).map((o) => (
        <button
          key={o.name}
          type="button"
          class={`button${o.name === "Retire" ? " danger" : ""}`}
          onClick={() => setOrder(o)}
        >
          {o.name}…
        </button>
      ))}
      {order && <Confirm worker={worker} order={order} onClose={() => setOrder(null)} />}
    </>
  );
}

function Confirm(props: { worker: Worker; order: Order; onClose: () => void }) {
  const [reason, setReason] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const { worker, order } = props;
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      // The number names this incarnation only; to undo a drain is about the name.
      const ref =
        order.request && "undo" in order.request ? { name: worker.name } : { id: worker.workerId };
      await call(order.method, { workers: [ref], reason, ...order.request });
      props.onClose();
    } catch (e) {
      setError(messageOf(e));
      setBusy(false);
    }
  };
  return (
    <Dialog label={`${order.name} ${worker.name}`} onClose={props.onClose}>
      <form onSubmit={submit}>
        <h2>
          {order.name}: {worker.name}
        </h2>
        <p class="soft" style={{ marginBottom: "14px" }}>
          {order.does}
        </p>
        {error && (
          <div class="notice bad round" role="alert">
            {error}
          </div>
        )}
        <label for="reason">Reason, for others who look at it</label>
        <input
          id="reason"
          class="field"
          value={reason}
          maxLength={1024}
          onInput={(e) => setReason(e.currentTarget.value)}
        />
        <div class="actions">
          <button class="button" type="button" onClick={props.onClose}>
            Cancel
          </button>
          <button class="button primary" type="submit" disabled={busy}>
            {order.name}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
