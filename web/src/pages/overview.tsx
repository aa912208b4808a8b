// The overview: what the cluster does now, and what is wrong with it.

import { useState } from "preact/hooks";
import {
  ago,
  bytes,
  clock,
  count,
  duration,
  percent,
  perSecond,
  plural,
  rate,
  sentence,
  short,
} from "../format";
import { pathColors } from "../ink";
import { link, linkTo } from "../router";
import { alarms, summary, useStore } from "../store";
import type { Alarm, Group, Summary } from "../types";
import { Chart, Spark } from "../ui/chart";
import { Bar, Card, Empty, Op, Stat, useFocus, useMarked, useNow } from "../ui/parts";
import { Slow } from "./slow";

const green = "#35a376";
const blue = "#5b8def";

export function Overview() {
  const now = useStore(summary);
  const list = useStore(alarms);
  const [minutes, setMinutes] = useState(5);
  if (!now) return <Empty title="Waiting for the scheduler" />;
  return (
    <>
      <Figures now={now} />
      <Alarms list={list} />
      <Slow />
      <div class="grid two wide-three">
        <Progress groups={now.groups ?? []} />
        <div class="column">
          <Card title="Throughput" aside={<Range minutes={minutes} choose={setMinutes} />}>
            <Chart
              label="Tasks per second over time"
              minutes={minutes}
              format={perSecond}
              curves={[{ series: "tasks_per_second", name: "tasks", color: blue, fill: true }]}
            />
          </Card>
          <Card title="Slots">
            <Chart
              label="Busy slots and queued tasks over time"
              minutes={minutes}
              format={short}
              of="counts"
              curves={[
                { series: "busy_slots", name: "busy", color: green, fill: true },
                { series: "slots", name: "all", color: "#8d99ab" },
              ]}
            />
          </Card>
        </div>
        <div class="column">
          <Tiers now={now} />
          <Paths now={now} />
        </div>
      </div>
    </>
  );
}

function Range(props: { minutes: number; choose: (minutes: number) => void }) {
  return (
    <select
      class="field"
      aria-label="Time shown"
      value={String(props.minutes)}
      onChange={(e) => props.choose(Number(e.currentTarget.value))}
    >
      <option value="1">1 min</option>
      <option value="5">5 min</option>
      <option value="30">30 min</option>
      <option value="360">6 h</option>
    </select>
  );
}

