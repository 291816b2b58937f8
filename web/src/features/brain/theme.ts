import { useMemo } from "react";
import { useMediaQuery } from "../../components/useMediaQuery";
import { readTheme, type ThemeColors } from "../../lib/map/palette";

export interface MapTheme {
  colors: ThemeColors;
  grid: string;
  mark: string;
}

/** The style sheet's colours, read again whenever the system switches between light and dark. */
export function useMapTheme(): MapTheme {
  const dark = useMediaQuery("(prefers-color-scheme: dark)");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the computed style changes with the scheme
  return useMemo(() => {
    const style = getComputedStyle(document.documentElement);
    const variable = (name: string): string => style.getPropertyValue(name);
    return {
      colors: readTheme(variable),
      grid: variable("--map-grid").trim(),
      mark: variable("--pulse").trim(),
    };
  }, [dark]);
}

export function useReducedMotion(): boolean {
  return useMediaQuery("(prefers-reduced-motion: reduce)");
}
