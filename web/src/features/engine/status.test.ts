import { describe, expect, it } from "vitest";
import { decodeState, type EngineState } from "../../lib/wire";
import { statusOf } from "./status";

const engine = (more: object): EngineState | null => decodeState(more);

describe("statusOf", () => {
  it("names the engine's own state and progress", () => {
    expect(statusOf("open", engine({ state: "ready" }))).toMatchObject({ tone: "good" });
    const loading = engine({ state: "loading", stage: "experts", done: 3, total: 8 });
    expect(statusOf("open", loading).text).toBe("loading: experts 37 %");
    expect(statusOf("open", engine({ state: "failed", reason: "no such file" }))).toMatchObject({
      tone: "bad",
      detail: "no such file",
    });
  });

  it("does not call an engine ready that cannot be reached", () => {
    expect(statusOf("waiting", engine({ state: "ready" })).text).toBe("offline");
    expect(statusOf("connecting", null).text).toBe("connecting");
  });
});
