/** What the server says about the engine. Never guessed by the page. */
import { create } from "zustand";
import type { Connection } from "../../lib/events";
import type { EngineState, TierCounts, TurnStats } from "../../lib/wire";

interface EngineStore {
  connection: Connection;
  retryInMs: number;
  engine: EngineState | null;
  tiers: TierCounts | null;
  lastTurn: TurnStats | null;
  /** Some request was answered with 401. */
  needsKey: boolean;
}

export const useEngine = create<EngineStore>(() => ({
  connection: "connecting",
  retryInMs: 0,
  engine: null,
  tiers: null,
  lastTurn: null,
  needsKey: false,
}));

/** Resolves as soon as the engine can take a request, or will not become able to by waiting. */
export function untilReady(signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    // Any other state, an unknown one included, must not hold a request back: its answer will tell.
    const settled = (): boolean => {
      const phase = useEngine.getState().engine?.state;
      return phase !== "starting" && phase !== "loading" && phase !== "restarting";
    };
    if (settled()) {
      resolve();
      return;
    }
    const stop = useEngine.subscribe(() => {
      if (!settled()) return;
      stop();
      resolve();
    });
    signal.addEventListener("abort", () => {
      stop();
      reject(signal.reason);
    });
  });
}
