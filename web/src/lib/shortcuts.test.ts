import { describe, expect, it } from "vitest";
import { type KeyPress, ShortcutMatcher } from "./shortcuts";

const press = (key: string, more: Partial<KeyPress> = {}): KeyPress => ({
  key,
  ctrlKey: false,
  metaKey: false,
  shiftKey: false,
  altKey: false,
  ...more,
});

describe("ShortcutMatcher", () => {
  it("matches single keys, but leaves letters to someone who types", () => {
    const matcher = new ShortcutMatcher();
    expect(matcher.match(press("2"), false, 0)).toBe("mode-heat");
    expect(matcher.match(press("2"), true, 0)).toBeNull();
    expect(matcher.match(press("?", { shiftKey: true }), false, 0)).toBe("help");
    expect(matcher.match(press("Escape"), true, 0)).toBe("stop");
    expect(matcher.match(press("Escape", { shiftKey: true }), true, 0)).toBe("focus-composer");
  });

  it("matches a pair within its time", () => {
    const matcher = new ShortcutMatcher();
    expect(matcher.match(press("g"), false, 100)).toBeNull();
    expect(matcher.match(press("b"), false, 300)).toBe("go-brain");
    expect(matcher.match(press("b"), false, 400)).toBeNull();
    matcher.match(press("g"), false, 1000);
    expect(matcher.match(press("c"), false, 9000)).toBeNull();
  });

  it("takes Ctrl and Cmd alike and leaves Alt alone", () => {
    const matcher = new ShortcutMatcher();
    const shiftO = { shiftKey: true };
    expect(matcher.match(press("O", { ...shiftO, ctrlKey: true }), true, 0)).toBe("new-chat");
    expect(matcher.match(press("o", { ...shiftO, metaKey: true }), true, 0)).toBe("new-chat");
    expect(matcher.match(press("2", { altKey: true }), false, 0)).toBeNull();
    expect(matcher.match(press("2", { ctrlKey: true }), false, 0)).toBeNull();
  });
});
