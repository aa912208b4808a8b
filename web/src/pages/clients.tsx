// Clients, their namespaces, and datasets.

import { ago, bytes, count, duration, millis, num, plural } from "../format";
import { datasetId } from "../keepers";
import { link } from "../router";
import { clients, datasets, graphs, useHeard, useStore, useTopics } from "../store";
import { Card, Empty, Table, useMarked, useNow, Waiting } from "../ui/parts";

export function Clients() {
  useTopics("clients", "datasets");
  const now = useNow();
  const marked = useMarked();
  const all = [...useStore(clients).values()];
  const sets = [...useStore(datasets).values()];
  const list = [...useStore(graphs).values()];
  const heard = useHeard("clients", "datasets", "graphs");
  const names = new Set([...all, ...list, ...sets].map((x) => x.namespace || "default"));
  const rows = [...names].sort().map((name) => {
    const here = <T extends { namespace?: string }>(x: T) => (x.namespace || "default") === name;
    return {
      name,
      clients: all.filter(here).length,
      held: all.filter(here).reduce((s, c) => s + num(c.heldTasks), 0),
      graphs: list.filter(here).length,
      running: list.filter((g) => here(g) && g.state === "GRAPH_STATE_RUNNING").length,
      datasets: sets.filter(here).length,
    };
  });
  if (!heard) return <Waiting />;
  return (
    <>
      <Card title={plural(all.length, "client")} bare>
        {all.length === 0 ? (
          <Empty title="No client is connected">Python: millrace.Client("host:port")</Empty>
        ) : (
          <Table
            label="Clients"
            rows={all}
            id={(c) => String(c.clientId)}
            marked={marked}
            columns={[
              {
                name: "Client",
                by: (c) => num(c.clientId),
                cell: (c) => (
                  <>
                    {c.name || "unnamed"} <span class="faint">c{c.clientId}</span>
                  </>
                ),
              },
              {
                name: "Namespace",
                by: (c) => c.namespace ?? "",
                cell: (c) => c.namespace || "default",
              },
              {
                name: "From",
                by: (c) => c.origin ?? "",
                cell: (c) => <span class="soft">{c.origin}</span>,
              },
              {
                name: "Held results",
                right: true,
                by: (c) => num(c.heldTasks),
                cell: (c) => count(num(c.heldTasks)),
              },
              { name: "Lease", right: true, cell: (c) => duration(millis(c.leaseTtl)) },
              {
                name: "Connected",
                right: true,
                by: (c) => c.createTime ?? "",
                cell: (c) => ago(c.createTime, now),
              },
              {
                name: "Seen",
                right: true,
                by: (c) => c.lastSeenTime ?? "",
                cell: (c) => ago(c.lastSeenTime, now),
              },
            ]}
          />
        )}
      </Card>
      <Card title="Namespaces" bare>
        {rows.length === 0 ? (
          <Empty title="No namespace is in use" />
        ) : (
          <Table
            label="Namespaces"
            rows={rows}
            id={(r) => r.name}
            columns={[
              { name: "Namespace", by: (r) => r.name, cell: (r) => r.name },
              { name: "Clients", right: true, by: (r) => r.clients, cell: (r) => r.clients },
              { name: "Held results", right: true, by: (r) => r.held, cell: (r) => count(r.held) },
              { name: "Graphs", right: true, by: (r) => r.graphs, cell: (r) => r.graphs },
              { name: "Running", right: true, by: (r) => r.running, cell: (r) => r.running },
              { name: "Datasets", right: true, by: (r) => r.datasets, cell: (r) => r.datasets },
            ]}
          />
        )}
      </Card>
    </>
  );
}

export function Datasets() {
  useTopics("datasets");
  const now = useNow();
  const marked = useMarked();
  const all = [...useStore(datasets).values()];
  if (!useHeard("datasets")) return <Waiting />;
  return (
    <Card title={plural(all.length, "dataset")} bare>
      {all.length === 0 ? (
        <Empty title="No dataset is published">
          A dataset is a value with a name, whose results are kept:
          client.publish_dataset(name=value). <a href={link("clients")}>Clients</a>
        </Empty>
      ) : (
        <Table
          label="Datasets"
          rows={all}
          id={datasetId}
          marked={marked}
          columns={[
            { name: "Dataset", by: (d) => d.name ?? "", cell: (d) => d.name },
            {
              name: "Namespace",
              by: (d) => d.namespace ?? "",
              cell: (d) => d.namespace || "default",
            },
            {
              name: "Results",
              right: true,
              by: (d) => d.keyCount ?? 0,
              cell: (d) => count(d.keyCount ?? 0),
            },
            {
              name: "Value",
              right: true,
              by: (d) => num(d.valueBytes),
              cell: (d) => bytes(num(d.valueBytes)),
            },
            {
              name: "Published",
              right: true,
              by: (d) => d.createTime ?? "",
              cell: (d) => ago(d.createTime, now),
            },
          ]}
        />
      )}
    </Card>
  );
}
