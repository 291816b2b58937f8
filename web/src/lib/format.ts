/** Numbers and times as people read them. `null` (the engine did not say) is a dash, never a zero. */
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const DASH = "–";

export function integer(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : whole.format(value);
}

export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined) return DASH;
  return value < 100 ? one.format(value) : whole.format(value);
}

export function percent(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : `${one.format(value)} %`;
}

export function gigabytes(value: number): string {
  return value < 1 ? `${whole.format(value * 1000)} MB` : `${one.format(value)} GB`;
}

export function milliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return DASH;
  return value < 1000 ? `${whole.format(value)} ms` : `${one.format(value / 1000)} s`;
}

export function ago(ms: number): string {
  if (ms < 10_000) return `${one.format(Math.max(0, ms) / 1000)} s ago`;
  if (ms < 60_000) return `${whole.format(ms / 1000)} s ago`;
  if (ms < 3_600_000) return `${whole.format(ms / 60_000)} min ago`;
  return `${whole.format(ms / 3_600_000)} h ago`;
}
