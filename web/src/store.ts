// Values that components follow, and the one stream of events that fills them.

import { useEffect, useState } from "preact/hooks";
import { CallError, get, login, messageOf, type Session } from "./api";
import { sentence } from "./format";
import { frozen } from "./frozen";
import { history } from "./history";
import { type RunBatch, runs } from "./runs";
import { forgetClock, setClock } from "./time";
import type { Alarm, Client, ClusterEvent, Dataset, Graph, Route, Summary, Worker } from "./types";

// Store is a value with listeners.
export class Store<T> {
  private listeners = new Set<() => void>();

  constructor(private current: T) {}

  get value(): T {
    return this.current;
  }

  set(value: T): void {
    this.current = value;
    for (const listener of this.listeners) listener();
  }

  follow(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  }
}

// useStore renders the component again when the value changes.
export function useStore<T>(store: Store<T>): T {
  const [, again] = useState(0);
  useEffect(() => {
    again((n) => n + 1);
    return store.follow(() => again((n) => n + 1));
  }, [store]);
  return store.value;
}

export type Connection = "connecting" | "live" | "lost" | "report";

export const session = new Store<Session | null>(null);
// Asked says why the page asks for a token. It is bad if a token was refused.
export interface Asked {
  why: string;
  bad: boolean;
}
export const needsLogin = new Store<Asked | null>(null);
export const connection = new Store<Connection>("connecting");
export const summary = new Store<Summary | null>(null);
export const alarms = new Store<Alarm[]>([]);
export const events = new Store<ClusterEvent[]>([]);
export const workers = new Store<ReadonlyMap<string, Worker>>(new Map());
export const routes = new Store<ReadonlyMap<string, Worker>>(new Map());
export const graphs = new Store<ReadonlyMap<string, Graph>>(new Map());
export const clients = new Store<ReadonlyMap<string, Client>>(new Map());
export const datasets = new Store<ReadonlyMap<string, Dataset>>(new Map());

// The largest number of events that the page keeps.
const keptEvents = 5000;

interface Rows<T> {
  snapshot?: boolean;
  rows?: T[];
  removed?: (string | number)[];
}

function merge<T>(store: Store<ReadonlyMap<string, T>>, id: (row: T) => string) {
  return (message: Rows<T>) => {
    const next = new Map(message.snapshot ? [] : store.value);
    for (const row of message.rows ?? []) next.set(id(row), row);
    for (const gone of message.removed ?? []) next.delete(String(gone));
    store.set(next);
  };
}

const takers: Record<string, (message: never) => void> = {
  summary: (message: Summary) => {
    setClock(message.time);
    history.add(message);
    summary.set(message);
  },
  workers: merge(workers, (w: Worker) => String(w.workerId ?? 0)),
  routes: merge(routes, (w: Worker) => String(w.workerId ?? 0)),
  graphs: merge(graphs, (g: Graph) => String(g.graphId ?? 0)),
  clients: merge(clients, (c: Client) => String(c.clientId ?? 0)),
  datasets: merge(datasets, (d: Dataset) => `${d.namespace ?? ""}/${d.name ?? ""}`),
  runs: (message: RunBatch) => runs.add(message),
  alarms: (message: { alarms?: Alarm[] }) => alarms.set(message.alarms ?? []),
  events: (message: { snapshot: boolean; rows: ClusterEvent[] }) => {
    const known = message.snapshot ? [] : events.value;
    events.set([...known, ...message.rows].slice(-keptEvents));
  },
};

// The topics of which the page knows the state. Before, it can say nothing about their rows.
const heardTopics = new Store<ReadonlySet<string>>(new Set());

function take(topic: string, message: unknown): void {
  takers[topic]?.(message as never);
  if (!heardTopics.value.has(topic)) heardTopics.set(new Set([...heardTopics.value, topic]));
}

// useHeard says whether the page knows the rows of some topics.
export function useHeard(...topics: string[]): boolean {
  const heard = useStore(heardTopics);
  return topics.every((topic) => heard.has(topic));
}

