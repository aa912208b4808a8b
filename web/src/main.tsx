import "uplot/dist/uPlot.min.css";
import "./css/app.css";
import { render } from "preact";
import { applyTheme } from "./colors";
import { frozen } from "./frozen";
import { EventsPage, Logs } from "./pages/activity";
import { Clients, Datasets } from "./pages/clients";
import { GraphPage } from "./pages/graph";
import { Graphs } from "./pages/graphs";
import { Login } from "./pages/login";
import { MemoryPage } from "./pages/memory";
import { Overview } from "./pages/overview";
import { ReportPage } from "./pages/report";
import { Routes } from "./pages/routes";
import { StreamPage } from "./pages/stream";
import { TaskPage } from "./pages/task";
import { WorkerPage } from "./pages/worker";
import { WorkersPage } from "./pages/workers";
import { decoded, go, home, place } from "./router";
import { logInByLink, needsLogin, start, useStore } from "./store";
import { Frame } from "./ui/frame";
import { Missing } from "./ui/parts";

// isNumber says whether a text can be the number of a graph. They have 64 bits.
const isNumber = (text: string) => /^[0-9]+$/.test(text) && BigInt(text) < 2n ** 64n;

function Page() {
  const [section = home, id, ...more] = useStore(place).path;
  const shown = more.length > 0 ? undefined : id === undefined ? pageOf(section) : one(section, id);
  if (shown) return shown;
  const path = [section, id, ...more].filter((part) => part !== undefined).join("/");
  return (
    <Frame title="Not found">
      <Missing
        what={`page ${path}`}
        why="The address may have a typing error. The list at the left has all pages; the first is the"
        section={home}
        list={frozen ? "report" : "overview"}
      />
    </Frame>
  );
}

// pageOf gives the page of a section; undefined: there is none.
function pageOf(section: string) {
  switch (section) {
    case "overview":
      return (
        <Frame title="Overview">
          <Overview />
        </Frame>
      );
    case "report":
      return frozen ? (
        <Frame title={frozen.title || "Report"}>
          <ReportPage />
        </Frame>
      ) : undefined;
    case "stream":
      return (
        <Frame title="Task stream" full>
          <StreamPage />
        </Frame>
      );
    case "workers":
      return (
        <Frame title="Workers & GPUs">
          <WorkersPage />
        </Frame>
      );
    case "graphs":
      return (
        <Frame title="Graphs">
          <Graphs />
        </Frame>
      );
    case "memory":
      return (
        <Frame title="Memory">
          <MemoryPage />
        </Frame>
      );
    case "routes":
      return (
        <Frame title="Routes">
          <Routes />
        </Frame>
      );
    case "logs":
      return (
        <Frame title="Logs" full>
          <Logs />
        </Frame>
      );
    case "events":
      return (
        <Frame title="Events" full>
          <EventsPage />
        </Frame>
      );
    case "clients":
      return (
        <Frame title="Clients and namespaces">
          <Clients />
        </Frame>
      );
    case "datasets":
      return (
        <Frame title="Datasets">
          <Datasets />
        </Frame>
      );
  }
  return undefined;
}

// one gives the page of one worker, graph or task; undefined: the section has none.
function one(section: string, id: string) {
  switch (section) {
    case "workers":
      return (
        <Frame title={`Worker ${id}`}>
          <WorkerPage key={id} name={id} />
        </Frame>
      );
    case "graphs": {
      const number = id.replace(/^g/, "");
      return (
        <Frame title={`Graph ${isNumber(number) ? "g" : ""}${number}`}>
          {isNumber(number) ? (
            <GraphPage key={number} id={number} />
          ) : (
            <Missing
              what={`graph ${id}`}
              why="Graphs have numbers. They are on the page"
              section="graphs"
              list="Graphs"
            />
          )}
        </Frame>
      );
    }
    case "tasks":
      return (
        <Frame title={/^\d+$/.test(id) ? `Task t${id}` : `Task ${id}`}>
          <TaskPage key={id} id={id} />
        </Frame>
      );
  }
  return undefined;
}

function App() {
  return useStore(needsLogin) ? <Login /> : <Page />;
}

// A link with the token in its fragment logs in. The fragment is never sent, and is removed here.
async function begin(): Promise<void> {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token) {
    window.history.replaceState(null, "", location.pathname);
    go("#/overview");
    await logInByLink(decoded(token));
  }
  applyTheme();
  const root = document.getElementById("app");
  if (root) render(<App />, root);
  await start();
}

void begin();
