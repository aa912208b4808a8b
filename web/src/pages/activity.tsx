// Logs and events.

import { useEffect, useState } from "preact/hooks";
import { call, callWorker } from "../api";
import { ago, clock, fitted, plural } from "../format";
import { link, linkTo, place, setQuery } from "../router";
import { events, useStore, workers } from "../store";
import { presently } from "../time";
import type { ClusterEvent, LogLine } from "../types";
import { Badge, Card, Empty, Table, type Tone, useCall, useMarked, useNow } from "../ui/parts";

interface Line extends LogLine {
  from: string;
}

const levels = ["DEBUG", "INFO", "WARN", "ERROR"];

// LogLines shows lines, the newest first.
export function LogLines(props: { lines: Line[]; height?: number }) {
  return (
    <div
      class="log"
      tabIndex={0}
      role="region"
      aria-label="Log lines"
      style={props.height ? { maxHeight: `${props.height}px` } : undefined}
    >
      {props.lines.map((l, i) => (
        <div key={`${l.time}-${l.from}-${i}`}>
          <span class="faint">{clock(Date.parse(l.time ?? ""), true)}</span>
          <span class={l.level}>{l.level}</span>
          <span class="soft clip" title={l.from}>
            {fitted(l.from, (name) => name.length <= 14)}
          </span>
          <span class="text">{l.text}</span>
        </div>
      ))}
    </div>
  );
}

// readLogs reads the kept lines of the scheduler and of workers. A worker that does not answer has
// a line that says so.
async function readLogs(from: string, names: string[]): Promise<Line[]> {
  const parts: Promise<Line[]>[] = [];
  if (from === "" || from === "scheduler") {
    parts.push(
      call<{ lines?: LogLine[] }>("GetSchedulerLog", { limit: 1000 }).then((r) =>
        (r.lines ?? []).map((l) => ({ ...l, from: "scheduler" })),
      ),
    );
  }
  for (const name of names.filter((n) => from === "" || from === n).slice(0, 64)) {
    parts.push(
      callWorker<{ lines?: LogLine[] }>(name, "GetWorkerLog", { limit: from ? 1000 : 200 }).then(
        (r) => (r.lines ?? []).map((l) => ({ ...l, from: name })),
        (e: unknown) => [
          {
            from: name,
            level: "WARN",
            time: new Date(presently()).toISOString(),
            text: `its log cannot be read: ${e instanceof Error ? e.message : e}`,
          },
        ],
      ),
    );
  }
  const lines = (await Promise.all(parts)).flat();
  return lines.sort((a, b) => (b.time ?? "").localeCompare(a.time ?? ""));
}

export function Logs() {
  const { query } = useStore(place);
  const from = query.get("from") ?? "";
  const asked = query.get("level") ?? "";
  const level = levels.includes(asked) ? asked : "INFO";
  const [text, setText] = useState(query.get("text") ?? "");
  const [paused, setPaused] = useState(false);
  const names = [...useStore(workers).values()]
    .filter((w) => w.state !== "WORKER_STATE_LOST")
    .map((w) => w.name ?? "")
    .sort();
  const log = useCall(() => readLogs(from, names), [from, names.join(), paused], paused ? 0 : 2000);
  const wanted = text.toLowerCase();
  const lines = (log.value ?? []).filter(
    (l) =>
      levels.indexOf(l.level ?? "") >= levels.indexOf(level) &&
      (wanted === "" || `${l.text} ${l.from}`.toLowerCase().includes(wanted)),
  );
  return (
    <>
      <div class="bar-of-controls">
        <select
          class="field"
          aria-label="Process"
          value={from}
          onChange={(e) => setQuery({ from: e.currentTarget.value })}
        >
          <option value="">all processes</option>
          <option value="scheduler">scheduler</option>
          {names.map((n) => (
            <option key={n} value={n}>
              {n}
            </option>
          ))}
        </select>
        <select
          class="field"
          aria-label="Least level"
          value={level}
          onChange={(e) => setQuery({ level: e.currentTarget.value })}
        >
          {levels.map((l) => (
            <option key={l} value={l}>
              {l.toLowerCase()} and above
            </option>
          ))}
        </select>
        <input
          class="field"
          style={{ width: "280px" }}
          type="search"
          placeholder="Filter by text"
          aria-label="Filter by text"
          value={text}
          onInput={(e) => setText(e.currentTarget.value)}
        />
        <div class="space" />
        <span class="faint">{plural(lines.length, "line")}, newest first</span>
        <button
          class="button"
          type="button"
          aria-pressed={!paused}
          onClick={() => setPaused(!paused)}
        >
          {paused ? "Paused" : "Live"}
        </button>
      </div>
      <section class="card fill" aria-label="Log">
        {lines.length === 0 ? (
          <Empty
            title={
              ["", "scheduler", ...names].includes(from)
                ? "No line fits"
                : `No worker ${from} is registered now`
            }
          />
        ) : (
          <LogLines lines={lines.slice(0, 1500)} />
        )}
      </section>
    </>
  );
}

