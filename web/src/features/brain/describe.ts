/** Words for what the map shows: shared by inspector, announcements and labels. */
import { integer } from "../../lib/format";
import type { Cell, MapModel } from "../../lib/map/model";
import { heatOf, heatRange, type Tier, tierOf } from "../../lib/wire";

export const TIER_NAME: Record<Tier, string> = { vram: "VRAM", ram: "RAM", disk: "disk" };
export const TIER_LETTER: Record<Tier, string> = { vram: "V", ram: "R", disk: "D" };
/** Fastest first, as one reads a memory hierarchy. */
export const TIER_ORDER: readonly Tier[] = ["vram", "ram", "disk"];

/** Real layer number of a map row. Without one from the server the row number is all that is known. */
export function layerName(layers: number[] | null | undefined, row: number): string {
  const layer = layers?.[row];
  return layer === undefined ? `row ${row}` : String(layer);
}

export function selections(heat: number): string {
  const { low, high } = heatRange(heat);
  return low === high ? integer(low) : `${integer(low)}–${integer(high)}`;
}

export function summary(model: MapModel): string {
  const { vram, ram, disk } = model.counts();
  return `${integer(model.size)} experts: ${integer(vram)} VRAM, ${integer(ram)} RAM, ${integer(disk)} disk`;
}

export function describeCell(
  model: MapModel,
  layers: number[] | null | undefined,
  cell: Cell,
): string {
  const byte = model.cells[model.indexOf(cell)] ?? 0;
  const tier = tierOf(byte);
  return [
    `Layer ${layerName(layers, cell.row)}`,
    `expert ${cell.expert}`,
    tier === null ? "tier unknown" : TIER_NAME[tier],
    `heat ${heatOf(byte)}`,
  ].join(", ");
}
