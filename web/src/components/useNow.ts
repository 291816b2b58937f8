import { useEffect, useState } from "react";

/** `performance.now()`, refreshed while `active`: for ages and waiting times, not for animation. */
export function useNow(everyMs: number, active = true): number {
  const [now, setNow] = useState(() => performance.now());
  useEffect(() => {
    if (!active) return;
    const timer = setInterval(() => setNow(performance.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs, active]);
  return now;
}