function Figures({ now }: { now: Summary }) {
  const t = (state: string) => now.tasks[state] ?? 0;
  const waiting = t("waiting") + t("ready");
  const running = t("assigned") + t("running") + t("rescuing");
  // Totals do not have tasks that were forgotten; the sums of functions do, as in the table below.
  const ended = (now.groups ?? []).reduce((sum, g) => sum + g.done + g.released, 0);
  const done = Math.max(t("succeeded") + t("released"), ended);
  const memory = now.tiers?.find((x) => x.tier === "memory");
  const disk = now.tiers?.find((x) => x.tier === "disk")?.used_bytes ?? 0;
  const active = now.workers.active ?? 0;
  const others = Object.entries(now.workers).filter(([state, n]) => state !== "active" && n > 0);
  return (
    <div class="grid stats">
      <Stat
        title="Throughput"
        figure={perSecond(now.tasks_per_second)}
        note={`${plural(now.graphs, "graph")}, ${plural(now.clients, "client")}`}
      >
        <Spark series="tasks_per_second" color={blue} label="Tasks per second, last two minutes" />
      </Stat>
      <Stat
        title="Tasks"
        figure={short(done)}
        unit="done"
        note={`${short(running)} running, ${short(waiting)} waiting${t("failed") ? `, ${short(t("failed"))} failed` : ""}`}
      >
        <div style={{ marginTop: "18px" }}>
          <Bar
            label="Tasks"
            parts={[
              { name: "done", value: done, color: "var(--bar-done)" },
              { name: "failed", value: t("failed") + t("cancelled"), color: "var(--bar-failed)" },
              { name: "running", value: running, color: "var(--bar-running)" },
              { name: "waiting", value: waiting, color: "var(--bar-waiting)" },
            ]}
          />
        </div>
      </Stat>
      <Stat
        title="Slots"
        figure={percent(now.busy_slots, now.slots)}
        unit="busy"
        note={`${now.busy_slots} of ${now.slots} slots`}
      >
        <Spark series="busy_slots" color={green} label="Busy slots, last two minutes" />
      </Stat>
      <Stat
        title="Memory"
        figure={bytes(memory?.used_bytes ?? 0)}
        note={`of ${bytes(memory?.limit_bytes ?? 0)}${disk ? `, ${bytes(disk)} on disk` : ""}`}
      >
        <div style={{ marginTop: "18px" }}>
          <Bar
            label="Memory"
            whole={memory?.limit_bytes}
            parts={[{ name: "used", value: memory?.used_bytes ?? 0, color: blue }]}
          />
        </div>
      </Stat>
      <Stat
        title="Workers"
        figure={active}
        unit="active"
        note={
          others.map(([s, n]) => `${n} ${s}`).join(", ") ||
          (active ? "all well" : "none is registered")
        }
      >
        <div class="note faint" style={{ marginTop: "10px" }}>
          scheduler {Math.round(now.scheduler?.cpu_percent ?? 0)} % of a core,{" "}
          {bytes(now.scheduler?.rss_bytes ?? 0)}
        </div>
      </Stat>
    </div>
  );
}

export function Alarms(props: { list: Alarm[] }) {
  const now = useNow();
  const meant = useMarked();
  const there = props.list.some((a) => a.id === meant);
  const ref = useFocus<HTMLDivElement>(meant, there);
  if (props.list.length === 0) return <div style={{ height: "14px" }} />;
  return (
    <section class="card" aria-label="Alarms" style={{ margin: "14px 0" }}>
      {props.list.map((a) => (
        <div
          key={a.id}
          {...(a.id === meant
            ? { ref, class: "alarm marked", tabIndex: -1, "aria-current": "true" as const }
            : { class: "alarm" })}
        >
          <span class={`dot ${a.severity === "warning" || a.severity === "info" ? "warn" : "bad"}`}>
            <span class="hidden">{a.severity}</span>
          </span>
          <div>
            <strong>{a.subject}</strong>: {sentence(a.text)}
          </div>
          <span class="faint nowrap">
            since <a href={linkTo("overview", a.id)}>{clock(Date.parse(a.since))}</a>,{" "}
            {ago(a.since, now)}
          </span>
          {a.remedy && <div class="remedy">{sentence(a.remedy)}</div>}
        </div>
      ))}
    </section>
  );
}

function left(g: Group): number {
  return g.waiting + g.assigned + g.running;
}

function sizeOf(g: Group): number {
  return left(g) + g.done + g.failed + g.cancelled + g.released;
}