function toneOf(severity: string): Tone {
  if (severity === "error" || severity === "critical") return "bad";
  return severity === "warning" || severity === "warn" ? "warn" : "";
}

interface Repeated extends ClusterEvent {
  times: number;
}

function saidBy(e: ClusterEvent): string {
  return `${e.kind} ${e.worker} ${e.graph} ${e.text}`;
}

// idOf names an event. Another scheduler, or the same one after a restart, uses the numbers again.
function idOf(e: ClusterEvent): string {
  return `${e.number}@${e.time}`;
}

// withoutRepeats shows events that say the same as one, the last, and puts the newest first.
function withoutRepeats(list: ClusterEvent[]): Repeated[] {
  const found = new Map<string, Repeated>();
  for (const e of list) {
    const name = saidBy(e);
    const times = (found.get(name)?.times ?? 0) + 1;
    found.delete(name);
    found.set(name, { ...e, times });
  }
  return [...found.values()].reverse();
}

export function EventsPage() {
  const all = useStore(events);
  const now = useNow();
  const [text, setText] = useState("");
  const [only, setOnly] = useState("");
  const meant = useMarked();
  useEffect(() => {
    if (!meant) return;
    // A filter must not hide the event.
    setText("");
    setOnly("");
  }, [meant]);
  const kinds = [...new Set(all.map((e) => e.kind))].sort();
  const wanted = text.toLowerCase();
  const rows = withoutRepeats(
    all.filter(
      (e) =>
        (only === "" || e.kind === only) &&
        (wanted === "" || `${e.text} ${e.worker ?? ""}`.toLowerCase().includes(wanted)),
    ),
  );
  // A later event that says the same may stand for the one that is meant.
  const event = all.find((e) => idOf(e) === meant);
  const said = event && saidBy(event);
  return (
    <>
      <div class="bar-of-controls">
        <select
          class="field"
          aria-label="Kind"
          value={only}
          onChange={(e) => setOnly(e.currentTarget.value)}
        >
          <option value="">all kinds</option>
          {kinds.map((k) => (
            <option key={k} value={k}>
              {k.replaceAll(/[_-]/g, " ")}
            </option>
          ))}
        </select>
        <input
          class="field"
          style={{ width: "280px" }}
          type="search"
          placeholder="Filter by text"
          aria-label="Filter by text"
          value={text}
          onInput={(e) => setText(e.currentTarget.value)}
        />
      </div>
      <Card title={plural(rows.length, "event")} bare fill>
        {rows.length === 0 ? (
          <Empty title="Nothing has happened" of="events">
            Workers that come and go, drains, failures and spills show here.
          </Empty>
        ) : (
          <Table
            label="Events"
            rows={rows}
            id={(e) => (saidBy(e) === said ? meant : idOf(e))}
            marked={meant}
            columns={[
              {
                name: "Time",
                cell: (e) => (
                  <span class="nowrap" title={e.time}>
                    <a href={linkTo("events", idOf(e))}>{clock(Date.parse(e.time))}</a>{" "}
                    <span class="faint">{ago(e.time, now)}</span>
                  </span>
                ),
              },
              {
                name: "Kind",
                cell: (e) => (
                  <Badge tone={toneOf(e.severity)}>{e.kind.replaceAll(/[_-]/g, " ")}</Badge>
                ),
              },
              {
                name: "Event",
                cell: (e) => (
                  <>
                    {e.text} {e.times > 1 && <Badge>{e.times} times</Badge>}
                  </>
                ),
              },
              {
                name: "About",
                cell: (e) => (
                  <span class="nowrap">
                    {e.worker && <a href={link("workers", e.worker)}>{e.worker}</a>}{" "}
                    {e.graph && <a href={link("graphs", e.graph)}>g{e.graph}</a>}
                  </span>
                ),
              },
            ]}
          />
        )}
      </Card>
    </>
  );
}
