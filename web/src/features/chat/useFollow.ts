import { type RefObject, useCallback, useEffect, useRef, useState } from "react";
import { useChat } from "./store";

/** Distance in pixels that still counts as "at the bottom". */
const SLACK = 48;

export interface Follow {
  following: boolean;
  jump: () => void;
}

/**
 * Keeps a growing list at its bottom until the reader scrolls up. Only that lets go: scroll events come
 * late, and by then the text may have grown far below the position that this hook itself has set.
 */
export function useFollow(
  scroller: RefObject<HTMLElement | null>,
  content: RefObject<HTMLElement | null>,
): Follow {
  const [following, setFollowing] = useState(true);
  const stick = useRef(true);
  /** The scroll position as this hook last set or saw it. */
  const seen = useRef(0);

  const toEnd = useCallback((): void => {
    const outer = scroller.current;
    if (!outer) return;
    outer.scrollTop = outer.scrollHeight;
    seen.current = outer.scrollTop;
  }, [scroller]);

  const jump = useCallback((): void => {
    stick.current = true;
    setFollowing(true);
    toEnd();
  }, [toEnd]);

  useEffect(() => {
    const outer = scroller.current;
    const inner = content.current;
    if (!outer || !inner) return;
    const onScroll = (): void => {
      const moved = outer.scrollTop - seen.current;
      const below = outer.scrollHeight - outer.scrollTop - outer.clientHeight;
      seen.current = outer.scrollTop;
      // Text that shrinks moves the position up as well, but leaves it at the end.
      if (below <= 1 || (moved > 0 && below < SLACK)) stick.current = true;
      else if (moved < 0) stick.current = false;
      setFollowing(stick.current);
    };
    // The first step of a smooth scroll is too small to tell, and the next token would undo it.
    const onWheel = (event: WheelEvent): void => {
      if (event.deltaY < 0 && outer.scrollTop > 0) stick.current = false;
    };
    const observer = new ResizeObserver(() => {
      if (stick.current) toEnd();
    });
    outer.addEventListener("scroll", onScroll, { passive: true });
    outer.addEventListener("wheel", onWheel, { passive: true });
    observer.observe(inner);
    observer.observe(outer);
    return () => {
      outer.removeEventListener("scroll", onScroll);
      outer.removeEventListener("wheel", onWheel);
      observer.disconnect();
    };
  }, [scroller, content, toEnd]);

  // Whoever asks wants to see the question and its answer, and an opened chat begins at its end.
  useEffect(
    () =>
      useChat.subscribe((now, before) => {
        const asked = now.live !== null && now.live.id !== before.live?.id;
        if (asked || now.conversation.id !== before.conversation.id) jump();
      }),
    [jump],
  );

  return { following, jump };
}
