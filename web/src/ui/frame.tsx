// The frame around the pages: the menu, the head, the shortcuts.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { logout } from "../api";
import { theme, toggleTheme } from "../colors";
import { clock, perSecond } from "../format";
import { frozen } from "../frozen";
import { go, home, link, linkTo, place } from "../router";
import { alarms, connection, needsLogin, session, summary, useStore } from "../store";
import { presently } from "../time";
import { Icon } from "./icons";
import { Palette } from "./palette";
import { Dialog } from "./parts";

interface Entry {
  id: string;
  name: string;
  key: string;
}

// Menu lists the pages with the keys that open them, after "g".
export const menu: { title: string; entries: Entry[] }[] = [
  {
    title: "Observe",
    entries: [
      ...(frozen ? [{ id: "report", name: "Report", key: "p" }] : []),
      { id: "overview", name: "Overview", key: "o" },
      { id: "stream", name: "Task stream", key: "s" },
      { id: "graphs", name: "Graphs", key: "g" },
      { id: "workers", name: "Workers & GPUs", key: "w" },
    ],
  },
  {
    title: "Data",
    entries: [
      { id: "memory", name: "Memory", key: "m" },
      { id: "routes", name: "Routes", key: "r" },
      { id: "datasets", name: "Datasets", key: "d" },
    ],
  },
  {
    title: "Activity",
    entries: [
      { id: "events", name: "Events", key: "e" },
      { id: "logs", name: "Logs", key: "l" },
      { id: "clients", name: "Clients", key: "c" },
    ],
  },
];

const dots = { live: "good", connecting: "warn", lost: "bad", report: "" };

function isTyping(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select, dialog") !== null;
}

export function Frame(props: { title: string; full?: boolean; children: ComponentChildren }) {
  const [dialog, setDialog] = useState<"" | "palette" | "help">("");
  const state = useStore(connection);
  const list = useStore(alarms);
  const now = useStore(summary);
  const who = useStore(session);
  const colors = useStore(theme);
  const section = useStore(place).path[0] ?? home;
  const current = section === "tasks" ? "stream" : section;

  useEffect(() => {
    let after = "";
    const press = (event: KeyboardEvent) => {
      if ((event.metaKey || event.ctrlKey) && event.key === "k") {
        event.preventDefault();
        setDialog("palette");
        return;
      }
      if (event.metaKey || event.ctrlKey || event.altKey || isTyping(event.target)) return;
      const first = after;
      after = "";
      if (first === "g") {
        const entry = menu.flatMap((m) => m.entries).find((e) => e.key === event.key);
        if (entry) go(link(entry.id));
      } else if (event.key === "g") after = "g";
      else if (event.key === "/") setDialog("palette");
      else if (event.key === "?") setDialog("help");
      else if (event.key === "t") toggleTheme();
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);

  useEffect(() => {
    document.title = `${props.title} · Millrace`;
  }, [props.title]);

  const worst = list.some((a) => a.severity === "critical" || a.severity === "error")
    ? "bad"
    : "warn";
  const said = {
    live: "Live",
    connecting: "Connecting",
    lost: "Connection lost",
    report: `As it was at ${clock(presently())}`,
  }[state];
  return (
    <div class="frame">
      <a class="skip" href="#content" onClick={skip}>
        Skip to the content
      </a>
      <nav class="side" aria-label="Pages">
        <a class="brand" href={link(home)}>
          <Icon name="brand" size={20} />
          <span>Millrace</span>
        </a>
        {menu.map((part) => (
          <>
            <h2>{part.title}</h2>
            <ul>
              {part.entries.map((e) => (
                <li key={e.id}>
                  <a
                    href={link(e.id)}
                    aria-current={e.id === current ? "page" : undefined}
                    title={`g ${e.key}`}
                  >
                    <Icon name={e.id} />
                    <span class="name">{e.name}</span>
                  </a>
                  {e.id === "overview" && list[0] && (
                    <a class={`badge tail ${worst}`} href={linkTo("overview", list[0].id)}>
                      {list.length}
                      <span class="hidden"> alarms</span>
                    </a>
                  )}
                </li>
              ))}
            </ul>
          </>
        ))}
        <footer>
          {who && (
            <>
              <div>{who.version || "development build"}</div>
              {who.role && <div>{who.role}</div>}
              {!frozen && (
                <a href="api/report" download="millrace-report.html">
                  Save as one file
                </a>
              )}
            </>
          )}
        </footer>
      </nav>
      <div class="main">
        <header class="top">
          <h1>{props.title}</h1>
          <div class="space" />
          <span class="live" role="status">
            <span class={`dot ${dots[state]}`} />
            {said}
          </span>
          {now && !frozen && <span class="faint nowrap">{perSecond(now.tasks_per_second)}</span>}
          <button class="button search" type="button" onClick={() => setDialog("palette")}>
            <Icon name="search" /> Jump to… <kbd>/</kbd>
          </button>
          <button
            class="button plain"
            type="button"
            onClick={toggleTheme}
            aria-label={colors === "dark" ? "Use light colours" : "Use dark colours"}
          >
            <Icon name={colors === "dark" ? "sun" : "moon"} />
          </button>
          <button
            class="button plain"
            type="button"
            onClick={() => setDialog("help")}
            aria-label="Keyboard shortcuts"
          >
            <Icon name="help" />
          </button>
          {who?.tokens && (
            <button
              class="button plain"
              type="button"
              onClick={() =>
                void logout().then(() =>
                  needsLogin.set({ why: "You have logged out.", bad: false }),
                )
              }
            >
              Log out
            </button>
          )}
        </header>
        {state === "lost" && (
          <div class="notice" role="alert">
            The scheduler does not answer. The page shows its last state, and tries again.
          </div>
        )}
        <main id="content" class={`page${props.full ? " full" : ""}`} tabIndex={-1}>
          {props.children}
        </main>
      </div>
      {dialog === "palette" && <Palette onClose={() => setDialog("")} />}
      {dialog === "help" && <Help onClose={() => setDialog("")} />}
    </div>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Help(props: { onClose: () => void }) {
  const rows: [string, string][] = [
    ["/", "Jump to a page, worker, graph or task"],
    ...menu.flatMap((m) => m.entries.map((e): [string, string] => [`g ${e.key}`, e.name])),
    ["t", "Light or dark colours"],
    ["← → + −", "Task stream: pan and zoom"],
    ["f", "Task stream: follow the newest tasks"],
    ["0", "Task stream, graph: show all"],
    ["?", "This list"],
  ];
  return (
    <Dialog label="Keyboard shortcuts" onClose={props.onClose}>
      <form method="dialog">
        <h2>Keyboard shortcuts</h2>
        <dl class="facts">
          {rows.map(([key, what]) => (
            <>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{what}</dd>
            </>
          ))}
        </dl>
        <div class="actions">
          <button class="button" type="submit">
            Close
          </button>
        </div>
      </form>
    </Dialog>
  );
}
