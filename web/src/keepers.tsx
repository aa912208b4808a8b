// The names of what keeps results.

import { get } from "./api";
import { count, plural } from "./format";
import { link, linkTo } from "./router";
import type { Keeper } from "./types";

// The largest number of holders, and of tasks, that a page names for one result.
const named = 3;

// keepersOf gives what keeps the results of tasks, by their numbers. A report does not have it, and
// pages then have the numbers of holders only.
export async function keepersOf(tasks: string[]): Promise<Record<string, Keeper[]>> {
  if (tasks.length === 0) return {};
  const query = [...new Set(tasks)].map((task) => `task=${task}`).join("&");
  return get<Record<string, Keeper[]>>(`api/holders?${query}`).catch(() => ({}));
}

// datasetId is the id of a dataset's row.
export function datasetId(d: { name?: string; namespace?: string }): string {
  return `${d.namespace || "default"}/${d.name ?? ""}`;
}

// addressOf is the page of a keeper, or its row in a list.
function addressOf(k: Keeper): string {
  switch (k.kind) {
    case "client":
      return linkTo("clients", k.id ?? "");
    case "dataset":
      return linkTo("datasets", datasetId(k));
    case "graph":
      return link("graphs", k.id ?? "");
    case "task":
      return link("tasks", k.id ?? "");
  }
}

// nameOf names a keeper as the page does that lists it: a client without a name has a number.
export function nameOf(k: Keeper): string {
  switch (k.kind) {
    case "client":
      return `client ${k.name || `c${k.id}`}`;
    case "dataset":
      return k.name ? `dataset ${k.name}` : "a dataset";
    case "graph":
      return `graph g${k.id}`;
    case "task":
      return k.name || `t${k.id}`;
  }
}

function KeeperLink({ keeper: k }: { keeper: Keeper }) {
  return (
    <a class={k.kind === "task" ? "mono" : ""} href={addressOf(k)}>
      {nameOf(k)}
    </a>
  );
}

function List(props: { of: Keeper[]; total: number }) {
  const more = props.total - Math.min(props.of.length, named);
  return (
    <>
      {props.of.slice(0, named).map((k, i) => (
        <span key={`${k.kind}/${k.namespace}/${k.id}/${k.name}`}>
          {i > 0 && ", "}
          <KeeperLink keeper={k} />
        </span>
      ))}
      {more > 0 && ` and ${count(more)} more`}
    </>
  );
}

// Holders names those of a result's holders that are known, of a number of them.
export function Holders(props: { of: Keeper[] | undefined; total: number }) {
  const known = (props.of ?? []).filter((k) => k.kind !== "task");
  if (props.total === 0 && known.length === 0) return null;
  if (known.length > 0)
    return (
      <>
        held by <List of={known} total={props.total} />
      </>
    );
  return (
    <>
      {props.total === 1
        ? "a client or dataset holds it"
        : `${props.total} clients or datasets hold it`}
    </>
  );
}

// Users names those of the tasks that need a result that are known, of a number of them.
export function Users(props: { of: Keeper[] | undefined; total: number }) {
  const known = (props.of ?? []).filter((k) => k.kind === "task");
  if (props.total === 0 && known.length === 0) return null;
  if (known.length > 0)
    return (
      <>
        needed by <List of={known} total={props.total} />
      </>
    );
  return <>{`${plural(props.total, "task")} need${props.total === 1 ? "s" : ""} it`}</>;
}
