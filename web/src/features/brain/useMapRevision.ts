import { useCallback, useSyncExternalStore } from "react";
import { mapModel } from "./store";

const version = (): number => mapModel.version;

/**
 * Re-renders after new map data, at most once in `everyMs`. For the texts around the canvas; the canvas
 * itself never waits for React. Another geometry is shown at once: what is on screen then describes cells
 * that no longer exist.
 */
export function useMapRevision(everyMs: number): void {
  const subscribe = useCallback(
    (changed: () => void) => {
      let timer: ReturnType<typeof setTimeout> | undefined;
      let { rows, cols } = mapModel;
      const stop = mapModel.subscribe(() => {
        if (rows !== mapModel.rows || cols !== mapModel.cols) {
          ({ rows, cols } = mapModel);
          changed();
          return;
        }
        timer ??= setTimeout(() => {
          timer = undefined;
          changed();
        }, everyMs);
      });
      return () => {
        stop();
        clearTimeout(timer);
      };
    },
    [everyMs],
  );
  useSyncExternalStore(subscribe, version);
}
