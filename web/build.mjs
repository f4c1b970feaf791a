// Builds the page into ../api/page/static, or into a folder that is named. The same sources give the same
// bytes: nothing of the time, the machine or the folder is written.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "api", "page", "static");

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.ts", theme: "src/theme.ts" },
  outdir: out,
  bundle: true,
  format: "iife",
  target: "es2022",
  minify: true,
  legalComments: "none",
  charset: "utf8",
});
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/app.css" },
  outdir: out,
  bundle: true,
  minify: true,
  target: "es2022",
  charset: "utf8",
});
for (const name of ["index.html", "icon.svg"]) {
  await copyFile(join(here, "src", name), join(out, name));
}
