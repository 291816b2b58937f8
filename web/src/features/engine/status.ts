/** One short text and tone for the state of connection and engine. */
import type { Connection } from "../../lib/events";
import type { EngineState } from "../../lib/wire";

export interface Status {
  tone: "good" | "busy" | "bad" | "off";
  text: string;
  /** The longer reason, if there is one. */
  detail: string | null;
}

function progress(engine: EngineState): string {
  const stage = engine.stage ?? "";
  if (engine.total <= 0) return stage;
  const share = Math.floor((100 * engine.done) / engine.total);
  return `${stage} ${share} %`.trim();
}

export function statusOf(connection: Connection, engine: EngineState | null): Status {
  if (connection === "asleep") return { tone: "off", text: "paused", detail: "Tab was hidden." };
  if (connection === "waiting") {
    return { tone: "bad", text: "offline", detail: "Trying to reach the server again." };
  }
  if (!engine) return { tone: "off", text: "connecting", detail: null };
  switch (engine.state) {
    case "ready":
      return { tone: "good", text: "ready", detail: null };
    case "failed":
    case "stopping":
    case "stopped":
      return { tone: "bad", text: engine.state, detail: engine.reason };
    default: {
      const detail = progress(engine);
      return {
        tone: "busy",
        text: detail ? `${engine.state}: ${detail}` : engine.state,
        detail: engine.reason,
      };
    }
  }
}
