import { create } from "zustand";
import { type Cell, MapModel } from "../../lib/map/model";
import type { Mode } from "../../lib/map/palette";

/** One model for all canvases of the page. */
export const mapModel = new MapModel();

interface BrainStore {
  mode: Mode;
  /** The cell under the pointer or the keyboard cursor. */
  cursor: Cell | null;
  /** Kept by click or Enter. */
  selected: Cell | null;
}

export const useBrain = create<BrainStore>(() => ({
  mode: "both",
  cursor: null,
  selected: null,
}));

// A selection belongs to the geometry it was made in: with another model it would name another expert.
let geometry = "";
mapModel.subscribe(() => {
  const current = `${mapModel.rows}x${mapModel.cols}`;
  if (geometry !== "" && geometry !== current) useBrain.setState({ cursor: null, selected: null });
  geometry = current;
});
