// Bundles the tests into a folder of its own and runs them.
import { build } from "esbuild";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { spawn } from "node:child_process";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = await mkdtemp(join(tmpdir(), "loadplane-web-"));
const tests = (await readdir(here)).filter((name) => name.endsWith(".test.ts"));
await build({
  absWorkingDir: here,
  entryPoints: tests,
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  target: "node20",
  sourcemap: "inline",
});
const files = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
const child = spawn(process.execPath, ["--test", ...files], { stdio: "inherit" });
child.on("exit", async (code) => {
  await rm(out, { recursive: true });
  process.exit(code ?? 1);
});
