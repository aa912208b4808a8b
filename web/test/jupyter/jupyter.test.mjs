// Opens the dashboard behind the real jupyter-server-proxy, by the link that the Python client
// gives there. ../access.mjs has the same with a proxy of its own, for every day.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { logIn } from "../access.mjs";
import { root, start } from "../cluster.mjs";
import { blankPage, close, live, open, orders, problems, shared } from "../shared.mjs";

const prefix = "/user/ann/";
const template = "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status";
const folder = mkdtempSync(join(tmpdir(), "millrace-jupyter-"));

let jupyter;
let origin;

before(async () => {
  await open();
  const env = { ...process.env };
  for (const kind of ["CONFIG", "DATA", "RUNTIME"]) env[`JUPYTER_${kind}_DIR`] = folder;
  const options = ["--allow-root", "--no-browser", "--ip=127.0.0.1", "--port=0"];
  options.push(`--ServerApp.base_url=${prefix}`, "--IdentityProvider.token=of-jupyter");
  const program = join(root, ".venv-jupyter/bin/jupyter-server");
  jupyter = start(program, options, { env, cwd: folder });
  [origin] = await jupyter.says(/http:\/\/127\.0\.0\.1:[0-9]+(?=\/user\/ann\/)/, 300);
});

after(async () => {
  jupyter?.process.kill("SIGKILL"); // At SIGTERM it asks its kernels first.
  await jupyter?.ended;
  await close();
  rmSync(folder, { recursive: true, force: true });
});

// dashboardLink is the link that a program gives that runs beside Jupyter.
function dashboardLink() {
  const env = { ...shared.cluster.env, JUPYTERHUB_SERVICE_PREFIX: prefix };
  env.DASK_DISTRIBUTED__DASHBOARD__LINK = template;
  const code = "import millrace; print(millrace.Client().dashboard_link)";
  return execFileSync(join(root, ".venv/bin/python"), ["-c", code], {
    env,
    encoding: "utf8",
  }).trim();
}

test("behind jupyter-server-proxy", async () => {
  const link = dashboardLink();
  assert.equal(link, `${prefix}proxy/${new URL(shared.cluster.url).port}/status`);
  const base = `${origin}${link.replace("status", "")}`;
  const page = await blankPage({}, `${origin}${prefix}`);

  await page.goto(`${origin}${link}`);
  assert.match(page.url(), /\/user\/ann\/login\?/); // Jupyter asks for its own login.
  await page.goto(`${origin}${link}?token=of-jupyter`);
  await logIn(page, shared.cluster.token);
  await live(page);
  const cookies = await page.context().cookies();
  const cookie = cookies.find((c) => c.name.startsWith("millrace_token"));
  assert.equal(`${cookie.path}/`, new URL(base).pathname);
  problems.length = 0; // Before the login, a call was refused.

  // The stream brings changes, and links, calls, orders and downloads keep the prefix.
  await page.goto(base);
  await live(page);
  await page.getByRole("link", { name: "Workers & GPUs" }).click();
  await page.getByRole("link", { name: "host-1", exact: true }).first().click();
  await page.locator(".log .text").first().waitFor();
  const badge = (text) => page.locator("#content .badge", { hasText: text }).first().waitFor();
  for (const [order, state] of [
    ["Drain", "drained"],
    ["Put back into use", "active"],
  ]) {
    await orders(page).filter({ hasText: order }).click();
    await page.getByRole("dialog").getByRole("button", { name: order, exact: true }).click();
    await badge(state);
  }
  assert.ok(page.url().startsWith(base));
  const saved = page.waitForEvent("download");
  await page.getByRole("link", { name: "Save as one file" }).click();
  assert.equal(await (await saved).failure(), null);

  // A card in a notebook has the dashboard in a frame.
  const frame = `<iframe src="${link}" style="width:100%;height:520px"></iframe>`;
  await page.route(`${origin}${prefix}lab`, (route) =>
    route.fulfill({ contentType: "text/html", body: frame }),
  );
  await page.goto(`${origin}${prefix}lab`);
  await live(page.frameLocator("iframe"));
  assert.deepEqual(problems, []);
  await page.context().close();
});
