import type { JSX, ReactNode } from "react";
import { useMediaQuery } from "../../components/useMediaQuery";
import { useNow } from "../../components/useNow";
import { ago, integer } from "../../lib/format";
import { heatOf, tierOf } from "../../lib/wire";
import { useEngine } from "../engine/store";
import { layerName, selections, TIER_LETTER, TIER_NAME } from "./describe";
import { mapModel, useBrain } from "./store";
import { useMapRevision } from "./useMapRevision";

function Row({ name, children }: { name: string; children: ReactNode }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Facts about one expert, beside the map so that they never cover it. */
export function Inspector(): JSX.Element {
  const { cursor, selected } = useBrain();
  const layers = useEngine((engine) => engine.engine?.layers);
  // Touch has no pointing without choosing.
  const touch = useMediaQuery("(pointer: coarse)");
  useMapRevision(250);
  const cell = cursor ?? selected;
  const now = useNow(250, cell !== null);
  const valid = cell !== null && cell.row < mapModel.rows && cell.expert < mapModel.cols;
  if (!valid) {
    return (
      <section className="inspector" aria-label="Inspector">
        <h2>Inspector</h2>
        <p className="muted">
          {touch
            ? "Tap a cell: what is known about its expert appears here."
            : "Point at a cell, or focus the map and use the arrow keys. Click or Enter keeps a cell here."}
        </p>
        <p className="muted">
          Rows are layers in order. Columns only number the experts of a layer: the same column in
          two layers has nothing in common.
        </p>
      </section>
    );
  }
  const index = mapModel.indexOf(cell);
  const byte = mapModel.cells[index] ?? 0;
  const tier = tierOf(byte);
  const heat = heatOf(byte);
  const litAt = mapModel.litAt[index] ?? Number.NEGATIVE_INFINITY;
  return (
    <section className="inspector" aria-label="Inspector">
      <h2>
        Layer {layerName(layers, cell.row)} <span className="muted">/</span> expert {cell.expert}
      </h2>
      <dl className="facts">
        <Row name="Tier">
          {tier === null ? (
            "unknown"
          ) : (
            <>
              <span className={`swatch tier-${tier}`} aria-hidden="true">
                {TIER_LETTER[tier]}
              </span>{" "}
              {TIER_NAME[tier]}
            </>
          )}
        </Row>
        <Row name="Heat">{heat}</Row>
        <Row name="Selected">{selections(heat)} times</Row>
        <Row name="Rank in layer">
          {integer(mapModel.heatRank(cell))} of {integer(mapModel.cols)}
        </Row>
        <Row name="Last routed">
          {Number.isFinite(litAt) ? ago(now - litAt) : "not since this page opened"}
        </Row>
      </dl>
      {selected && (
        <button
          type="button"
          className="button button-quiet"
          onClick={() => useBrain.setState({ selected: null })}
        >
          Release selection
        </button>
      )}
    </section>
  );
}
