import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import * as wire from "./wire";

const hex = (bytes: Uint8Array): string =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const base64 = (bytes: Uint8Array): string => btoa(String.fromCharCode(...bytes));

describe("bytes", () => {
  it("survive hex and base64", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 400 }), (bytes) => {
        expect(wire.decodeHex(hex(bytes))).toEqual(bytes);
        expect(wire.decodeBase64(base64(bytes))).toEqual(bytes);
      }),
    );
  });

  it("are null when malformed", () => {
    expect(wire.decodeHex("abc")).toBeNull();
    expect(wire.decodeHex("zz")).toBeNull();
    expect(wire.decodeBase64("a*b=")).toBeNull();
  });
});

describe("cells", () => {
  it("pack tier and heat", () => {
    expect(wire.tierOf(0x00)).toBe("disk");
    expect(wire.tierOf(0x45)).toBe("ram");
    expect(wire.tierOf(0xbf)).toBe("vram");
    expect(wire.tierOf(0xc0)).toBeNull();
    expect(wire.heatOf(0xbf)).toBe(63);
  });

  it("say how often an expert was selected: heat is a bit length", () => {
    fc.assert(
      fc.property(fc.nat({ max: 2 ** 30 }), (selections) => {
        const { low, high } = wire.heatRange(selections === 0 ? 0 : 32 - Math.clz32(selections));
        expect(selections).toBeGreaterThanOrEqual(low);
        expect(selections).toBeLessThanOrEqual(high);
      }),
    );
  });
});

describe("maps and hits", () => {
  it("are taken at their stated geometry only", () => {
    const cells = new Uint8Array([0, 65, 130, 3, 4, 5]);
    expect(wire.decodeExperts({ rows: 2, cols: 3, map: hex(cells), hits: "00" })?.cells).toEqual(
      cells,
    );
    expect(wire.decodeMapEvent({ rows: 2, cols: 3, data: base64(cells) })?.cells).toEqual(cells);
    expect(wire.decodeMapEvent({ rows: 3, cols: 3, data: base64(cells) })).toBeNull();
    expect(wire.decodeMapEvent({ rows: 1e9, cols: 1e9, data: "" })).toBeNull();
    const bits = new Uint8Array([0b101]);
    expect(wire.decodeHitsEvent({ rows: 2, cols: 3, data: base64(bits) })?.bits).toEqual(bits);
    expect(wire.decodeHitsEvent({ rows: 4, cols: 3, data: base64(bits) })).toBeNull();
  });
});

describe("junk", () => {
  it("never throws", () => {
    fc.assert(
      fc.property(fc.anything(), fc.string(), (value, text) => {
        for (const decode of [
          wire.decodeExperts,
          wire.decodeMapEvent,
          wire.decodeHitsEvent,
          wire.decodeState,
          wire.decodeStats,
          wire.decodeTiers,
          wire.decodeError,
          wire.decodeModelId,
        ]) {
          decode(value);
        }
        wire.decodeChatFrames(text);
      }),
    );
  });
});

describe("state", () => {
  it("fills what is missing and refuses an unknown phase", () => {
    const state = wire.decodeState({ state: "loading", stage: "experts", done: 3, total: 10 });
    expect(state).toMatchObject({ state: "loading", done: 3, total: 10, layers: null, rows: 0 });
    expect(wire.decodeState({ state: "dreaming" })).toBeNull();
  });

  it("drops layer numbers that are not numbers", () => {
    expect(wire.decodeState({ state: "ready", layers: [1, 2] })?.layers).toEqual([1, 2]);
    expect(wire.decodeState({ state: "ready", layers: [1, "<b>"] })?.layers).toBeNull();
  });
});

describe("profile", () => {
  it("gives the latest turn, or nothing", () => {
    const turns = [{ tokens_per_second: 1 }, { tokens_per_second: 2, cache_hit_percent: 90 }];
    expect(wire.decodeLastTurn({ seq: 2, turns })).toMatchObject({
      tokens_per_second: 2,
      cache_hit_percent: 90,
    });
    for (const junk of [null, {}, { turns: 3 }, { turns: [] }, { turns: [7] }]) {
      expect(wire.decodeLastTurn(junk)).toBeNull();
    }
  });
});

describe("chat frames", () => {
  const chunk = (value: unknown): wire.ChatFrame[] => wire.decodeChatFrames(JSON.stringify(value));

  it("carry text, reasoning and the finish reason", () => {
    expect(chunk({ choices: [{ delta: { content: "Hi" }, finish_reason: null }] })).toEqual([
      { kind: "delta", content: "Hi", reasoning: "", finish: null },
    ]);
    expect(chunk({ choices: [{ delta: {}, finish_reason: "length" }] })).toEqual([
      { kind: "delta", content: "", reasoning: "", finish: "length" },
    ]);
  });

  it("carry the engine's statistics, errors and the end", () => {
    expect(chunk({ choices: [], colibri: { stats: { tokens_per_second: 12.5 } } })).toMatchObject([
      { kind: "stats", stats: { tokens_per_second: 12.5, prompt_tokens: null } },
    ]);
    expect(chunk({ error: { message: "gone", code: "engine_died" } })).toMatchObject([
      { kind: "error", error: { message: "gone", code: "engine_died" } },
    ]);
    expect(wire.decodeChatFrames("[DONE]")).toEqual([{ kind: "done" }]);
    expect(wire.decodeChatFrames("{ half")).toEqual([]);
  });
});
