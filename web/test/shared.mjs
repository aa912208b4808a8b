// The cluster and the browser that all tests share.

import { chromium } from "playwright-core";
import { startCluster } from "./cluster.mjs";

export const shared = { cluster: null, browser: null };

// Console errors, exceptions, and requests to other addresses than the cluster's, of all pages.
export const problems = [];

// How long a page may take to show something, in milliseconds. A busy machine takes minutes.
const patience = 300_000;

export async function open() {
  const [cluster, browser] = await Promise.all([
    startCluster(),
    chromium.launch({
      executablePath: process.env.BROWSER,
      args: ["--no-sandbox", "--disable-gpu"],
    }),
  ]);
  Object.assign(shared, { cluster, browser });
}

export async function close() {
  await shared.browser?.close();
  await shared.cluster?.stop();
}

// blankPage opens a page that is not logged in. It may send requests to one address only.
export async function blankPage(options = {}, base = shared.cluster.url) {
  const context = await shared.browser.newContext({
    colorScheme: "light",
    viewport: { width: 1280, height: 800 },
    reducedMotion: "reduce",
    ...options,
  });
  context.setDefaultTimeout(patience);
  const page = await context.newPage();
  page.on("console", (m) => {
    // A task that the page has just heard of may be released before the page asks for it, and some
    // tests ask for what never was.
    const gone =
      /status of 40[04]/.test(m.text()) &&
      /\/(GetTask|GetTaskLogs|ExplainTask|GetResult|GetGraph|GetWorker)$/.test(m.location().url);
    if (m.type() === "error" && !gone) problems.push(`${m.text()} ${m.location().url}`);
  });
  page.on("pageerror", (e) => problems.push(String(e)));
  page.on("request", (r) => {
    if (!r.url().startsWith(base) && !/^(data|blob):/.test(r.url())) problems.push(r.url());
  });
  return page;
}

// newPage opens a page that is logged in with a token.
export async function newPage(options, token, { url, token: own } = shared.cluster) {
  const page = await blankPage(options, url);
  await page.goto(`${url}#token=${token ?? own}`);
  await live(page);
  return page;
}

export const live = (page) => page.getByRole("status").getByText("Live").waitFor();

// orders finds the buttons with which operators drain, retire and restart workers.
export const orders = (page) =>
  page.getByRole("button", { name: /^(Drain|Retire|Restart|Put back into use)…$/ });
