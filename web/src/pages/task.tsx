// The page of one task.

import { useState } from "preact/hooks";
import { call, callWorker, isMissing, messageOf } from "../api";
import { phaseColors, phaseNames } from "../colors";
import { ago, bytes, clock, count, duration, millis, num, word } from "../format";
import { Holders, keepersOf, Users } from "../keepers";
import { link } from "../router";
import { type Attempt, attemptsOf, phases, runs } from "../runs";
import type { Explanation, Task } from "../types";
import { FlameCard } from "../ui/flame";
import {
  Bar,
  Card,
  Empty,
  Facts,
  Missing,
  Op,
  Restarted,
  Stat,
  StateBadge,
  Table,
  TaskLink,
  Text,
  useCall,
  useNow,
} from "../ui/parts";

// isNumber reports whether an address may have the number of a task, which has 64 bits.
const isNumber = (id: string) => /^\d+$/.test(id) && BigInt(id) < 1n << 64n;

export function TaskPage(props: { id: string }) {
  const ref = /^\d+$/.test(props.id) ? { id: props.id } : { key: props.id };
  const found = useCall(
    () => call<{ task: Task }>("GetTask", { task: ref, history: true }),
    [props.id],
    2000,
  );
  const now = useNow();
  const t = found.value?.task;
  const id = t ? String(t.taskId) : "";
  const kept = useCall(
    () => keepersOf(id ? [id] : []),
    [id, t?.holders, t?.waitingDependents],
    5000,
  );
  const keepers = kept.value?.[id];
  const gone = isMissing(found.error);
  if (!t) {
    if (gone) {
      return (
        <>
          <Missing
            what={`task ${props.id}`}
            why="The scheduler forgets tasks whose results nobody holds. Their run times stay in the"
            section="stream"
            list="task stream"
          />
          {isNumber(props.id) && <Attempts id={props.id} of="" />}
        </>
      );
    }
    return <Empty title={found.error ? messageOf(found.error) : "Looking up the task"} />;
  }
  const state = word(t.state, "TASK_STATE_");
  const runTime = t.runTime
    ? millis(t.runTime)
    : t.startTime && state === "running" && !gone
      ? Math.max(now - Date.parse(t.startTime), 0)
      : undefined;
  return (
    <>
      {gone && (
        <div class="notice round" role="alert">
          The scheduler has forgotten this task, because nobody holds its result. The page shows its
          last state.
        </div>
      )}
      <div class="bar-of-controls">
        <StateBadge state={t.state} prefix="TASK_STATE_" />
        <Op name={t.op?.name ?? ""} />
        <span class="mono soft">{t.key}</span>
        <div class="space" />
        <a class="button" href={link("graphs", String(t.graphId ?? 0))}>
          Graph g{t.graphId}
        </a>
      </div>
      <div class="grid stats">
        <Stat
          title="Run time"
          figure={runTime === undefined ? "–" : duration(runTime)}
          note={`attempt ${t.attempt ?? 0}, ${t.retriesUsed ?? 0} retries used`}
        />
        <Stat
          title="Result"
          figure={num(t.outputBytes) ? bytes(num(t.outputBytes)) : "–"}
          note={t.replicas?.length ? `on ${t.replicas.join(", ")}` : "on no worker"}
        />
        <Stat
          title="Inputs"
          figure={count(t.inputCount ?? t.inputs?.length ?? 0)}
          note={
            t.missingInputs
              ? `${count(t.missingInputs)} do not exist yet`
              : (t.inputCount ?? t.inputs?.length)
                ? "all exist"
                : "it needs none"
          }
        />
        <Stat
          title="Kept by"
          figure={t.holders ?? 0}
          unit={t.holders === 1 ? "holder" : "holders"}
          note={
            <>
              {t.holders ? (
                <>
                  <Holders of={keepers} total={t.holders} />;{" "}
                </>
              ) : null}
              {t.waitingDependents ? (
                <Users of={keepers} total={t.waitingDependents} />
              ) : (
                "no task needs it"
              )}
            </>
          }
        />
      </div>
      {t.error && <Failure task={t} />}
      <Restarted begun={t.createTime} lacks="" />
      <Attempts id={String(t.taskId)} of={`${t.attempt} ${state} ${gone}`} />
      {state !== "succeeded" && state !== "released" && <Why id={String(t.taskId)} />}
      {t.op?.kind?.startsWith("OP_KIND_PYTHON") && (
        <FlameCard
          title={`Flame graph of ${t.op.name}`}
          of={`op=${encodeURIComponent(t.op.name ?? "")}`}
          running={state === "running"}
        />
      )}
      <div class="grid even">
        <Card title="Task">
          <Facts
            of={[
              ["Number", `t${t.taskId}`],
              ["Key", <span class="mono">{t.key}</span>],
              ["Namespace", t.namespace || "default"],
              ["Function", `${t.op?.name ?? ""} (${word(t.op?.kind, "OP_KIND_")})`],
              ["Worker", t.worker ? <a href={link("workers", t.worker)}>{t.worker}</a> : ""],
              ["Submitted", ago(t.createTime, now)],
              ...(t.startTime ? [["Started", ago(t.startTime, now)] as [string, string]] : []),
              ["Deaths of its workers", t.workerDeaths ?? 0],
              [
                "Options",
                t.options && Object.keys(t.options).length ? (
                  <span class="mono">{JSON.stringify(t.options)}</span>
                ) : (
                  "defaults"
                ),
              ],
            ]}
          />
        </Card>
        <Card title="History">
          {t.history?.length ? (
            <ol class="mono" style={{ margin: 0, paddingLeft: "22px" }}>
              {t.history.map((h, i) => (
                <li key={i}>{h}</li>
              ))}
            </ol>
          ) : (
            <span class="faint">No transitions are kept.</span>
          )}
        </Card>
      </div>
      <div class="grid even">
        <Card title="Inputs">
          {t.inputs?.length ? (
            <div style={{ maxHeight: "240px", overflow: "auto" }}>
              {t.inputs.slice(0, 200).map((key) => (
                <div key={key} class="clip">
                  <a class="mono" href={link("tasks", key)}>
                    {key}
                  </a>
                </div>
              ))}
            </div>
          ) : (
            <span class="faint">It needs no other task.</span>
          )}
        </Card>
        <Output task={t} />
      </div>
      {state === "succeeded" && <Result id={String(t.taskId)} />}
    </>
  );
}

