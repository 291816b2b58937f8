import type { JSX } from "react";
import { Inspector } from "../features/brain/Inspector";
import { LayerTable } from "../features/brain/LayerTable";
import { MapCanvas } from "../features/brain/MapCanvas";
import { mapModel, useBrain } from "../features/brain/store";
import { useMapRevision } from "../features/brain/useMapRevision";
import { useEngine } from "../features/engine/store";
import { TierBar } from "../features/engine/TierBar";
import { integer, percent, rate } from "../lib/format";
import { MODES, type Mode } from "../lib/map/palette";
import type { TierCounts } from "../lib/wire";

const MODE_LABEL: Record<Mode, string> = {
  tier: "Tier",
  heat: "Heat",
  both: "Both",
  activity: "Activity",
};
const MODE_NOTE: Record<Mode, string> = {
  tier: "Where each expert's weights are.",
  heat: "How often each expert has been selected, in doublings.",
  both: "Colour is the tier, strength is the heat.",
  activity: "Experts routed in the last two seconds.",
};

function Modes(): JSX.Element {
  const mode = useBrain((brain) => brain.mode);
  return (
    <fieldset className="modes">
      <legend className="hidden">Map mode</legend>
      {MODES.map((name, i) => (
        <label key={name} className="mode">
          <input
            type="radio"
            name="mode"
            checked={mode === name}
            onChange={() => useBrain.setState({ mode: name })}
          />
          <span>
            {MODE_LABEL[name]} <kbd>{i + 1}</kbd>
          </span>
        </label>
      ))}
    </fieldset>
  );
}

function Tile({ name, value, unit }: { name: string; value: string; unit?: string }): JSX.Element {
  return (
    <div className="tile">
      <dt>{name}</dt>
      <dd>
        <span className="figure">{value}</span>
        {unit && <span className="muted"> {unit}</span>}
      </dd>
    </div>
  );
}

export default function BrainPage(): JSX.Element {
  useMapRevision(1000);
  const { engine, tiers, lastTurn, connection } = useEngine();
  const mode = useBrain((brain) => brain.mode);
  const { rows, cols } = mapModel;

  // Counts from the map itself until the server has sent its own, which also know the bytes.
  const shownTiers: TierCounts | null =
    tiers ?? (mapModel.size > 0 ? { ...mapModel.counts(), vram_gb: 0, ram_gb: 0 } : null);

  return (
    <main id="main" className="page brain" data-stale={connection === "waiting"}>
      <header className="brain-head">
        <div>
          <h1>Brain</h1>
          <p className="muted">
            {mapModel.size === 0
              ? "The live expert map"
              : `${integer(rows)} sparse layers × ${integer(cols)} experts`}
          </p>
        </div>
        <dl className="tiles">
          <Tile name="Decode" value={rate(lastTurn?.tokens_per_second)} unit="tok/s" />
          <Tile name="Hit rate" value={percent(lastTurn?.cache_hit_percent)} />
          <Tile name="Experts" value={mapModel.size === 0 ? "–" : integer(mapModel.size)} />
        </dl>
      </header>
      {mapModel.size === 0 ? (
        <p className="brain-empty">
          {engine?.state === "ready"
            ? "This engine has sent no expert map: its model has no experts, or telemetry is off."
            : "The map appears when the engine has loaded a model."}
        </p>
      ) : (
        <>
          <div className="brain-bar">
            <Modes />
            <p className="muted brain-note">{MODE_NOTE[mode]}</p>
          </div>
          <div className="brain-main">
            <MapCanvas rows={rows} cols={cols} />
            <Inspector />
          </div>
          {shownTiers && <TierBar tiers={shownTiers} />}
          <LayerTable />
        </>
      )}
    </main>
  );
}