// Topics that every page needs: they feed the frame around the pages.
const wanted = new Map([
  ["summary", 1],
  ["workers", 1],
  ["graphs", 1],
  ["events", 1],
  ["alarms", 1],
]);
// A summary comes every two seconds, also if nothing has changed. If none comes for this time, the
// scheduler is stopped or overloaded, although the stream is open.
const silentMs = 8000;
let silence = 0;
let source: EventSource | null = null;
let opened = "";
let timer = 0;

// useTopics asks for topics while the component is shown. A topic stays open after that: it is
// likely to be shown again, and the page keeps what it knows.
export function useTopics(...topics: string[]): void {
  useEffect(() => {
    let fresh = false;
    for (const topic of topics) {
      fresh ||= !wanted.has(topic);
      wanted.set(topic, 1);
    }
    if (fresh) connectSoon(0);
  }, topics);
}

// useRoutes gives the routes of each worker, by its number.
export function useRoutes(): (worker: Worker) => Route[] {
  useTopics("routes");
  const rows = useStore(routes);
  return (w) => rows.get(String(w.workerId ?? 0))?.routes ?? [];
}

function connectSoon(delay: number): void {
  window.clearTimeout(timer);
  timer = window.setTimeout(connect, delay);
}

function connect(): void {
  if (frozen) return;
  const topics = [...wanted.keys()].join(",");
  if (source && opened === topics && source.readyState !== EventSource.CLOSED) return;
  source?.close();
  opened = topics;
  const stream = new EventSource(`api/stream?topics=${topics}&runs_after=${runs.last}`);
  source = stream;
  stream.onopen = heard;
  stream.onerror = () => {
    if (source !== stream) return;
    window.clearTimeout(silence);
    connection.set("lost");
    stream.close();
    void start(2000);
  };
  for (const topic of Object.keys(takers)) {
    stream.addEventListener(topic, (event) => {
      if (source !== stream) return;
      heard();
      take(topic, JSON.parse((event as MessageEvent<string>).data));
    });
  }
}

// heard is called with each message. The connection counts as lost if no other one follows in time.
function heard(): void {
  if (connection.value !== "live") connection.set("live");
  window.clearTimeout(silence);
  silence = window.setTimeout(() => connection.set("lost"), silentMs);
}

// thaw shows the data of a report.
async function thaw(): Promise<void> {
  session.set(await get<Session>("api/session"));
  runs.begin(Date.parse(session.value?.start_time ?? ""));
  for (const [topic, message] of Object.entries(frozen?.topics ?? {})) {
    take(topic, message);
  }
  await runs.all();
  await history.load();
  connection.set("report");
}

// The reason why the token of a link was not taken.
let refusal = "";

// logInByLink logs in with the token of a link.
export async function logInByLink(token: string): Promise<void> {
  try {
    await login(token);
  } catch (error) {
    refusal = sentence(`the link did not log in: ${messageOf(error)}`);
  }
}

// start learns the role of the viewer, and opens the stream.
export async function start(delay = 0): Promise<void> {
  if (frozen) return thaw();
  try {
    const now = await get<Session>("api/session");
    const before = session.value;
    if (before && (before.life !== now.life || before.start_time !== now.start_time)) {
      // Numbers of runs and events begin again when the scheduler is started again, also in the
      // same life, with its journal.
      runs.clear();
      events.set([]);
      history.clear();
      forgetClock();
    }
    runs.begin(Date.parse(now.start_time));
    session.set(now);
    needsLogin.set(null);
    refusal = "";
    if (!before) void history.load();
    connectSoon(delay);
  } catch (error) {
    if (error instanceof CallError && (error.status === 401 || error.status === 403)) {
      const why = refusal || sentence(error.message);
      needsLogin.set({ why, bad: refusal !== "" || error.metadata.login !== "missing" });
      return;
    }
    connection.set("lost");
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void start(), 3000);
  }
}

// isOperator says whether the viewer may drain, retire and restart workers.
export function isOperator(): boolean {
  return session.value?.role === "operator";
}