function Progress(props: { groups: Group[] }) {
  const groups = [...props.groups].sort((a, b) => left(b) - left(a) || sizeOf(b) - sizeOf(a));
  const legend = (
    <div class="legend">
      {[
        ["done", "var(--bar-done)"],
        ["released", "var(--bar-released)"],
        ["running", "var(--bar-running)"],
        ["waiting", "var(--bar-waiting)"],
        ["failed", "var(--bar-failed)"],
      ].map(([name, color]) => (
        <span key={name}>
          <i class="swatch" style={{ background: color }} />
          {name}
        </span>
      ))}
    </div>
  );
  return (
    <Card title="Progress by function" aside={legend} bare>
      {groups.length === 0 ? (
        <Empty title="No tasks yet">
          A client that submits a graph shows here. <a href={link("clients")}>Clients</a>
        </Empty>
      ) : (
        <div
          class="scroll"
          tabIndex={0}
          role="region"
          aria-label="Progress by function"
          style={{ maxHeight: "640px" }}
        >
          <table>
            <thead>
              <tr>
                <th scope="col">Function</th>
                <th scope="col" style={{ width: "38%" }}>
                  Progress
                </th>
                <th scope="col" class="right">
                  Done
                </th>
                <th scope="col" class="right">
                  Run time
                </th>
                <th scope="col" class="right">
                  Memory
                </th>
              </tr>
            </thead>
            <tbody>
              {groups.slice(0, 100).map((g) => {
                const all = sizeOf(g);
                return (
                  <tr key={g.op}>
                    <td style={{ maxWidth: "220px" }}>
                      <Op name={g.op} />
                    </td>
                    <td>
                      <Bar
                        label={g.op}
                        parts={[
                          { name: "done", value: g.done, color: "var(--bar-done)" },
                          { name: "released", value: g.released, color: "var(--bar-released)" },
                          {
                            name: "failed",
                            value: g.failed + g.cancelled,
                            color: "var(--bar-failed)",
                          },
                          {
                            name: "running",
                            value: g.running + g.assigned,
                            color: "var(--bar-running)",
                          },
                          { name: "waiting", value: g.waiting, color: "var(--bar-waiting)" },
                        ]}
                      />
                    </td>
                    <td class="right nowrap">
                      {count(g.done + g.released)} <span class="faint">/ {count(all)}</span>
                      {g.failed > 0 && (
                        <div class="badge bad" style={{ marginLeft: "6px" }}>
                          {g.failed} failed
                        </div>
                      )}
                    </td>
                    <td class="right nowrap">{duration(1000 * g.run_seconds_total)}</td>
                    <td class="right nowrap">{bytes(g.bytes)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}

const tierNames: Record<string, string> = {
  memory: "host memory",
  gpu: "GPU memory",
  disk: "disk",
};
const tierColors: Record<string, string> = { memory: blue, gpu: "#9b7bea", disk: "#f0892b" };

function Tiers({ now }: { now: Summary }) {
  return (
    <Card title="Memory by tier" aside={<a href={link("memory")}>Details</a>}>
      {(now.tiers ?? []).map((t) => (
        <div class="meter" key={t.tier}>
          <span class="soft">{tierNames[t.tier] ?? t.tier}</span>
          <Bar
            label={t.tier}
            whole={t.limit_bytes}
            parts={[{ name: "used", value: t.used_bytes, color: tierColors[t.tier] ?? blue }]}
          />
          <span class="what nowrap">
            {bytes(t.used_bytes)}{" "}
            {t.limit_bytes > 0 && <span class="faint">/ {bytes(t.limit_bytes)}</span>}
          </span>
        </div>
      ))}
      <Chart
        label="Memory and disk over time"
        minutes={5}
        format={bytes}
        of="bytes"
        curves={[
          { series: "memory_bytes", name: "memory", color: blue, fill: true },
          { series: "disk_bytes", name: "disk", color: "#f0892b", fill: true },
        ]}
      />
    </Card>
  );
}

function Paths({ now }: { now: Summary }) {
  const routes = (now.routes ?? []).filter((r) => r.bytes > 0);
  const most = Math.max(...routes.map((r) => r.bytes), 1);
  return (
    <Card title="Transfers by route" aside={<a href={link("routes")}>Matrix</a>}>
      {routes.length === 0 && <div class="faint">Nothing was moved between workers yet.</div>}
      {routes.map((r) => (
        <div class="meter" key={r.path}>
          <span class="soft">{r.path}</span>
          <Bar
            label={r.path}
            whole={most}
            parts={[{ name: "bytes", value: r.bytes, color: pathColors[r.path] ?? "var(--soft)" }]}
          />
          <span class="what nowrap">
            {rate(r.bytes_per_second)} <span class="faint">· {bytes(r.bytes)}</span>
          </span>
        </div>
      ))}
    </Card>
  );
}
