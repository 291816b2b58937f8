import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { mix, oklch, pack, parseOklch, toRgb } from "./color";
import { fade, MapModel, PULSE_MS, pulseStrength } from "./model";
import { buildPalette, heatShare, MODES, PULSE_LEVELS, readTheme } from "./palette";
import { pulseLevel, rasterize } from "./raster";
import { hitTest, labelStep, largestFit, stretch } from "./view";

const THEME = readTheme(
  (name) =>
    ({
      "--tier-disk": "oklch(0.37 0.05 288)",
      "--tier-ram": "oklch(60% .115 243)",
      "--tier-vram": "oklch(0.82 0.135 82)",
      "--heat-cold": "oklch(0.27 0.02 175)",
      "--heat-warm": "oklch(0.58 0.11 166)",
      "--heat-hot": "oklch(0.93 0.1 155)",
      "--pulse": "oklch(0.985 0.02 150)",
      "--cell-idle": "oklch(0.235 0.012 200)",
    })[name] ?? "",
);

const RANGE = { low: 1, high: 12 };

describe("color", () => {
  it("knows black, white and the primaries", () => {
    expect(toRgb(oklch(0, 0, 0))).toEqual([0, 0, 0]);
    expect(toRgb(oklch(1, 0, 0))).toEqual([255, 255, 255]);
    expect(toRgb(oklch(0.62796, 0.25768, 29.234))).toEqual([255, 0, 0]);
    expect(toRgb(oklch(0.45201, 0.31321, 264.052))).toEqual([0, 0, 255]);
  });

  it("reads both ways of writing oklch", () => {
    expect(parseOklch(" oklch(70% .1 150)")).toEqual(parseOklch("oklch(0.7 0.1 150)"));
    expect(parseOklch("#123456")).toBeNull();
  });

  it("packs opaque RGBA bytes", () => {
    const bytes = new Uint8Array(new Uint32Array([pack(oklch(0.62796, 0.25768, 29.234))]).buffer);
    expect([...bytes]).toEqual([255, 0, 0, 255]);
  });
});

describe("palette", () => {
  const at = (table: Uint32Array, cell: number, level = 0): number =>
    table[cell * PULSE_LEVELS + level] ?? -1;

  it("covers every byte and level in every mode", () => {
    for (const mode of MODES) {
      const table = buildPalette(THEME, mode, RANGE);
      expect(table).toHaveLength(256 * PULSE_LEVELS);
      expect(table.every((pixel) => pixel >>> 24 === 255)).toBe(true);
    }
  });

  it("shows the three flat tier colours in tier mode, whatever the heat", () => {
    const table = buildPalette(THEME, "tier", RANGE);
    expect(at(table, 0x80)).toBe(pack(THEME.vram));
    expect(at(table, 0xa0)).toBe(pack(THEME.vram));
    expect(at(table, 0x41)).toBe(pack(THEME.ram));
    expect(at(table, 0x05)).toBe(pack(THEME.disk));
  });

  it("hides tier and heat in activity mode", () => {
    const table = buildPalette(THEME, "activity", RANGE);
    expect(at(table, 0x85)).toBe(pack(THEME.idle));
    expect(at(table, 0x85, PULSE_LEVELS - 1)).toBe(pack(THEME.hot));
  });

  it("gets brighter with heat", () => {
    const light = (pixel: number): number =>
      (pixel & 255) + ((pixel >> 8) & 255) + ((pixel >> 16) & 255);
    for (const mode of ["heat", "both"] as const) {
      const table = buildPalette(THEME, mode, RANGE);
      for (let heat = 1; heat < 12; heat++) {
        expect(light(at(table, 0x80 | heat))).toBeGreaterThanOrEqual(
          light(at(table, 0x80 | (heat - 1))),
        );
      }
    }
  });

  it("spreads the ramp over the heats that occur, never-selected experts below all", () => {
    const range = { low: 5, high: 9 };
    expect(heatShare(0, range)).toBe(0);
    expect(heatShare(5, range)).toBeCloseTo(0.2);
    expect(heatShare(9, range)).toBe(1);
    expect(heatShare(3, { low: 3, high: 3 })).toBe(0.25);
  });

  it("mixes without leaving the ends", () => {
    expect(mix(THEME.disk, THEME.pulse, 0)).toEqual(THEME.disk);
    expect(pack(mix(THEME.disk, THEME.pulse, 1))).toBe(pack(THEME.pulse));
  });
});

