/** Fills one pixel per cell. The canvas then scales the small picture; that is what makes a frame cheap. */
import { type MapModel, PULSE_MS } from "./model";
import { PULSE_LEVELS } from "./palette";

const TOP = PULSE_LEVELS - 1;
const FALL = 2.2;

/**
 * Brightness step of a pulse by its age: bright at once, then a fade by elapsed time. It falls quickly at
 * first, so that the latest tokens stand out from those of a second ago.
 */
export function pulseLevel(ageMs: number): number {
  if (ageMs >= PULSE_MS) return 0;
  return Math.round(TOP * (1 - Math.max(0, ageMs) / PULSE_MS) ** FALL);
}

/** With `animate` off, cells rest; the view then marks fresh pulses without motion. */
export function rasterize(
  model: MapModel,
  palette: Uint32Array,
  now: number,
  animate: boolean,
  out: Uint32Array,
): void {
  const { cells, litAt } = model;
  const pulsing = animate && model.isAlive(now);
  for (let i = 0; i < cells.length; i++) {
    const level = pulsing ? pulseLevel(now - (litAt[i] ?? 0)) : 0;
    out[i] = palette[(cells[i] ?? 0) * PULSE_LEVELS + level] ?? 0;
  }
}
