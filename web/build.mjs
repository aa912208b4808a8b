// Builds the dashboard into ../server/web/assets. The same source gives the same bytes.
//
//   node build.mjs          write the files
//   node build.mjs --check  fail if the files there differ from the source
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../server/web/assets");
// The largest size of all files together, compressed.
const limit = 300_000;

const result = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".svg": "text" },
  legalComments: "none",
  charset: "utf8",
  outdir: "out",
  write: false,
  logLevel: "warning",
});

const files = new Map();
let page = readFileSync(join(here, "src/index.html"), "utf8");
for (const file of result.outputFiles) {
  const kind = file.path.endsWith(".css") ? "css" : "js";
  const hash = createHash("sha256").update(file.contents).digest("hex").slice(0, 8).toUpperCase();
  const name = `app-${hash}.${kind}`;
  files.set(name, Buffer.from(file.contents));
  page = page.replace(`{{${kind}}}`, name);
}
files.set("index.html", Buffer.from(page));

let size = 0;
for (const content of files.values()) size += gzipSync(content, { level: 9 }).length;
if (size > limit) {
  console.error(`web: the build has ${size} bytes compressed; at most ${limit} are allowed`);
  process.exit(1);
}

if (process.argv.includes("--check")) {
  const there = new Set(readdirSync(target));
  const same =
    there.size === files.size &&
    [...files].every(([name, c]) => there.has(name) && c.equals(readFileSync(join(target, name))));
  if (!same) {
    console.error(
      "web: server/web/assets differs from what web/ gives: run `make web`, commit both",
    );
    process.exit(1);
  }
} else {
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target, { recursive: true });
  for (const [name, content] of files) writeFileSync(join(target, name), content);
  console.log(`web: ${files.size} files, ${size} bytes compressed`);
}