function model(rows: number, cols: number): MapModel {
  const made = new MapModel();
  made.setMap({ rows, cols, cells: new Uint8Array(rows * cols).map((_, i) => (i * 37) & 0xbf) });
  return made;
}

function bitmap(size: number, indices: number[]): Uint8Array {
  const bits = new Uint8Array(Math.ceil(size / 8));
  for (const i of indices) bits[i >> 3] = (bits[i >> 3] ?? 0) | (1 << (i & 7));
  return bits;
}

describe("model", () => {
  it("lights exactly the experts of a bitmap", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 9 }),
        fc.integer({ min: 1, max: 40 }),
        fc.array(fc.nat()),
        (rows, cols, picks) => {
          const map = model(rows, cols);
          const expected = new Set(picks.map((pick) => pick % map.size));
          map.addHits({ rows, cols, bits: bitmap(map.size, [...expected]) }, 500);
          const lit = [...map.litAt.keys()].filter((i) => map.litAt[i] === 500);
          expect(new Set(lit)).toEqual(expected);
        },
      ),
    );
  });

  it("ignores hits of another geometry and forgets pulses with one", () => {
    const map = model(5, 32);
    map.addHits({ rows: 5, cols: 16, bits: bitmap(80, [3]) }, 1);
    expect(map.isAlive(2)).toBe(false);
    map.addHits({ rows: 5, cols: 32, bits: bitmap(160, [3]) }, 1);
    expect(map.isAlive(2)).toBe(true);
    map.setMap({ rows: 4, cols: 32, cells: new Uint8Array(128) });
    expect(map.isAlive(2)).toBe(false);
  });

  it("pulses less, the more of a layer is routed at once", () => {
    expect(pulseStrength(1 / 32)).toBe(1);
    expect(pulseStrength(8 / 32)).toBe(1);
    expect(pulseStrength(0.9)).toBeLessThan(0.25);
    expect(pulseStrength(1)).toBeGreaterThan(0);
    for (let n = 1; n < 32; n++) {
      expect(pulseStrength((n + 1) / 32)).toBeLessThanOrEqual(pulseStrength(n / 32));
    }
  });

  it("weighs each layer by itself, and leaves a bright pulse its fade", () => {
    const map = model(2, 32);
    map.addHits({ rows: 2, cols: 32, bits: bitmap(64, [5, 40]) }, 1000);
    expect(map.glow(5, 1000)).toBe(1);
    const crowd = [...Array(31).keys()].map((i) => i);
    map.addHits({ rows: 2, cols: 32, bits: bitmap(64, [...crowd, 41]) }, 1100);
    expect(map.glow(41, 1100)).toBe(1);
    expect(map.glow(6, 1100)).toBeLessThan(0.2);
    expect(map.glow(5, 1100)).toBeCloseTo(fade(100));
    expect(map.litAt[5]).toBe(1100);
  });

  it("counts tiers and ranks heat within a layer", () => {
    const map = new MapModel();
    map.setMap({ rows: 2, cols: 3, cells: Uint8Array.of(0x85, 0x41, 0x03, 0x00, 0x00, 0x42) });
    expect(map.counts()).toEqual({ vram: 1, ram: 2, disk: 3 });
    expect(map.heatRank({ row: 0, expert: 0 })).toBe(1);
    expect(map.heatRank({ row: 0, expert: 1 })).toBe(3);
    expect(map.heatRank({ row: 1, expert: 1 })).toBe(2);
  });
});

