/**
 * What the map shows, as flat arrays. No DOM and no React, so that it could move to a worker and so that a
 * telemetry event costs a few typed-array writes instead of a render.
 */
import { type ExpertMap, type HitMap, heatOf, tierOf } from "../wire";

/** A routed expert glows for this long. */
export const PULSE_MS = 2000;

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

export class MapModel {
  rows = 0;
  cols = 0;
  cells: Uint8Array = new Uint8Array(0);
  /** When each expert was last routed, in `performance.now()` time. */
  litAt: Float64Array = new Float64Array(0);
  /** The latest of `litAt`: tells without a scan whether any pulse is alive. */
  lastLit = NEVER;
  maxHeat = 0;
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
      this.lastLit = NEVER;
    }
    this.cells = map.cells;
    let max = 0;
    for (const cell of map.cells) max = Math.max(max, heatOf(cell));
    this.maxHeat = max;
    this.notify();
  }

  /** Marks routed experts. Hits of another geometry belong to a model that is no longer loaded. */
  addHits(hits: HitMap, now: number): void {
    if (hits.rows !== this.rows || hits.cols !== this.cols) return;
    const { bits } = hits;
    let any = false;
    for (let byte = 0; byte < bits.length; byte++) {
      let rest = bits[byte] ?? 0;
      while (rest !== 0) {
        const bit = 31 - Math.clz32(rest & -rest);
        rest &= rest - 1;
        const index = byte * 8 + bit;
        if (index < this.litAt.length) {
          this.litAt[index] = now;
          any = true;
        }
      }
    }
    if (!any) return;
    this.lastLit = now;
    this.notify();
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