function Failure({ task }: { task: Task }) {
  const e = task.error ?? {};
  return (
    <section class="card" aria-label="Failure" style={{ marginTop: "14px" }}>
      <header>
        <span class="badge bad">{e.reason?.toLowerCase().replaceAll("_", " ")}</span>
        <div class="aside">
          {e.worker ? `on ${e.worker}, ` : ""}attempt {e.attempt ?? 0} of {e.attempts ?? 0}
        </div>
      </header>
      <div class="body">
        <p style={{ marginBottom: "10px", overflowWrap: "anywhere" }}>{e.message}</p>
        {e.originKey && e.originKey !== task.key && (
          <p style={{ marginBottom: "10px" }}>
            The first failure was that of <TaskLink id={e.originKey} name={e.originKey} />.
          </p>
        )}
        {e.traceback && <Text>{e.traceback}</Text>}
      </div>
    </section>
  );
}

function Why(props: { id: string }) {
  const why = useCall(
    () => call<Explanation>("ExplainTask", { task: { id: props.id } }),
    [props.id],
    3000,
  );
  const e = why.value;
  if (!e) return null;
  return (
    <Card title="Why it is in this state" bare>
      <div class="body">{e.explanation}</div>
      {(e.workers?.length ?? 0) > 0 && (
        <Table
          label="What each worker could do"
          rows={e.workers ?? []}
          id={(w) => w.worker ?? ""}
          columns={[
            {
              name: "Worker",
              cell: (w) => <a href={link("workers", w.worker ?? "")}>{w.worker}</a>,
            },
            { name: "Can run it", cell: (w) => (w.feasible ? "yes" : "no") },
            { name: "Queue", right: true, cell: (w) => duration(millis(w.queueTime)) },
            { name: "To fetch", right: true, cell: (w) => bytes(num(w.missingBytes)) },
            { name: "Transfer", right: true, cell: (w) => duration(millis(w.transferTime)) },
            {
              name: "Finish",
              right: true,
              cell: (w) => (w.completionTime ? duration(millis(w.completionTime)) : "–"),
            },
            { name: "Reason", cell: (w) => <span class="soft">{w.reason || w.sources}</span> },
          ]}
        />
      )}
    </Card>
  );
}

