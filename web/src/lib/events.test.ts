import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { backoffMs, type Deps, EventStream, HIDDEN_LIMIT_MS, SILENCE_LIMIT_MS } from "./events";
import type { SseEvent } from "./sse";

/** A server whose connections the test ends, feeds or refuses. */
class Line {
  readonly opens: (string | null)[] = [];
  refuse = false;
  private push: (event: SseEvent | null) => void = () => undefined;

  async *open(
    lastId: string | null,
    signal: AbortSignal,
    opened: () => void,
  ): AsyncGenerator<SseEvent> {
    this.opens.push(lastId);
    if (this.refuse) throw new Error("refused");
    opened();
    for (;;) {
      const event = await new Promise<SseEvent | null>((resolve, reject) => {
        this.push = resolve;
        signal.addEventListener("abort", () => reject(signal.reason));
      });
      if (event === null) return;
      yield event;
    }
  }

  async send(event: SseEvent | null): Promise<void> {
    this.push(event);
    await vi.advanceTimersByTimeAsync(0);
  }
}

const event = (id: string, name = "hits"): SseEvent => ({ event: name, data: "{}", id });

describe("EventStream", () => {
  let line: Line;
  let gaps: number;
  let states: string[];
  let seen: string[];
  let stream: EventStream;

  beforeEach(async () => {
    vi.useFakeTimers();
    line = new Line();
    gaps = 0;
    states = [];
    seen = [];
    const deps: Deps = {
      open: (lastId, signal, opened) => line.open(lastId, signal, opened),
      onGap: () => {
        gaps++;
      },
      onEvent: ({ id }) => seen.push(id ?? ""),
      onConnection: (state) => states.push(state),
      onError: () => undefined,
      random: () => 0,
    };
    stream = new EventStream(deps);
    stream.start();
    await vi.advanceTimersByTimeAsync(0);
  });

  afterEach(() => {
    stream.stop();
    vi.useRealTimers();
  });

  it("resumes after the last id it has seen, and refetches", async () => {
    await line.send(event("4"));
    await line.send(event("5"));
    expect(seen).toEqual(["4", "5"]);
    await line.send(null);
    expect(states.at(-1)).toBe("waiting");
    await vi.advanceTimersByTimeAsync(500);
    expect(line.opens).toEqual([null, "5"]);
    expect(gaps).toBe(2);
  });

  it("waits longer after each refusal, and starts over after a success", async () => {
    line.refuse = true;
    await line.send(null);
    for (const wait of [500, 1000, 2000, 4000, 8000, 8000]) {
      const before = line.opens.length;
      await vi.advanceTimersByTimeAsync(wait - 1);
      expect(line.opens).toHaveLength(before);
      await vi.advanceTimersByTimeAsync(1);
      expect(line.opens).toHaveLength(before + 1);
    }
    line.refuse = false;
    await vi.advanceTimersByTimeAsync(8000);
    expect(states.at(-1)).toBe("open");
    await line.send(null);
    const before = line.opens.length;
    await vi.advanceTimersByTimeAsync(500);
    expect(line.opens).toHaveLength(before + 1);
  });

  it("treats a reset and ids that go backwards as gaps", async () => {
    await line.send(event("9"));
    await line.send(event("10", "reset"));
    expect(gaps).toBe(2);
    await line.send(event("1"));
    expect(gaps).toBe(3);
    expect(seen).toEqual(["9", "1"]);
  });

  it("closes after 30 s out of sight and comes back at once", async () => {
    stream.setHidden(true);
    await vi.advanceTimersByTimeAsync(HIDDEN_LIMIT_MS - 1);
    expect(states.at(-1)).toBe("open");
    await vi.advanceTimersByTimeAsync(1);
    expect(states.at(-1)).toBe("asleep");
    stream.setHidden(false);
    await vi.advanceTimersByTimeAsync(0);
    expect(states.at(-1)).toBe("open");
    expect(line.opens).toHaveLength(2);
  });

  it("stays open through a short absence", async () => {
    stream.setHidden(true);
    await vi.advanceTimersByTimeAsync(1000);
    stream.setHidden(false);
    await vi.advanceTimersByTimeAsync(SILENCE_LIMIT_MS - 2000);
    expect(line.opens).toHaveLength(1);
  });

  it("gives up on a connection that has gone silent", async () => {
    await vi.advanceTimersByTimeAsync(SILENCE_LIMIT_MS);
    expect(states.at(-1)).toBe("waiting");
  });

  it("retries at once when asked to", async () => {
    line.refuse = true;
    await line.send(null);
    line.refuse = false;
    stream.retryNow();
    await vi.advanceTimersByTimeAsync(0);
    expect(states.at(-1)).toBe("open");
    await vi.advanceTimersByTimeAsync(20_000);
    expect(line.opens).toHaveLength(2);
  });
});

describe("backoffMs", () => {
  it("adds at most a quarter", () => {
    expect(backoffMs(0, 0)).toBe(500);
    expect(backoffMs(9, 1)).toBe(10_000);
  });
});
