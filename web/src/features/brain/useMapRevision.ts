import { useEffect, useReducer } from "react";
import { mapModel } from "./store";

/**
 * Re-renders after new map data, at most once in `everyMs`. For the texts around the canvas; the canvas
 * itself never waits for React.
 */
export function useMapRevision(everyMs: number): number {
  const [, bump] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let rows = mapModel.rows;
    let cols = mapModel.cols;
    const stop = mapModel.subscribe(() => {
      if (rows !== mapModel.rows || cols !== mapModel.cols) {
        // Another model: what is on screen now describes cells that no longer exist.
        rows = mapModel.rows;
        cols = mapModel.cols;
        bump();
        return;
      }
      timer ??= setTimeout(() => {
        timer = undefined;
        bump();
      }, everyMs);
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [everyMs]);
  return mapModel.revision;
}
