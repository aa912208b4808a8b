// Small parts of which the pages are made.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { opColor } from "../colors";
import { clock, word } from "../format";
import { frozen } from "../frozen";
import { link, type Place, place } from "../router";
import { session, useHeard, useStore } from "../store";
import { presently } from "../time";

export type Tone = "" | "good" | "warn" | "bad" | "run";

export function Card(props: {
  title: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
  bare?: boolean;
  fill?: boolean;
}) {
  return (
    <section class={`card${props.fill ? " fill" : ""}`} aria-label={props.title}>
      <header>
        <h2>{props.title}</h2>
        {props.aside !== undefined && <div class="aside">{props.aside}</div>}
      </header>
      {props.bare ? props.children : <div class="body">{props.children}</div>}
    </section>
  );
}

export function Stat(props: {
  title: string;
  figure: ComponentChildren;
  unit?: string;
  note?: ComponentChildren;
  children?: ComponentChildren;
}) {
  return (
    <section class="card stat" aria-label={props.title}>
      <h2>{props.title}</h2>
      <div class="figure">
        {props.figure} {props.unit && <small>{props.unit}</small>}
      </div>
      {props.note !== undefined && <div class="note">{props.note}</div>}
      {props.children}
    </section>
  );
}

export function Badge(props: { tone?: Tone; children: ComponentChildren }) {
  return <span class={`badge ${props.tone ?? ""}`}>{props.children}</span>;
}

const tones: Record<string, Tone> = {
  active: "good",
  succeeded: "good",
  open: "good",
  running: "run",
  draining: "warn",
  drained: "warn",
  disconnected: "warn",
  rescuing: "warn",
  assigned: "run",
  lost: "bad",
  failed: "bad",
  unreachable: "bad",
};

// StateBadge shows the state of a task, graph, worker or route.
export function StateBadge(props: { state: string | undefined; prefix: string }) {
  const state = word(props.state, props.prefix) || "unknown";
  return <Badge tone={tones[state] ?? ""}>{state}</Badge>;
}

export interface Part {
  name: string;
  value: number;
  color: string;
}

// Bar shows parts of a whole. Its label has the figures, for screen readers.
export function Bar(props: { parts: Part[]; whole?: number; label: string; height?: number }) {
  const sum = props.parts.reduce((s, p) => s + p.value, 0);
  const whole = Math.max(props.whole ?? sum, sum, 1e-9);
  const said = props.parts.filter((p) => p.value > 0).map((p) => `${p.name} ${p.value}`);
  return (
    <div
      class="bar"
      role="img"
      aria-label={`${props.label}: ${said.join(", ") || "nothing"}`}
      style={props.height ? { height: `${props.height}px` } : undefined}
    >
      {props.parts.map((p) => (
        <i
          key={p.name}
          title={p.name}
          style={{ width: `${(100 * p.value) / whole}%`, background: p.color }}
        />
      ))}
    </div>
  );
}

export function Op(props: { name: string }) {
  const name = props.name || "unnamed";
  return (
    <span class="with-swatch" title={name}>
      <i class="swatch" style={{ background: opColor(props.name) }} />
      <span class="clip">{name}</span>
    </span>
  );
}

export function TaskLink(props: { id: number | string | undefined; name?: string }) {
  return (
    <a class="mono" href={link("tasks", props.id ?? 0)}>
      {props.name || `t${props.id}`}
    </a>
  );
}

// Text is the output of a program. It takes the focus, since it may scroll.
export function Text(props: { height?: number; children: string }) {
  return (
    <pre tabIndex={0} style={props.height ? { maxHeight: `${props.height}px` } : undefined}>
      {props.children}
    </pre>
  );
}

// Empty says that there is nothing: of a topic, only if the page knows its rows.
export function Empty(props: { title: string; of?: string; children?: ComponentChildren }) {
  const known = useHeard(...(props.of ? [props.of] : []));
  if (!known) return <Waiting />;
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      {props.children}
    </div>
  );
}

// Waiting stands for rows that the page does not know yet.
export function Waiting() {
  return (
    <div class="empty">
      <strong>Waiting for the scheduler</strong>
    </div>
  );
}

// Missing says that there is no page, worker, graph or task at an address, and where to look.
export function Missing(props: { what: string; why: string; section: string; list: string }) {
  return (
    <Empty title={`There is no ${props.what}`}>
      {props.why} <a href={link(props.section)}>{props.list}</a>.
    </Empty>
  );
}

export function Facts(props: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {props.of.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value === "" || value === undefined || value === null ? "–" : value}</dd>
        </>
      ))}
    </dl>
  );
}

export interface Column<T> {
  name: string;
  // The cell.
  cell: (row: T) => ComponentChildren;
  // By which the table is sorted; a column without it cannot sort.
  by?: (row: T) => number | string;
  right?: boolean;
}

// The largest number of rows that are drawn at once; more follow on demand.
const shownRows = 200;

// useMarked is the row that the address of the page means, "" if it means none.
export function useMarked(): string {
  return useStore(place).query.get("row") ?? "";
}

// The visit of an address whose row has had the focus.
let focused: Place | null = null;

