import { type JSX, useState } from "react";
import { useNow } from "../../components/useNow";
import { ago, integer } from "../../lib/format";
import { heatOf, TIERS, tierOf } from "../../lib/wire";
import { useEngine } from "../engine/store";
import { layerName, selections, TIER_LETTER, TIER_NAME, TIER_ORDER } from "./describe";
import { mapModel, useBrain } from "./store";
import { useMapRevision } from "./useMapRevision";

const COLUMNS = [
  { key: "expert", label: "Expert" },
  { key: "tier", label: "Tier" },
  { key: "heat", label: "Heat" },
  { key: "litAt", label: "Last routed" },
] as const;
type Key = (typeof COLUMNS)[number]["key"];

interface ExpertRow {
  expert: number;
  /** Rank of the tier, 0 for disk. */
  tier: number;
  heat: number;
  litAt: number;
}

function expertsOf(row: number): ExpertRow[] {
  return Array.from({ length: mapModel.cols }, (_, expert) => {
    const index = mapModel.indexOf({ row, expert });
    const byte = mapModel.cells[index] ?? 0;
    const tier = tierOf(byte);
    return {
      expert,
      tier: tier === null ? -1 : TIERS.indexOf(tier),
      heat: heatOf(byte),
      litAt: mapModel.litAt[index] ?? Number.NEGATIVE_INFINITY,
    };
  });
}

/** The map as text: the same data in real table markup, for reading, sorting and screen readers. */
export function LayerTable(): JSX.Element {
  const [row, setRow] = useState(0);
  const [sort, setSort] = useState<{ key: Key; down: boolean }>({ key: "heat", down: true });
  const layers = useEngine((engine) => engine.engine?.layers);
  const selected = useBrain((brain) => brain.selected);
  useMapRevision(1000);
  const now = useNow(1000);

  // A kept cell brings its layer up; after that the choice is the reader's again.
  const [followed, setFollowed] = useState(selected);
  if (followed !== selected) {
    setFollowed(selected);
    if (selected) setRow(selected.row);
  }

  const shown = Math.min(row, Math.max(0, mapModel.rows - 1));
  const counts = mapModel.rowCounts(shown);
  const rowNumbers = Array.from({ length: mapModel.rows }, (_, i) => i);
  const sign = sort.down ? -1 : 1;
  const experts = expertsOf(shown).sort(
    // Ties keep the order of experts; comparing -Infinity with itself by subtraction would give NaN.
    (a, b) => sign * (Number(a[sort.key] > b[sort.key]) - Number(a[sort.key] < b[sort.key])),
  );

  return (
    <section className="layers" aria-label="By layer">
      <div className="layers-head">
        <h2>By layer</h2>
        <label>
          Layer{" "}
          <select value={shown} onChange={(event) => setRow(Number(event.target.value))}>
            {rowNumbers.map((index) => (
              <option key={index} value={index}>
                {layerName(layers, index)}
              </option>
            ))}
          </select>
        </label>
        <p className="muted figure">
          {TIER_ORDER.map((tier) => `${integer(counts[tier])} ${TIER_NAME[tier]}`).join(" · ")}
        </p>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling box must be reachable by keyboard */}
      <div className="layers-scroll" tabIndex={0}>
        <table>
          <caption className="hidden">Experts of layer {layerName(layers, shown)}</caption>
          <thead>
            <tr>
              {COLUMNS.map(({ key, label }) => (
                <th
                  key={key}
                  scope="col"
                  aria-sort={sort.key !== key ? undefined : sort.down ? "descending" : "ascending"}
                >
                  <button
                    type="button"
                    onClick={() => setSort({ key, down: sort.key === key ? !sort.down : true })}
                  >
                    {label}
                    <span aria-hidden="true">
                      {sort.key !== key ? "" : sort.down ? " ↓" : " ↑"}
                    </span>
                  </button>
                </th>
              ))}
              <th scope="col">Selected</th>
            </tr>
          </thead>
          <tbody>
            {experts.map(({ expert, tier, heat, litAt }) => {
              const name = TIERS[tier];
              return (
                <tr key={expert}>
                  <th scope="row">{expert}</th>
                  <td>
                    {name && (
                      <>
                        <span className={`swatch tier-${name}`} aria-hidden="true">
                          {TIER_LETTER[name]}
                        </span>{" "}
                        {TIER_NAME[name]}
                      </>
                    )}
                  </td>
                  <td>{heat}</td>
                  <td>{Number.isFinite(litAt) ? ago(now - litAt) : "–"}</td>
                  <td>{selections(heat)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}
