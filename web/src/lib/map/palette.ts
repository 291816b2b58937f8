/** The 256 x 16 table from (cell byte, pulse level) to a pixel. Rebuilt on a change of theme or mode only. */
import { heatOf, type Tier, tierOf } from "../wire";
import { type Lab, mix, pack, parseOklch } from "./color";

export const PULSE_LEVELS = 16;

export const MODES = ["tier", "heat", "both", "activity"] as const;
export type Mode = (typeof MODES)[number];

/** Colours the style sheet owns, so that legend and map cannot disagree. */
export interface ThemeColors {
  disk: Lab;
  ram: Lab;
  vram: Lab;
  /** Ends and middle of the heat ramp. */
  cold: Lab;
  warm: Lab;
  hot: Lab;
  /** Its lightness is what a routed expert glows towards; the hue stays the cell's own. */
  pulse: Lab;
  /** Cells without any information: the activity mode's rest colour, and unknown tiers. */
  idle: Lab;
}

const VARIABLES: Record<keyof ThemeColors, string> = {
  disk: "--tier-disk",
  ram: "--tier-ram",
  vram: "--tier-vram",
  cold: "--heat-cold",
  warm: "--heat-warm",
  hot: "--heat-hot",
  pulse: "--pulse",
  idle: "--cell-idle",
};

const GREY: Lab = { l: 0.5, a: 0, b: 0 };

export function readTheme(variable: (name: string) => string): ThemeColors {
  const read = (key: keyof ThemeColors): Lab => parseOklch(variable(VARIABLES[key])) ?? GREY;
  return {
    disk: read("disk"),
    ram: read("ram"),
    vram: read("vram"),
    cold: read("cold"),
    warm: read("warm"),
    hot: read("hot"),
    pulse: read("pulse"),
    idle: read("idle"),
  };
}

/** Share of the pulse colour at full pulse. Below 1, so that the tier stays readable under the glow. */
const PULSE_CAP = 0.85;
/** A glowing cell keeps this much of its own hue: on a busy model most cells glow most of the time. */
const GLOW_TINT = 0.8;
/** How far heat moves a tier's colour towards or away from the resting background in "both". */
const HEAT_SWING = 0.42;
/** With little history every expert would look hot; the ramp spans at least this many doublings. */
const MIN_HEAT_SPAN = 8;

function heatRamp(theme: ThemeColors, share: number): Lab {
  return share < 0.5
    ? mix(theme.cold, theme.warm, share * 2)
    : mix(theme.warm, theme.hot, share * 2 - 1);
}

function base(theme: ThemeColors, mode: Mode, tier: Tier | null, share: number): Lab {
  switch (mode) {
    case "activity":
      return theme.idle;
    case "heat":
      return heatRamp(theme, share);
    case "tier":
      return tier === null ? theme.idle : theme[tier];
    case "both":
      return tier === null
        ? theme.idle
        : mix(theme[tier], theme.idle, HEAT_SWING * (1 - Math.min(1, share * 1.25)));
  }
}

/** What a cell of this resting colour shows at a share of full pulse. */
function pulsed(theme: ThemeColors, mode: Mode, rest: Lab, pulse: number): Lab {
  if (mode === "activity") {
    // Nothing else is shown, so the pulse gets the whole ramp.
    return pulse < 0.5
      ? mix(rest, theme.warm, pulse * 2)
      : mix(theme.warm, theme.hot, pulse * 2 - 1);
  }
  const glow: Lab = { l: theme.pulse.l, a: rest.a * GLOW_TINT, b: rest.b * GLOW_TINT };
  return mix(rest, glow, pulse * PULSE_CAP);
}

export function buildPalette(theme: ThemeColors, mode: Mode, maxHeat: number): Uint32Array {
  const span = Math.max(MIN_HEAT_SPAN, maxHeat);
  const table = new Uint32Array(256 * PULSE_LEVELS);
  for (let cell = 0; cell < 256; cell++) {
    const share = Math.min(1, heatOf(cell) / span);
    const rest = base(theme, mode, tierOf(cell), share);
    for (let level = 0; level < PULSE_LEVELS; level++) {
      const color = pulsed(theme, mode, rest, level / (PULSE_LEVELS - 1));
      table[cell * PULSE_LEVELS + level] = pack(color);
    }
  }
  return table;
}
