// The list that opens with "/": it finds pages, workers, graphs and tasks.

import { useState } from "preact/hooks";
import { go, link } from "../router";
import { graphs, workers } from "../store";
import { menu } from "./frame";
import { Dialog } from "./parts";

interface Target {
  name: string;
  kind: string;
  hash: string;
}

function targets(text: string): Target[] {
  const all: Target[] = menu.flatMap((m) =>
    m.entries.map((e) => ({ name: e.name, kind: "page", hash: link(e.id) })),
  );
  for (const w of workers.value.values()) {
    all.push({ name: w.name ?? "", kind: "worker", hash: link("workers", w.name ?? "") });
  }
  for (const g of [...graphs.value.values()].reverse().slice(0, 500)) {
    const id = String(g.graphId);
    all.push({ name: `g${id} ${g.name ?? ""}`.trim(), kind: "graph", hash: link("graphs", id) });
  }
  const wanted = text.trim().toLowerCase();
  const found = all.filter((t) => t.name.toLowerCase().includes(wanted)).slice(0, 12);
  if (wanted) {
    const id = /^t?(\d+)$/.exec(wanted)?.[1];
    found.push({
      name: id ? `t${id}` : text.trim(),
      kind: id ? "task" : "task with this key",
      hash: link("tasks", id ?? text.trim()),
    });
  }
  return found;
}

export function Palette(props: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const found = targets(text);
  const open = (target: Target | undefined) => {
    props.onClose();
    if (target) go(target.hash);
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setChosen((chosen + 1) % found.length);
    else if (event.key === "ArrowUp") setChosen((chosen + found.length - 1) % found.length);
    else if (event.key === "Enter") open(found[chosen]);
    else return;
    event.preventDefault();
  };
  return (
    <Dialog label="Jump to" class="palette" onClose={props.onClose}>
      <input
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="targets"
        aria-activedescendant={`target-${chosen}`}
        aria-label="A page, worker, graph, or the number or key of a task"
        placeholder="A page, worker, graph, or the number or key of a task"
        value={text}
        onInput={(e) => {
          setText(e.currentTarget.value);
          setChosen(0);
        }}
        onKeyDown={press}
      />
      <div class="list" id="targets" role="listbox" aria-label="Targets">
        {found.map((t, i) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the input takes the keys
          <div
            key={t.hash}
            id={`target-${i}`}
            role="option"
            aria-selected={i === chosen}
            tabIndex={-1}
            onClick={() => open(t)}
          >
            <span class="clip">{t.name}</span>
            <span class="faint">{t.kind}</span>
          </div>
        ))}
      </div>
    </Dialog>
  );
}
