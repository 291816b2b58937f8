/**
 * The one telemetry stream of a tab: connects, resumes by id, backs off, and sleeps while nobody looks.
 * Everything from outside (network, clock, chance, visibility) comes in through `Deps`, for the tests.
 */
import type { SseEvent } from "./sse";

export type Connection = "connecting" | "open" | "waiting" | "asleep";

export interface Deps {
  open(lastId: string | null, signal: AbortSignal, opened: () => void): AsyncIterable<SseEvent>;
  /** Called on every (re)opened stream and on `reset`: events were or may have been missed. */
  onGap(): void;
  onEvent(event: SseEvent): void;
  onConnection(state: Connection, retryInMs: number): void;
  onError(error: unknown): void;
  random(): number;
}

const BACKOFF_MS = [500, 1000, 2000, 4000, 8000];
export const HIDDEN_LIMIT_MS = 30_000;
/** The server pings each 15 s; three missing pings mean a dead path that TCP has not noticed. */
export const SILENCE_LIMIT_MS = 45_000;

export function backoffMs(attempt: number, random: number): number {
  const base = BACKOFF_MS[Math.min(attempt, BACKOFF_MS.length - 1)] ?? 8000;
  // Jitter upwards by at most a quarter: many tabs of one restarted server must not return at once.
  return Math.round(base * (1 + random * 0.25));
}

export class EventStream {
  private lastId: string | null = null;
  private attempt = 0;
  private abort: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setTimeout> | undefined;
  private hiddenTimer: ReturnType<typeof setTimeout> | undefined;
  private running = false;

  constructor(private readonly deps: Deps) {}

  start(): void {
    if (this.running) return;
    this.running = true;
    void this.connect();
  }

  stop(): void {
    this.running = false;
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    clearTimeout(this.hiddenTimer);
    this.abort?.abort();
    this.abort = null;
  }

  /** Skips what is left of the waiting time: the user pressed "retry" or entered a key. */
  retryNow(): void {
    if (!this.running) return;
    this.attempt = 0;
    clearTimeout(this.timer);
    this.abort?.abort();
    void this.connect();
  }

  setHidden(hidden: boolean): void {
    clearTimeout(this.hiddenTimer);
    if (hidden) {
      this.hiddenTimer = setTimeout(() => {
        this.stop();
        this.deps.onConnection("asleep", 0);
      }, HIDDEN_LIMIT_MS);
    } else {
      this.start();
    }
  }

  private async connect(): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    this.deps.onConnection("connecting", 0);
    try {
      const events = this.deps.open(this.lastId, abort.signal, () => {
        this.attempt = 0;
        this.deps.onConnection("open", 0);
        this.deps.onGap();
        this.watch(abort);
      });
      for await (const event of events) {
        if (abort.signal.aborted) break;
        this.watch(abort);
        this.take(event);
      }
    } catch (error) {
      if (this.abort === abort) this.deps.onError(error);
    }
    // A newer connection, or stop(), has taken over: this one must not schedule anything.
    if (this.abort !== abort || !this.running) return;
    clearTimeout(this.watchdog);
    const wait = backoffMs(this.attempt++, this.deps.random());
    this.deps.onConnection("waiting", wait);
    this.timer = setTimeout(() => void this.connect(), wait);
  }

  private take(event: SseEvent): void {
    if (event.id !== null) {
      // Ids grow; a smaller one means another server process, whose history we do not know.
      if (this.lastId !== null && Number(event.id) < Number(this.lastId)) this.deps.onGap();
      this.lastId = event.id;
    }
    if (event.event === "reset") this.deps.onGap();
    else this.deps.onEvent(event);
  }

  private watch(abort: AbortController): void {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => abort.abort(), SILENCE_LIMIT_MS);
  }
}
