/** Connects the telemetry stream to the stores. Started once for the life of the page. */
import { ApiError, getExperts, getLastTurn, getState, openEvents, setApiKey } from "../../lib/api";
import { EventStream } from "../../lib/events";
import type { SseEvent } from "../../lib/sse";
import {
  decodeHitsEvent,
  decodeMapEvent,
  decodeState,
  decodeStats,
  decodeTiers,
  type EngineState,
} from "../../lib/wire";
import { mapModel } from "../brain/store";
import { useEngine } from "./store";

interface Pending {
  event: SseEvent;
  at: number;
}

let pending: Pending[] = [];
let frame = 0;
/** Kinds of events that came since the snapshots were asked for, and which therefore are newer than those. */
const newer = new Set<string>();

/** Events of one frame are applied together; their arrival times are kept, because pulses age from there. */
function enqueue(event: SseEvent): void {
  newer.add(event.event);
  pending.push({ event, at: performance.now() });
  if (frame !== 0) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const batch = pending;
    pending = [];
    for (const item of batch) apply(item);
  });
}

function applyState(state: EngineState): void {
  useEngine.setState(
    state.tiers
      ? { engine: state, tiers: state.tiers, needsKey: false }
      : { engine: state, needsKey: false },
  );
}

function apply({ event, at }: Pending): void {
  let data: unknown;
  try {
    data = JSON.parse(event.data);
  } catch {
    return;
  }
  switch (event.event) {
    case "state": {
      const state = decodeState(data);
      if (state) applyState(state);
      break;
    }
    case "map": {
      const map = decodeMapEvent(data);
      if (map) mapModel.setMap(map);
      break;
    }
    case "hits": {
      const hits = decodeHitsEvent(data);
      if (hits) mapModel.addHits(hits, at);
      break;
    }
    case "tiers": {
      const tiers = decodeTiers(data);
      if (tiers) useEngine.setState({ tiers });
      break;
    }
    case "turn": {
      const lastTurn = decodeStats(data);
      if (lastTurn) useEngine.setState({ lastTurn });
      break;
    }
  }
}

/** Also for requests outside this module: any 401 brings up the key field. */
export function noteError(error: unknown): void {
  if (error instanceof ApiError && error.status === 401) useEngine.setState({ needsKey: true });
}

let snapshot: AbortController | null = null;

/** Snapshots are plain GETs; a newer gap makes an older answer worthless. */
function refetch(): void {
  snapshot?.abort();
  newer.clear();
  snapshot = new AbortController();
  const { signal } = snapshot;
  getState(signal)
    .then((state) => {
      if (state && !signal.aborted && !newer.has("state")) applyState(state);
    })
    .catch(noteError);
  getExperts(signal)
    .then((map) => {
      if (map && !signal.aborted && !newer.has("map")) mapModel.setMap(map);
    })
    .catch(noteError);
  getLastTurn(signal)
    .then((lastTurn) => {
      if (lastTurn && !signal.aborted && !newer.has("turn")) useEngine.setState({ lastTurn });
    })
    .catch(noteError);
}

const stream = new EventStream({
  open: openEvents,
  onGap: refetch,
  onEvent: enqueue,
  onConnection: (connection, retryInMs) => useEngine.setState({ connection, retryInMs }),
  onError: noteError,
  random: Math.random,
});

export function startLive(): void {
  // Without waiting for the stream: a server whose event endpoint is missing or slow still shows its state.
  refetch();
  stream.start();
  document.addEventListener("visibilitychange", () => stream.setHidden(document.hidden));
}

export function enterKey(key: string): void {
  setApiKey(key);
  useEngine.setState({ needsKey: false });
  refetch();
  stream.retryNow();
}