describe("raster", () => {
  const TOP = PULSE_LEVELS - 1;
  const palette = buildPalette(THEME, "both", RANGE);

  it("fades by elapsed time alone", () => {
    expect(pulseLevel(fade(0))).toBe(PULSE_LEVELS - 1);
    expect(pulseLevel(fade(PULSE_MS))).toBe(0);
    for (let age = 50; age <= PULSE_MS; age += 50) {
      expect(fade(age)).toBeLessThanOrEqual(fade(age - 50));
    }
  });

  it("looks each cell up with its own pulse", () => {
    const map = model(5, 32);
    const now = 10_000;
    map.addHits({ rows: 5, cols: 32, bits: bitmap(160, [0, 77]) }, now - 1000);
    map.addHits({ rows: 5, cols: 32, bits: bitmap(160, [159]) }, now);
    const out = new Uint32Array(map.size);
    rasterize(map, palette, now, true, out);
    for (let i = 0; i < map.size; i++) {
      const level = i === 159 ? TOP : i === 0 || i === 77 ? pulseLevel(fade(1000)) : 0;
      expect(out[i]).toBe(palette[(map.cells[i] ?? 0) * PULSE_LEVELS + level]);
    }
  });

  it("rests when motion is not wanted", () => {
    const map = model(2, 8);
    map.addHits({ rows: 2, cols: 8, bits: bitmap(16, [1]) }, 5);
    const out = new Uint32Array(map.size);
    rasterize(map, palette, 5, false, out);
    expect(out[1]).toBe(palette[(map.cells[1] ?? 0) * PULSE_LEVELS]);
  });
});

describe("view", () => {
  const space = fc.record({
    width: fc.integer({ min: 1, max: 3000 }),
    height: fc.integer({ min: 1, max: 2000 }),
    ratio: fc.constantFrom(1, 1.25, 1.5, 2, 3),
    minCell: fc.constantFrom(0, 3),
  });
  const count = fc.integer({ min: 1, max: 300 });

  it("fits the space unless the smallest cell forbids it", () => {
    fc.assert(
      fc.property(count, count, space, (rows, cols, room) => {
        const layout = largestFit(rows, cols, room);
        const floor = room.minCell * room.ratio;
        expect(layout.width <= room.width * room.ratio + 1 || layout.cellWidth <= floor).toBe(true);
        expect(layout.height <= room.height * room.ratio + 1 || layout.cellHeight <= floor).toBe(
          true,
        );
        expect(layout.cellHeight).toBeLessThanOrEqual(layout.cellWidth * 2 + 1);
      }),
    );
  });

  it("draws grid lines on whole pixels", () => {
    const layout = largestFit(5, 32, { width: 1000, height: 500, ratio: 1, minCell: 3 });
    expect(layout).toMatchObject({ cellWidth: 31, cellHeight: 62, gap: 2 });
    expect(largestFit(76, 256, { width: 1000, height: 500, ratio: 1, minCell: 3 }).gap).toBe(0);
  });

  it("finds the cell under every cell's middle, and nothing outside", () => {
    fc.assert(
      fc.property(count, count, space, fc.nat(), (rows, cols, room, pick) => {
        const layout = largestFit(rows, cols, room);
        const cell = { row: pick % rows, expert: (pick * 31) % cols };
        expect(hitTest(layout, (cell.expert + 0.5) / cols, (cell.row + 0.5) / rows)).toEqual(cell);
        expect(hitTest(layout, 1, 0.5)).toBeNull();
        expect(hitTest(layout, -0.01, 0.5)).toBeNull();
        expect(hitTest(layout, Number.NaN, 0.5)).toBeNull();
      }),
    );
  });

  it("stretches over a strip of fixed size", () => {
    expect(stretch(76, 256, 256, 76)).toMatchObject({ width: 256, height: 76, gap: 0 });
  });

  it("keeps labels apart", () => {
    expect(labelStep(5, 60, 18)).toBe(1);
    expect(labelStep(76, 6, 18)).toBe(4);
    expect(labelStep(256, 4, 34)).toBe(16);
  });
});
