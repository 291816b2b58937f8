import { type RefObject, useEffect, useState } from "react";

/** Distance in pixels that still counts as "at the bottom". */
const SLACK = 48;

export interface Follow {
  following: boolean;
  jump: () => void;
}

/** Keeps a growing list at its bottom, but only while the reader is there. */
export function useFollow(
  scroller: RefObject<HTMLElement | null>,
  content: RefObject<HTMLElement | null>,
): Follow {
  const [following, setFollowing] = useState(true);

  useEffect(() => {
    const outer = scroller.current;
    const inner = content.current;
    if (!outer || !inner) return;
    let stick = true;
    const onScroll = (): void => {
      stick = outer.scrollHeight - outer.scrollTop - outer.clientHeight < SLACK;
      setFollowing(stick);
    };
    const observer = new ResizeObserver(() => {
      if (stick) outer.scrollTop = outer.scrollHeight;
    });
    outer.addEventListener("scroll", onScroll, { passive: true });
    observer.observe(inner);
    observer.observe(outer);
    return () => {
      outer.removeEventListener("scroll", onScroll);
      observer.disconnect();
    };
  }, [scroller, content]);

  const jump = (): void => {
    const outer = scroller.current;
    if (outer) outer.scrollTop = outer.scrollHeight;
  };
  return { following, jump };
}
