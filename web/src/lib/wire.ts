/**
 * Decoding of what the server sends. Pure: no DOM, no network, so that it can be pinned by property tests.
 * Telemetry is advisory, therefore a malformed record decodes to `null` and is skipped by the caller.
 */

export const TIERS = ["disk", "ram", "vram"] as const;
export type Tier = (typeof TIERS)[number];

export interface ExpertMap {
  rows: number;
  cols: number;
  cells: Uint8Array;
}

export interface HitMap {
  rows: number;
  cols: number;
  /** Bit i = row * cols + expert lives in byte i / 8, least significant first. */
  bits: Uint8Array;
}

export interface HardwareInfo {
  cores: number;
  ram_total_gb: number;
  ram_avail_gb: number;
  ngpu: number;
  vram_total_gb: number;
  cpu_name: string;
  gpu_name: string;
}

export interface TierCounts {
  vram: number;
  ram: number;
  disk: number;
  vram_gb: number;
  ram_gb: number;
}

const PHASES = [
  "starting",
  "loading",
  "ready",
  "restarting",
  "failed",
  "stopping",
  "stopped",
] as const;
export type EnginePhase = (typeof PHASES)[number];

export interface EngineState {
  state: EnginePhase;
  reason: string | null;
  hint: string | null;
  stage: string | null;
  done: number;
  total: number;
  model: string;
  version: string;
  ctx: number;
  slots: number;
  layers: number[] | null;
  rows: number;
  cols: number;
  hwinfo: HardwareInfo | null;
  tiers: TierCounts | null;
  generation: { temperature: number | null; top_p: number | null };
}

export interface TurnStats {
  completion_tokens: number | null;
  tokens_per_second: number | null;
  cache_hit_percent: number | null;
  rss_gb: number | null;
  prompt_tokens: number | null;
  cached_tokens: number | null;
  length_limited: boolean;
  ttft_ms: number | null;
}

export interface ServerError {
  message: string;
  type: string | null;
  code: string | null;
  param: string | null;
  hint: string | null;
}

export type ChatFrame =
  | { kind: "delta"; content: string; reasoning: string; finish: string | null }
  | { kind: "stats"; stats: TurnStats }
  | { kind: "error"; error: ServerError }
  | { kind: "done" };

type Json = Record<string, unknown>;

