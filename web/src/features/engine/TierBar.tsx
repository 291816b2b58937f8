import type { JSX } from "react";
import { gigabytes, integer } from "../../lib/format";
import type { Tier, TierCounts } from "../../lib/wire";
import { TIER_LETTER, TIER_NAME, TIER_ORDER } from "../brain/describe";

function bytes(tiers: TierCounts, tier: Tier): string | null {
  if (tier === "vram" && tiers.vram_gb > 0) return gigabytes(tiers.vram_gb);
  if (tier === "ram" && tiers.ram_gb > 0) return gigabytes(tiers.ram_gb);
  return null;
}

/** Share of experts per tier, and at the same time the legend of the map. */
export function TierBar({ tiers }: { tiers: TierCounts }): JSX.Element {
  const total = tiers.vram + tiers.ram + tiers.disk;
  return (
    <div className="tierbar">
      <div className="tierbar-track" aria-hidden="true">
        {TIER_ORDER.filter((tier) => tiers[tier] > 0).map((tier) => (
          <span key={tier} className={`tier-${tier}`} style={{ flexGrow: tiers[tier] }} />
        ))}
      </div>
      <ul className="tierbar-legend">
        {TIER_ORDER.map((tier) => (
          <li key={tier}>
            <span className={`swatch tier-${tier}`} aria-hidden="true">
              {TIER_LETTER[tier]}
            </span>
            <span>{TIER_NAME[tier]}</span>
            <span className="figure">{integer(tiers[tier])}</span>
            <span className="muted figure">
              {total > 0 && `${Math.round((100 * tiers[tier]) / total)} %`}
              {bytes(tiers, tier) !== null && ` · ${bytes(tiers, tier)}`}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
