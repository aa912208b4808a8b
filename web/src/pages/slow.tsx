// The part of the overview that says why tasks take long.

import { useEffect, useState } from "preact/hooks";
import { call, get } from "../api";
import { diagnose, type Finding, type Running } from "../diagnosis";
import { Flows, movedBy } from "../flows";
import { clock } from "../format";
import { frozen } from "../frozen";
import { type RunBatch, runs } from "../runs";
import { summary, workers } from "../store";
import type { Task } from "../types";
import { Card } from "../ui/parts";

const everyMs = 4000;
// The finished attempts and the running tasks that are looked at.
const attempts = 2000;
const looked = 64;
// Spilling is measured over this time.
const spillMs = 30_000;

class Observer {
  private flows = new Flows(spillMs);

  private async running(now: number): Promise<Running[]> {
    const found = await call<{ tasks?: Task[] }>("ListTasks", {
      states: ["TASK_STATE_RUNNING"],
      pageSize: looked,
    });
    return (found.tasks ?? []).map((t) => ({
      task: String(t.taskId),
      key: t.key ?? "",
      op: t.op?.name ?? "",
      worker: t.worker ?? "",
      ms: t.startTime ? now - Date.parse(t.startTime) : 0,
    }));
  }

  private spilling(now: number): { spilling: Map<string, number>; spillingSince: number } {
    const here = [...workers.value.values()].filter((w) => w.state !== "WORKER_STATE_LOST");
    this.flows.take(
      now,
      here.map((w) => [String(w.workerId), movedBy(w)]),
    );
    const rates = here.map((w): [string, number] => {
      const { written = 0, read = 0 } = this.flows.of(String(w.workerId));
      return [w.name ?? "", written + read];
    });
    return { spilling: new Map(rates), spillingSince: this.flows.since() ?? now };
  }

  async look(): Promise<Finding[]> {
    const seen = summary.value;
    if (!seen) return [];
    const now = Date.parse(seen.time);
    const [batch, running] = await Promise.all([
      get<RunBatch>(`api/runs?limit=${attempts}`),
      this.running(now),
    ]);
    return diagnose({
      batch,
      running,
      workers: [...workers.value.values()].filter((w) => w.state !== "WORKER_STATE_LOST"),
      ...this.spilling(now),
      now,
      origin: runs.origin,
      slowRoutes: seen.slow_routes ?? [],
      idleSlots: Math.max(0, seen.slots - seen.busy_slots),
    });
  }
}

// times gives the time of day that a finding is about.
function times(f: Finding): string {
  const since = clock(f.since);
  if (f.until === undefined) return `since ${since}`;
  return clock(f.until) === since ? since : `${since} to ${clock(f.until)}`;
}

export function Slow() {
  const [list, setList] = useState<Finding[]>([]);
  useEffect(() => {
    if (frozen) return;
    const observer = new Observer();
    let timer = 0;
    let gone = false;
    const run = async () => {
      // While the scheduler does not answer, the page shows its last state.
      const found = await observer.look().catch(() => null);
      if (gone) return;
      if (found) setList(found);
      timer = window.setTimeout(run, everyMs);
    };
    void run();
    return () => {
      gone = true;
      window.clearTimeout(timer);
    };
  }, []);
  if (list.length === 0) return null;
  return (
    <div style={{ marginBottom: "14px" }}>
      <Card title="Why tasks take long" bare>
        {list.map((f) => (
          <div class="alarm" key={f.id}>
            <span class="dot warn" />
            <div>
              <strong>{f.subject}</strong> {f.text}.
            </div>
            <a class="nowrap" href={f.address}>
              {f.action}
            </a>
            <div class="remedy">{f.remedy}.</div>
            <span class="faint nowrap">{times(f)}</span>
          </div>
        ))}
      </Card>
    </div>
  );
}