export function isRecord(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function num(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function str(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function count(value: unknown): number | null {
  const n = num(value);
  return n !== null && Number.isInteger(n) && n >= 0 ? n : null;
}

/** Lower- or upper-case hex to bytes. */
export function decodeHex(hex: string): Uint8Array | null {
  if (hex.length % 2 !== 0 || !/^[0-9a-fA-F]*$/.test(hex)) return null;
  const bytes = new Uint8Array(hex.length / 2);
  for (let i = 0; i < bytes.length; i++)
    bytes[i] = Number.parseInt(hex.slice(i * 2, i * 2 + 2), 16);
  return bytes;
}

export function decodeBase64(text: string): Uint8Array | null {
  let binary: string;
  try {
    binary = atob(text);
  } catch {
    return null;
  }
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** The spec's ceiling on map cells; a larger claim is junk or an attempt to exhaust memory. */
const MAX_CELLS = 1 << 18;

function geometry(value: Json): { rows: number; cols: number } | null {
  const rows = count(value.rows);
  const cols = count(value.cols);
  if (rows === null || cols === null || rows * cols > MAX_CELLS) return null;
  return { rows, cols };
}

export function expertMap(rows: number, cols: number, cells: Uint8Array | null): ExpertMap | null {
  return cells !== null && cells.length === rows * cols ? { rows, cols, cells } : null;
}

export function hitMap(rows: number, cols: number, bits: Uint8Array | null): HitMap | null {
  return bits !== null && bits.length === Math.ceil((rows * cols) / 8)
    ? { rows, cols, bits }
    : null;
}

/** Body of `GET /experts`. */
export function decodeExperts(value: unknown): ExpertMap | null {
  if (!isRecord(value)) return null;
  const size = geometry(value);
  const hex = str(value.map);
  return size && hex !== null ? expertMap(size.rows, size.cols, decodeHex(hex)) : null;
}

/** Data of a `map` event. */
export function decodeMapEvent(value: unknown): ExpertMap | null {
  if (!isRecord(value)) return null;
  const size = geometry(value);
  const data = str(value.data);
  return size && data !== null ? expertMap(size.rows, size.cols, decodeBase64(data)) : null;
}

/** Data of a `hits` event. */
export function decodeHitsEvent(value: unknown): HitMap | null {
  if (!isRecord(value)) return null;
  const size = geometry(value);
  const data = str(value.data);
  return size && data !== null ? hitMap(size.rows, size.cols, decodeBase64(data)) : null;
}

export function tierOf(cell: number): Tier | null {
  return TIERS[cell >> 6] ?? null;
}

export function heatOf(cell: number): number {
  return cell & 63;
}

/** How often an expert of this heat has been selected: heat is the bit length of the counter. */
export function heatRange(heat: number): { low: number; high: number } {
  return heat <= 0 ? { low: 0, high: 0 } : { low: 2 ** (heat - 1), high: 2 ** heat - 1 };
}

export function decodeTiers(value: unknown): TierCounts | null {
  if (!isRecord(value)) return null;
  const vram = count(value.vram);
  const ram = count(value.ram);
  const disk = count(value.disk);
  if (vram === null || ram === null || disk === null) return null;
  return { vram, ram, disk, vram_gb: num(value.vram_gb) ?? 0, ram_gb: num(value.ram_gb) ?? 0 };
}

function decodeHardware(value: unknown): HardwareInfo | null {
  if (!isRecord(value)) return null;
  return {
    cores: count(value.cores) ?? 0,
    ram_total_gb: num(value.ram_total_gb) ?? 0,
    ram_avail_gb: num(value.ram_avail_gb) ?? 0,
    ngpu: count(value.ngpu) ?? 0,
    vram_total_gb: num(value.vram_total_gb) ?? 0,
    cpu_name: str(value.cpu_name) ?? "",
    gpu_name: str(value.gpu_name) ?? "",
  };
}

function isPhase(value: unknown): value is EnginePhase {
  return PHASES.some((phase) => phase === value);
}

export function decodeState(value: unknown): EngineState | null {
  if (!isRecord(value) || !isPhase(value.state)) return null;
  const size = geometry(value) ?? { rows: 0, cols: 0 };
  const layers = Array.isArray(value.layers) ? value.layers.map(count) : null;
  const generation = isRecord(value.generation) ? value.generation : {};
  return {
    state: value.state,
    reason: str(value.reason),
    hint: str(value.hint),
    stage: str(value.stage),
    done: num(value.done) ?? 0,
    total: num(value.total) ?? 0,
    model: str(value.model) ?? "",
    version: str(value.version) ?? "",
    ctx: count(value.ctx) ?? 0,
    slots: count(value.slots) ?? 0,
    layers: layers?.every((layer) => layer !== null) ? layers : null,
    rows: size.rows,
    cols: size.cols,
    hwinfo: decodeHardware(value.hwinfo),
    tiers: decodeTiers(value.tiers),
    generation: { temperature: num(generation.temperature), top_p: num(generation.top_p) },
  };
}

export function decodeStats(value: unknown): TurnStats | null {
  if (!isRecord(value)) return null;
  return {
    completion_tokens: count(value.completion_tokens),
    tokens_per_second: num(value.tokens_per_second),
    cache_hit_percent: num(value.cache_hit_percent),
    rss_gb: num(value.rss_gb),
    prompt_tokens: count(value.prompt_tokens),
    cached_tokens: count(value.cached_tokens),
    length_limited: value.length_limited === true || value.length_limited === 1,
    ttft_ms: num(value.ttft_ms),
  };
}

/** The latest turn in the body of `GET /profile`, whose turns come oldest first. */
export function decodeLastTurn(value: unknown): TurnStats | null {
  return isRecord(value) && Array.isArray(value.turns) ? decodeStats(value.turns.at(-1)) : null;
}

/** The `error` object of an OpenAI-style body or stream frame. */
export function decodeError(value: unknown): ServerError | null {
  if (!isRecord(value)) return null;
  const error = value.error;
  if (typeof error === "string") {
    return { message: error, type: null, code: null, param: null, hint: null };
  }
  if (!isRecord(error)) return null;
  return {
    message: str(error.message) ?? "The server reported an error without a message.",
    type: str(error.type),
    code: str(error.code) ?? num(error.code)?.toString() ?? null,
    param: str(error.param),
    hint: str(error.hint),
  };
}

/** One `data:` payload of a streamed chat completion. Unknown payloads give no frames. */
export function decodeChatFrames(data: string): ChatFrame[] {
  if (data.trim() === "[DONE]") return [{ kind: "done" }];
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    return [];
  }
  if (!isRecord(value)) return [];
  const error = decodeError(value);
  if (error) return [{ kind: "error", error }];

  const frames: ChatFrame[] = [];
  const choice: unknown = Array.isArray(value.choices) ? value.choices[0] : undefined;
  if (isRecord(choice)) {
    const delta = isRecord(choice.delta) ? choice.delta : {};
    frames.push({
      kind: "delta",
      content: str(delta.content) ?? "",
      reasoning: str(delta.reasoning_content) ?? "",
      finish: str(choice.finish_reason),
    });
  }
  if (isRecord(value.colibri)) {
    const stats = decodeStats(value.colibri.stats);
    if (stats) frames.push({ kind: "stats", stats });
  }
  return frames;
}

/** First model id of `GET /v1/models`. */
export function decodeModelId(value: unknown): string | null {
  if (!isRecord(value) || !Array.isArray(value.data)) return null;
  const first: unknown = value.data[0];
  return isRecord(first) ? str(first.id) : null;
}
