// Loads modules of src into Node: it bundles them as the build does. They find what they need of a
// browser when they are loaded, and no more.

import { build } from "esbuild";

const browser = {
  document: { getElementById: () => null },
  location: { hash: "" },
};
browser.window = Object.assign(new EventTarget(), browser);

export async function source(path) {
  for (const [name, value] of Object.entries(browser)) globalThis[name] ??= value;
  const { outputFiles } = await build({
    entryPoints: [new URL(`../../src/${path}`, import.meta.url).pathname],
    bundle: true,
    format: "esm",
    jsx: "automatic",
    jsxImportSource: "preact",
    write: false,
    logLevel: "warning",
  });
  return import(
    `data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`
  );
}
