// Fails when what a first visit must download before anything shows exceeds the budget.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const BUDGET = 150_000;
const dist = join(dirname(fileURLToPath(import.meta.url)), "..", "dist");
const html = readFileSync(join(dist, "index.html"), "utf8");
const initial = new Set(
  [...html.matchAll(/(?:src|href)="(\/assets\/[^"]+\.(?:js|css))"/g)].map((match) => match[1]),
);
if (initial.size === 0)
  throw new Error("index.html names no script: has the build layout changed?");

let scripts = 0;
for (const file of initial) {
  const size = gzipSync(readFileSync(join(dist, file))).length;
  if (file.endsWith(".js")) scripts += size;
  console.log(`${String(size).padStart(8)}  ${file}`);
}
console.log(`${String(scripts).padStart(8)}  initial script, compressed (budget ${BUDGET})`);
if (scripts > BUDGET) process.exit(1);
