/** Geometry of the drawn map in device pixels: how large cells are, and which cell lies under a point. */
import type { Cell } from "./model";

export interface Layout {
  rows: number;
  cols: number;
  /** Cell pitch in device pixels; whole numbers wherever grid lines are drawn. */
  cellWidth: number;
  cellHeight: number;
  /** Grid line in device pixels, 0 where cells are too small to spare one. */
  gap: number;
  width: number;
  height: number;
}

/** Grid lines need this many device pixels a cell; below, they would grey out the picture. */
const GRID_FROM = 6;
/** A short map (few sparse layers) gets taller cells rather than an empty page. */
const MAX_ASPECT = 2;

export interface Space {
  width: number;
  height: number;
  ratio: number;
  /** Smallest useful cell in CSS pixels; a map that would need less scrolls instead. */
  minCell: number;
}

/** The largest cells that fit, at most twice as tall as wide. */
export function largestFit(rows: number, cols: number, space: Space): Layout {
  if (rows === 0 || cols === 0) {
    return { rows, cols, cellWidth: 0, cellHeight: 0, gap: 0, width: 0, height: 0 };
  }
  const floor = space.minCell * space.ratio;
  let cellWidth = Math.max(floor, (space.width * space.ratio) / cols);
  let cellHeight = Math.max(floor, (space.height * space.ratio) / rows);
  // Never wider than tall: columns are many and mean nothing across layers, rows are what one reads.
  cellWidth = Math.min(cellWidth, Math.max(floor, cellHeight));
  cellHeight = Math.min(cellHeight, cellWidth * MAX_ASPECT);
  if (cellWidth >= GRID_FROM) cellWidth = Math.floor(cellWidth);
  if (cellHeight >= GRID_FROM) cellHeight = Math.floor(cellHeight);
  const smaller = Math.min(cellWidth, cellHeight);
  const gap = smaller < GRID_FROM ? 0 : Math.max(1, Math.round(smaller / 14));
  return {
    rows,
    cols,
    cellWidth,
    cellHeight,
    gap,
    width: Math.round(cellWidth * cols),
    height: Math.round(cellHeight * rows),
  };
}

/** A picture of fixed size, for the strip beside the composer: cells take whatever shape fills it. */
export function stretch(rows: number, cols: number, width: number, height: number): Layout {
  const whole = (pitch: number): number => (pitch >= GRID_FROM ? Math.floor(pitch) : pitch);
  const cellWidth = cols === 0 ? 0 : whole(width / cols);
  const cellHeight = rows === 0 ? 0 : whole(height / rows);
  return {
    rows,
    cols,
    cellWidth,
    cellHeight,
    gap: Math.min(cellWidth, cellHeight) < GRID_FROM ? 0 : 1,
    width: Math.round(cellWidth * cols),
    height: Math.round(cellHeight * rows),
  };
}

/** The cell under a point given as shares (0 to 1) of the drawn map, or null outside. */
export function hitTest(layout: Layout, x: number, y: number): Cell | null {
  if (!(x >= 0 && x < 1 && y >= 0 && y < 1) || layout.rows === 0 || layout.cols === 0) return null;
  return { row: Math.floor(y * layout.rows), expert: Math.floor(x * layout.cols) };
}

/** Which row or column labels to print so that they do not touch: every n-th, n a friendly number. */
export function labelStep(count: number, pitch: number, room: number): number {
  for (const step of [1, 2, 4, 8, 16, 32, 64, 128, 256]) {
    if (step * pitch >= room || step >= count) return step;
  }
  return count;
}
