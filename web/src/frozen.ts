// The data of a report: the page then is a file, and asks the scheduler for nothing.

import type { Profile } from "./flame";
import type { RunBatch } from "./runs";
import type { Graph, Task, Worker } from "./types";

interface Rows<T> {
  rows: T[];
}

export interface Frozen {
  time: string;
  start: string;
  end: string;
  title: string;
  code: string;
  session: object;
  topics: {
    graphs: Rows<Graph>;
    workers: Rows<Worker>;
    [topic: string]: object;
  };
  runs: RunBatch;
  samples: object;
  // By graph.
  tasks: Record<string, Task[]>;
  // By worker; those of the scheduler are under "".
  logs: Record<string, object>;
  memory: Record<string, object>;
  // By "graph=N", "op=NAME", or "" for all.
  profiles: Record<string, Profile>;
}

const element = document.getElementById("frozen");

// frozen is the data; null: the page is not a report.
export const frozen: Frozen | null = element ? JSON.parse(element.textContent ?? "") : null;

// answerOf gives what the scheduler would answer; undefined: the report does not have it.
export function answerOf(from: Frozen, path: string): object | undefined {
  const url = new URL(path, "report:///");
  const of = url.searchParams;
  switch (url.pathname) {
    case "/api/session":
      return from.session;
    case "/api/samples":
      return from.samples;
    case "/api/runs": {
      const task = (from.runs.columns ?? []).indexOf("task_id");
      const wanted = of.get("task");
      const rows = from.runs.rows?.filter((r) => wanted === null || String(r[task]) === wanted);
      return { ...from.runs, rows };
    }
    case "/api/profile":
      return from.profiles[[...of].map(([name, value]) => `${name}=${value}`).join()];
  }
  return undefined;
}

// resultOf gives what a call of SchedulerService would return.
export function resultOf(
  from: Frozen,
  method: string,
  request: { graphId?: string; task?: { id?: string; key?: string }; worker?: { name?: string } },
): object | undefined {
  const { graphId, task, worker } = request;
  const found = <T>(what: string, value: T | undefined) => value && { [what]: value };
  switch (method) {
    case "GetSchedulerLog":
      return from.logs[""];
    case "GetGraph":
      return found(
        "graph",
        from.topics.graphs.rows.find((g) => String(g.graphId) === graphId),
      );
    case "GetWorker":
      return found(
        "worker",
        from.topics.workers.rows.find((w) => w.name === worker?.name),
      );
    case "ListTasks":
      return { tasks: from.tasks[graphId ?? ""] ?? [] };
    case "GetTask":
      return found(
        "task",
        Object.values(from.tasks)
          .flat()
          .find((t) => (task?.id ? String(t.taskId) === task.id : t.key === task?.key)),
      );
  }
  return undefined;
}

// resultOfWorker gives what a call of a worker would return.
export function resultOfWorker(from: Frozen, worker: string, method: string): object | undefined {
  return { GetWorkerLog: from.logs, DescribeMemory: from.memory }[method]?.[worker];
}
