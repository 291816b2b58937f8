import type { JSX } from "react";
import { gigabytes, integer } from "../../lib/format";
import type { EngineState, HardwareInfo } from "../../lib/wire";
import { useEngine } from "../engine/store";
import { DEMO_MODEL, EXAMPLE_PROMPTS } from "./examples";
import { send } from "./store";

function hardwareLine(hardware: HardwareInfo): string {
  const parts = [
    hardware.cpu_name,
    `${integer(hardware.cores)} ${hardware.cores === 1 ? "core" : "cores"}`,
    `${gigabytes(hardware.ram_total_gb)} RAM`,
  ];
  if (hardware.ngpu > 0) {
    const times = hardware.ngpu > 1 ? `${hardware.ngpu} × ` : "";
    parts.push(`${times}${hardware.gpu_name || "GPU"}, ${gigabytes(hardware.vram_total_gb)} VRAM`);
  }
  return parts.filter(Boolean).join(" · ");
}

function shapeLine(engine: EngineState): string | null {
  if (engine.rows === 0) return null;
  return `${integer(engine.rows)} sparse layers × ${integer(engine.cols)} experts · context ${integer(engine.ctx)} tokens`;
}

export function EmptyState(): JSX.Element {
  const engine = useEngine((store) => store.engine);
  return (
    <div className="empty">
      <h2>{engine?.model || "No model yet"}</h2>
      {engine?.model === DEMO_MODEL.id && <p className="empty-about">{DEMO_MODEL.about}</p>}
      {engine && shapeLine(engine) && <p className="muted figure">{shapeLine(engine)}</p>}
      {engine?.hwinfo && <p className="muted figure">{hardwareLine(engine.hwinfo)}</p>}
      <ul className="examples" aria-label="Examples">
        {EXAMPLE_PROMPTS.map((prompt) => (
          <li key={prompt}>
            <button type="button" onClick={() => send(prompt)}>
              {prompt}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