// useFocus gives the ref of an element that is scrolled to and focused as soon as it is there, once
// for each visit of the address that means it. If it goes and comes again, the focus stays.
export function useFocus<E extends HTMLElement>(meant: string, there: boolean) {
  const ref = useRef<E>(null);
  const here = useStore(place);
  useEffect(() => {
    if (!meant || !there || focused === here) return;
    focused = here;
    ref.current?.scrollIntoView({ block: "center" });
    ref.current?.focus({ preventScroll: true });
  }, [here, meant, there]);
  return ref;
}

// Table is a table that sorts by its columns. It shows, marks and focuses the row that has the
// marked id, as soon as there is one.
export function Table<T>(props: {
  label: string;
  rows: T[];
  columns: Column<T>[];
  id: (row: T) => string | number;
  sort?: string;
  down?: boolean;
  marked?: string;
}) {
  const [sort, setSort] = useState({ name: props.sort ?? "", down: props.down ?? false });
  const [shown, setShown] = useState(shownRows);
  const column = props.columns.find((c) => c.name === sort.name && c.by);
  let rows = props.rows;
  if (column?.by) {
    const by = column.by;
    rows = [...rows].sort((a, b) => {
      const [x, y] = [by(a), by(b)];
      const order = typeof x === "number" && typeof y === "number" ? x - y : compare(x, y);
      return sort.down ? -order : order;
    });
  }
  const marked = props.marked ?? "";
  const at = marked ? rows.findIndex((row) => String(props.id(row)) === marked) : -1;
  const markedRow = useFocus<HTMLTableRowElement>(marked, at >= 0);
  const drawn = Math.max(shown, at + 1);
  return (
    <section class="scroll" tabIndex={0} aria-label={props.label}>
      {marked && at < 0 && (
        <div class="notice round" role="status">
          What the link means is not in this list, or not any more.
        </div>
      )}
      <table>
        <thead>
          <tr>
            {props.columns.map((c) => (
              <th
                key={c.name}
                scope="col"
                class={c.right ? "right" : ""}
                aria-sort={
                  c.name === sort.name && c.by
                    ? sort.down
                      ? "descending"
                      : "ascending"
                    : undefined
                }
              >
                {c.by ? (
                  <button
                    type="button"
                    onClick={() =>
                      setSort({ name: c.name, down: sort.name === c.name ? !sort.down : !!c.right })
                    }
                  >
                    {c.name}
                    {c.name === sort.name ? (sort.down ? " ↓" : " ↑") : ""}
                  </button>
                ) : (
                  c.name || <span class="hidden">actions</span>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, drawn).map((row, i) => (
            <tr
              key={props.id(row)}
              {...(i === at
                ? { ref: markedRow, class: "marked", tabIndex: -1, "aria-current": "true" }
                : {})}
            >
              {props.columns.map((c) => (
                <td key={c.name} class={c.right ? "right nowrap" : ""}>
                  {c.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > drawn && (
        <div class="empty">
          <button class="button" type="button" onClick={() => setShown(drawn + 1000)}>
            Show more of {rows.length}
          </button>
        </div>
      )}
    </section>
  );
}

function compare(x: string | number, y: string | number): number {
  return String(x).localeCompare(String(y), "en", { numeric: true });
}

// Dialog is modal: it keeps the focus until it is closed.
export function Dialog(props: {
  label: string;
  onClose: () => void;
  class?: string;
  children: ComponentChildren;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  return (
    <dialog ref={ref} class={props.class} aria-label={props.label} onClose={props.onClose}>
      {props.children}
    </dialog>
  );
}

// useNow renders again once a second, for times that pass.
export function useNow(): number {
  const [now, setNow] = useState(presently());
  useEffect(() => {
    const timer = setInterval(() => setNow(presently()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

// Restarted tells of a restart of the scheduler after a graph or a task had begun.
export function Restarted(props: { begun: string | undefined; lacks: string }) {
  const start = useStore(session)?.start_time ?? "";
  if (!(Date.parse(props.begun ?? "") < Date.parse(start))) return null;
  return (
    <div class="notice round">
      The scheduler was started again at {clock(Date.parse(start))}: attempts that ended before are
      not kept{props.lacks}.
    </div>
  );
}

// useCall calls at the start, when one of the inputs changes, and then again and again.
export function useCall<T>(
  fetch: () => Promise<T>,
  inputs: unknown[],
  everyMs = 0,
): { value: T | null; error: unknown; again: () => void } {
  const [state, setState] = useState<{ value: T | null; error: unknown }>({
    value: null,
    error: null,
  });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let gone = false;
    let timer = 0;
    const run = async () => {
      try {
        const value = await fetch();
        if (!gone) setState({ value, error: null });
      } catch (error) {
        if (!gone) setState((before) => ({ value: before.value, error }));
      }
      if (!gone && everyMs > 0 && !frozen) timer = window.setTimeout(run, everyMs);
    };
    void run();
    return () => {
      gone = true;
      window.clearTimeout(timer);
    };
  }, [...inputs, turn]);
  return { ...state, again: () => setTurn((n) => n + 1) };
}
