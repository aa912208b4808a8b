// Who may do what: logins, tokens without rights, pages of other sites, proxies, and the orders of
// operators to workers.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import http from "node:http";
import { test } from "node:test";
import { until } from "./cluster.mjs";
import { blankPage, live, newPage, orders, problems, shared } from "./shared.mjs";

// serve runs an HTTP server while a function uses it.
async function serve(handler, use) {
  const server = http.createServer(handler);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await use(server.address().port);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

// A proxy that removes a prefix of the path, as nginx and jupyter-server-proxy do.
const proxyTo = (target, prefix) => (request, response) => {
  if (!request.url.startsWith(prefix)) return response.writeHead(404).end();
  const { method, headers } = request;
  const path = request.url.slice(prefix.length - 1);
  const onward = http.request(new URL(target), { method, headers, path }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on("error", () => response.destroy());
  response.on("close", () => onward.destroy());
  request.pipe(onward);
};

export async function logIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
}

// post sends a request as a script of the page would.
const post = (page, path, headers = {}) =>
  page.evaluate(
    async ([to, more]) => {
      const headers = { "Content-Type": "application/json", ...more };
      const response = await fetch(to, { method: "POST", headers, body: "{}" });
      return response.status;
    },
    [path, headers],
  );

const workerNow = async (name) => {
  const { workers } = await shared.cluster.call("ListWorkers");
  return workers.filter((w) => w.name === name).at(-1);
};

// order presses a button of a worker's page and confirms it.
async function order(page, name) {
  await page.getByRole("button", { name: `${name}…` }).click();
  await page.getByLabel("Reason").fill("the fan is loud");
  await page.getByRole("dialog").getByRole("button", { name, exact: true }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
}

// Addresses that lead to nothing, with what the page says.
const nowhere = [
  ["#/nonsense", "There is no page nonsense"],
  ["#/overview/more", "There is no page overview/more"],
  ["#/tasks", "There is no page tasks"],
  ["#/report", "There is no page report"],
  ["#/%E0%A4%A", "There is no page %E0%A4%A"],
  ["#/workers/host-99", "There is no worker host-99"],
  ["#/workers/host-1/2", "There is no page workers/host-1/2"],
  ["#/graphs/99999", "There is no graph g99999"],
  ["#/graphs/first", "There is no graph first"],
  ["#/graphs/99999999999999999999999", "There is no graph 99999999999999999999999"],
  ["#/tasks/99999999999999999999999", "There is no task 99999999999999999999999"],
  ["#/tasks/no-such-key", "There is no task no-such-key"],
  ["#/memory?worker=host-99", "No worker host-99 is registered now"],
  ["#/logs?from=host-99", "No worker host-99 is registered now"],
];

export function testAccess() {
  test("the login page says why it is there", async () => {
    const page = await blankPage();
    const { url } = shared.cluster;
    const says = async (address, text) => {
      await page.goto("about:blank");
      await page.goto(address);
      await page.getByText(text).waitFor();
      await page.getByLabel("Token").waitFor();
    };
    await says(url, "This cluster asks for a token");
    await says(`${url}#token=wrong`, "The link did not log in: the token is not one of this");
    await says(`${url}#token=%E0%A4%A`, "The link did not log in: the token is not one of this");
    const name = `millrace_token_${new URL(url).port}`;
    const value = Buffer.from("of another life").toString("base64url");
    await page.context().addCookies([{ name, value, url }]);
    await says(url, "The login of this browser has ended");
    await logIn(page, shared.cluster.token);
    await live(page);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByText("You have logged out").waitFor();
    await page.context().close();
  });

  test("an address that leads to nothing", async () => {
    problems.length = 0;
    const page = await newPage();
    for (const [address, text] of nowhere) {
      await page.goto(`${shared.cluster.url}${address}`);
      await page.locator("#content").getByText(text).waitFor();
    }
    await page.goto(`${shared.cluster.url}#/graphs/g1?show=nonsense`);
    await page.getByText(/critical path [0-9]/).waitFor();
    assert.deepEqual(problems, []);
    await page.context().close();
  });

  test("login with the form", async () => {
    const page = await blankPage();
    await page.goto(shared.cluster.url);
    await logIn(page, "wrong");
    await page.getByRole("alert").getByText("not one of this cluster's").waitFor();
    assert.deepEqual(await page.context().cookies(), []);
    await logIn(page, shared.cluster.token);
    await live(page);
    const [cookie, ...others] = await page.context().cookies();
    assert.equal(others.length, 0);
    assert.equal(cookie.httpOnly, true);
    assert.equal(cookie.sameSite, "Strict");
    assert.ok(!cookie.value.includes(shared.cluster.token));
    assert.equal(await page.evaluate(() => document.cookie), "");
    const list = "api/millrace.v1.SchedulerService/ListGraphs";
    assert.equal(await post(page, list), 403);
    assert.equal(await post(page, list, { "X-Millrace": "1" }), 200);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await post(page, list, { "X-Millrace": "1" }), 401);
    await page.context().close();
  });

  // Cookies do not tell ports apart, so that the browser sends ours with the form of the other site.
  test("a form of another site is refused", async () => {
    const page = await newPage();
    const target = `${shared.cluster.url}api/millrace.v1.SchedulerService/Shutdown`;
    const form = `<form method="post" enctype="text/plain" action="${target}">
      <input name='{"x":"' value='"}'><button>Win a prize</button></form>`;
    await serve(
      (_, response) => response.setHeader("Content-Type", "text/html").end(form),
      async (port) => {
        await page.goto(`http://127.0.0.1:${port}/`);
        const answer = page.waitForResponse(target);
        await page.getByRole("button").click();
        const response = await answer;
        assert.match((await response.request().allHeaders()).cookie ?? "", /millrace_token/);
        assert.equal(response.status(), 403);
      },
    );
    await page.context().close();
  });

  for (const prefix of ["/tools/millrace/", "/user/ann/proxy/8787/"]) {
    test(`behind a proxy at ${prefix}`, async () => {
      await serve(proxyTo(shared.cluster.url, prefix), async (port) => {
        const base = `http://127.0.0.1:${port}${prefix}`;
        const page = await blankPage({}, base);
        await page.goto(`${base}status`); // Links of Dask's form lead there.
        await logIn(page, shared.cluster.token);
        await live(page);
        problems.length = 0; // Before the login, a call was refused.
        await page.goto(base);
        await live(page);
        await page.getByRole("link", { name: "Workers & GPUs" }).click();
        await page.getByRole("link", { name: "host-1", exact: true }).first().click();
        await page.locator(".log .text").first().waitFor();
        const [cookie] = await page.context().cookies();
        assert.equal(`${cookie.path}/`, prefix);
        assert.ok(page.url().startsWith(base));
        assert.deepEqual(problems, []);
        await page.context().close();
      });
    });
  }

  const roles = {
    task: () =>
      createHmac("sha256", shared.cluster.token)
        .update("millrace: clients inside of tasks")
        .digest("hex")
        .slice(0, 32),
    "read-only": () => shared.cluster.reader,
  };
  for (const [role, token] of Object.entries(roles)) {
    test(`a token of role ${role} gives no orders`, async () => {
      const page = await newPage({}, token());
      await page.goto(`${shared.cluster.url}#/workers/host-1`);
      await page.getByText("Memory by tier").waitFor();
      await page.getByRole("navigation").getByText(role, { exact: true }).waitFor();
      assert.equal(await orders(page).count(), 0);
      const refused = ["DrainWorkers", "RetireWorkers", "RestartWorkers", "Rebalance", "Shutdown"];
      if (role === "read-only") refused.push("SubmitBatch", "CancelTasks", "RetryTasks");
      for (const method of refused) {
        const path = `api/millrace.v1.SchedulerService/${method}`;
        assert.equal(await post(page, path, { "X-Millrace": "1" }), 403);
      }
      await page.context().close();
    });
  }

  test("a scheduler that is stopped", async () => {
    problems.length = 0;
    const page = await newPage();
    shared.cluster.scheduler.kill("SIGSTOP");
    try {
      await page.getByRole("status").getByText("Connection lost").waitFor();
    } finally {
      shared.cluster.scheduler.kill("SIGCONT");
    }
    await live(page);
    assert.deepEqual(problems, []);
    await page.context().close();
  });

  test("orders to workers", async () => {
    const page = await newPage();
    const badge = (text) => page.locator("#content .badge", { hasText: text }).first().waitFor();
    await page.goto(`${shared.cluster.url}#/workers/host-1`);
    await orders(page).nth(2).waitFor();
    await page.getByRole("button", { name: "Drain…" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("dialog").waitFor({ state: "detached" });
    assert.equal((await workerNow("host-1")).state, "WORKER_STATE_ACTIVE");
    await order(page, "Drain");
    await badge("drained");
    await page.getByText("the fan is loud").waitFor();
    assert.equal((await workerNow("host-1")).state, "WORKER_STATE_DRAINED");
    await order(page, "Put back into use");
    await badge("active");

    const before = await workerNow("host-0");
    await page.goto(`${shared.cluster.url}#/workers/host-0`);
    await order(page, "Restart");
    await until("host-0 is another process", async () => {
      const now = await workerNow("host-0");
      return now?.state === "WORKER_STATE_ACTIVE" && now.pid !== before.pid;
    });
    await badge("active");

    await page.goto(`${shared.cluster.url}#/workers/host-2`);
    await order(page, "Retire");
    await badge("lost");
    assert.equal(await page.getByRole("button", { name: "Retire" }).count(), 0);
    assert.equal(await workerNow("host-2"), undefined);
    await page.context().close();
  });
}
