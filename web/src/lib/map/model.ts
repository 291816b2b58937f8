/**
 * What the map shows, as flat arrays. No DOM and no React, so that it could move to a worker and so that a
 * telemetry event costs a few typed-array writes instead of a render.
 */

import { type ExpertMap, type HitMap, heatOf, tierOf } from "../wire";
import type { HeatRange } from "./palette";

/** A routed expert glows for this long. */
export const PULSE_MS = 2000;

const FALL = 2.2;
/**
 * Being routed says something about an expert only as far as its neighbours were not. Up to this share of a
 * layer in one batch a pulse has its full strength; with all of the layer, it has the least.
 */
const RARE_SHARE = 0.25;
const LEAST_STRENGTH = 0.12;

/** What is left of a pulse: it falls quickly at first, so that the latest tokens stand out. */
export function fade(ageMs: number): number {
  return ageMs >= PULSE_MS ? 0 : (1 - Math.max(0, ageMs) / PULSE_MS) ** FALL;
}

/** Strength of the pulses in a layer of which this share was routed in one batch. */
export function pulseStrength(share: number): number {
  const crowd = Math.max(0, share - RARE_SHARE) / (1 - RARE_SHARE);
  return 1 - crowd * (1 - LEAST_STRENGTH);
}

export interface Cell {
  row: number;
  expert: number;
}

export interface RowCounts {
  disk: number;
  ram: number;
  vram: number;
}

const NEVER = Number.NEGATIVE_INFINITY;

function indicesOf(bits: Uint8Array, size: number): number[] {
  const found: number[] = [];
  for (let byte = 0; byte < bits.length; byte++) {
    let rest = bits[byte] ?? 0;
    while (rest !== 0) {
      const index = byte * 8 + 31 - Math.clz32(rest & -rest);
      rest &= rest - 1;
      if (index < size) found.push(index);
    }
  }
  return found;
}

export class MapModel {
  rows = 0;
  cols = 0;
  cells: Uint8Array = new Uint8Array(0);
  /** When each expert was last routed, in `performance.now()` time. */
  litAt: Float64Array = new Float64Array(0);
  /** How bright each pulse was at `litAt`, up to 1. */
  strength: Float32Array = new Float32Array(0);
  /** The latest of `litAt`: tells without a scan whether any pulse is alive. */
  lastLit = NEVER;
  heat: HeatRange = { low: 0, high: 0 };
  /** Grows with every change; consumers compare it instead of the cells. */
  version = 0;
  private readonly listeners = new Set<() => void>();

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  get size(): number {
    return this.rows * this.cols;
  }

  setMap(map: ExpertMap): void {
    if (map.rows !== this.rows || map.cols !== this.cols) {
      this.rows = map.rows;
      this.cols = map.cols;
      this.litAt = new Float64Array(map.rows * map.cols).fill(NEVER);
      this.strength = new Float32Array(map.rows * map.cols);
      this.lastLit = NEVER;
    }
    this.cells = map.cells;
    let low = 63;
    let high = 0;
    for (const cell of map.cells) {
      const heat = heatOf(cell);
      if (heat === 0) continue;
      low = Math.min(low, heat);
      high = Math.max(high, heat);
    }
    // The same object as long as nothing changed: painters compare it to keep their palette.
    if (high === 0) low = 0;
    if (low !== this.heat.low || high !== this.heat.high) this.heat = { low, high };
    this.notify();
  }

  /** Marks routed experts. Hits of another geometry belong to a model that is no longer loaded. */
  addHits(hits: HitMap, now: number): void {
    if (hits.rows !== this.rows || hits.cols !== this.cols) return;
    const lit = indicesOf(hits.bits, this.size);
    if (lit.length === 0) return;
    const perRow = new Uint32Array(this.rows);
    const rowOf = (index: number): number => Math.floor(index / this.cols);
    for (const index of lit) perRow[rowOf(index)] = (perRow[rowOf(index)] ?? 0) + 1;
    for (const index of lit) {
      const fresh = pulseStrength((perRow[rowOf(index)] ?? 0) / this.cols);
      // A faint pulse must not cut off what is left of a bright one.
      this.strength[index] = Math.max(fresh, this.glow(index, now));
      this.litAt[index] = now;
    }
    this.lastLit = now;
    this.notify();
  }

  /** Brightness of a cell's pulse, 0 to 1. */
  glow(index: number, now: number): number {
    return (this.strength[index] ?? 0) * fade(now - (this.litAt[index] ?? NEVER));
  }

  isAlive(now: number): boolean {
    return now - this.lastLit < PULSE_MS;
  }

  indexOf(cell: Cell): number {
    return cell.row * this.cols + cell.expert;
  }

  rowCounts(row: number): RowCounts {
    const counts: RowCounts = { disk: 0, ram: 0, vram: 0 };
    for (let expert = 0; expert < this.cols; expert++) {
      const tier = tierOf(this.cells[row * this.cols + expert] ?? 0);
      if (tier) counts[tier]++;
    }
    return counts;
  }

  counts(): RowCounts {
    const total: RowCounts = { disk: 0, ram: 0, vram: 0 };
    for (let row = 0; row < this.rows; row++) {
      const counts = this.rowCounts(row);
      total.disk += counts.disk;
      total.ram += counts.ram;
      total.vram += counts.vram;
    }
    return total;
  }

  /** 1 for the hottest expert of its layer; equals share the better rank. */
  heatRank(cell: Cell): number {
    const own = heatOf(this.cells[this.indexOf(cell)] ?? 0);
    let hotter = 0;
    for (let expert = 0; expert < this.cols; expert++) {
      if (heatOf(this.cells[cell.row * this.cols + expert] ?? 0) > own) hotter++;
    }
    return hotter + 1;
  }

  private notify(): void {
    this.version++;
    for (const listener of this.listeners) listener();
  }
}
