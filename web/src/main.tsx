import "uplot/dist/uPlot.min.css";
import "./css/app.css";
import { render } from "preact";
import { login } from "./api";
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
import { go, home, place } from "./router";
import { needsLogin, start, useStore } from "./store";
import { Frame } from "./ui/frame";
import { Empty } from "./ui/parts";

function Page() {
  const [section = home, id] = useStore(place).path;
  switch (section) {
    case "overview":
      return (
        <Frame title="Overview">
          <Overview />
        </Frame>
      );
    case "report":
      return (
        <Frame title={frozen?.title || "Report"}>
          <ReportPage />
        </Frame>
      );
    case "stream":
      return (
        <Frame title="Task stream" full>
          <StreamPage />
        </Frame>
      );
    case "workers":
      return id === undefined ? (
        <Frame title="Workers & GPUs">
          <WorkersPage />
        </Frame>
      ) : (
        <Frame title={`Worker ${id}`}>
          <WorkerPage key={id} name={id} />
        </Frame>
      );
    case "graphs":
      return id === undefined ? (
        <Frame title="Graphs">
          <Graphs />
        </Frame>
      ) : (
        <Frame title={`Graph g${id}`}>
          <GraphPage key={id} id={id} />
        </Frame>
      );
    case "tasks":
      return (
        <Frame title={/^\d+$/.test(id ?? "") ? `Task t${id}` : `Task ${id}`}>
          <TaskPage key={id} id={id ?? ""} />
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
    default:
      return (
        <Frame title="Not found">
          <Empty title="There is no such page" />
        </Frame>
      );
  }
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
    await login(decodeURIComponent(token)).catch(() => undefined);
  }
  applyTheme();
  const root = document.getElementById("app");
  if (root) render(<App />, root);
  await start();
}

void begin();