// Attempts shows the kept attempts of a task. It asks for them again when `of` changes, which is
// empty for a forgotten task: then the table has the key and the function, which the page lacks.
function Attempts(props: { id: string; of: string }) {
  const found = useCall(() => attemptsOf(props.id), [props.id, props.of]);
  const rows = found.value ?? [];
  if (rows.length === 0) return <div style={{ height: "14px" }} />;
  return (
    <Card
      title="Attempts"
      aside={
        <div class="legend">
          {phases.map((p) => (
            <span key={p}>
              <i class="swatch" style={{ background: phaseColors[p] }} />
              {phaseNames[p]}
            </span>
          ))}
        </div>
      }
      bare
    >
      <Table
        label="Attempts"
        rows={rows}
        id={(a) => a.number}
        columns={[
          { name: "Begin", cell: (a) => clock(a.start_ms + runs.origin, true) },
          ...(props.of
            ? []
            : [
                { name: "Key", cell: (a: Attempt) => <span class="mono">{a.key}</span> },
                { name: "Function", cell: (a: Attempt) => <Op name={a.op} /> },
              ]),
          { name: "Worker", cell: (a) => <a href={link("workers", a.worker)}>{a.worker}</a> },
          {
            name: "Outcome",
            cell: (a) => <StateBadge state={a.failed ? "failed" : "succeeded"} prefix="" />,
          },
          {
            name: "Phases",
            cell: (a) => (
              <div style={{ minWidth: "120px" }}>
                <Bar
                  label="Phases in milliseconds"
                  parts={[
                    { name: phaseNames.fetch, value: a.fetch_ms, color: phaseColors.fetch },
                    { name: phaseNames.spill, value: a.spill_ms, color: phaseColors.spill },
                    { name: phaseNames.wait, value: a.wait_ms, color: phaseColors.wait },
                    {
                      name: phaseNames.deserialize,
                      value: a.deserialize_ms,
                      color: phaseColors.deserialize,
                    },
                    { name: "run", value: a.run_ms, color: "var(--bar-running)" },
                    {
                      name: phaseNames.publish,
                      value: a.publish_ms,
                      color: phaseColors.publish,
                    },
                  ]}
                />
              </div>
            ),
          },
          { name: "Transfer", right: true, cell: (a) => duration(a.fetch_ms) },
          { name: "Run", right: true, cell: (a) => duration(a.run_ms) },
          { name: "Inputs", right: true, cell: (a) => bytes(a.input_bytes) },
          { name: "Result", right: true, cell: (a) => bytes(a.output_bytes) },
        ]}
      />
    </Card>
  );
}

function Output({ task }: { task: Task }) {
  const [all, setAll] = useState("");
  const [error, setError] = useState("");
  const text = all || task.logTail || task.error?.logTail || "";
  const load = async () => {
    try {
      const log = await callWorker<{ text?: string }>(task.worker ?? "", "GetTaskLogs", {
        taskId: String(task.taskId),
      });
      setAll(log.text ?? "");
    } catch (e) {
      setError(messageOf(e));
    }
  };
  return (
    <Card
      title="Output"
      aside={
        task.worker ? (
          <button class="button" type="button" onClick={() => void load()}>
            Load all
          </button>
        ) : undefined
      }
    >
      {error && <div class="notice bad round">{error}</div>}
      {text ? <Text height={320}>{text}</Text> : <span class="faint">It has written nothing.</span>}
    </Card>
  );
}

function Result(props: { id: string }) {
  const [text, setText] = useState("");
  const load = async () => {
    try {
      const result = await call<{ json?: unknown; value?: unknown }>("GetResult", {
        task: { id: props.id },
      });
      const json = JSON.stringify(result.json ?? result.value ?? null, null, 2) ?? "null";
      setText(json.length > 20_000 ? `${json.slice(0, 20_000)}…` : json);
    } catch (e) {
      setText(messageOf(e));
    }
  };
  return (
    <Card
      title="Result"
      aside={
        <button class="button" type="button" onClick={() => void load()}>
          Show
        </button>
      }
    >
      {text ? (
        <Text height={320}>{text}</Text>
      ) : (
        <span class="faint">Small results of native operations can be shown.</span>
      )}
    </Card>
  );
}
