/** Fills one pixel per cell. The canvas then scales the small picture; that is what makes a frame cheap. */
import type { MapModel } from "./model";
import { PULSE_LEVELS } from "./palette";

const TOP = PULSE_LEVELS - 1;

/** Brightness step of a glow from 0 to 1. */
export function pulseLevel(glow: number): number {
  return Math.round(TOP * glow);
}

/** With `animate` off, cells rest; the view then marks fresh pulses without motion. */
export function rasterize(
  model: MapModel,
  palette: Uint32Array,
  now: number,
  animate: boolean,
  out: Uint32Array,
): void {
  const { cells } = model;
  const pulsing = animate && model.isAlive(now);
  for (let i = 0; i < cells.length; i++) {
    const level = pulsing ? pulseLevel(model.glow(i, now)) : 0;
    out[i] = palette[(cells[i] ?? 0) * PULSE_LEVELS + level] ?? 0;
  }
}
