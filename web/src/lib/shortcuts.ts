/** The one list of keys: it drives the listener and draws the help sheet. */
export interface Shortcut {
  id: string;
  /** As shown to people; `Mod` is Ctrl, or Cmd on Apple keyboards. */
  keys: string;
  label: string;
}

export const SHORTCUTS = [
  { id: "new-chat", keys: "Mod Shift O", label: "New chat" },
  { id: "focus-composer", keys: "Shift Escape", label: "Focus the message field" },
  { id: "stop", keys: "Escape", label: "Stop the answer" },
  { id: "go-chat", keys: "g c", label: "Go to Chat" },
  { id: "go-brain", keys: "g b", label: "Go to Brain" },
  { id: "mode-tier", keys: "1", label: "Map: tier" },
  { id: "mode-heat", keys: "2", label: "Map: heat" },
  { id: "mode-both", keys: "3", label: "Map: both" },
  { id: "mode-activity", keys: "4", label: "Map: activity" },
  { id: "help", keys: "?", label: "This list" },
] as const satisfies readonly Shortcut[];

export type ShortcutId = (typeof SHORTCUTS)[number]["id"];

export interface KeyPress {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
  shiftKey: boolean;
  altKey: boolean;
}

/** How long the second key of a pair such as `g c` may take. */
const PAIR_MS = 1200;

/** Turns key presses into shortcut ids. Holds the first key of a pair between presses. */
export class ShortcutMatcher {
  private prefix = "";
  private prefixAt = 0;

  match(press: KeyPress, typing: boolean, now: number): ShortcutId | null {
    const mod = press.ctrlKey || press.metaKey;
    if (press.altKey) return null;
    const pair = now - this.prefixAt < PAIR_MS ? this.prefix : "";
    this.prefix = "";
    // Single letters belong to the text while someone writes.
    const plain = !mod && !typing;
    if (plain && !press.shiftKey && press.key === "g") {
      this.prefix = "g";
      this.prefixAt = now;
      return null;
    }
    for (const { id, keys } of SHORTCUTS) {
      const parts: string[] = keys.split(" ");
      const key = parts.at(-1) ?? "";
      if (parts[0] === "Mod") {
        if (mod && press.shiftKey && press.key.toUpperCase() === key) return id;
      } else if (parts[0] === "Shift") {
        if (!mod && press.shiftKey && press.key === key) return id;
      } else if (key === "Escape") {
        if (!mod && !press.shiftKey && press.key === key) return id;
      } else if (parts.length === 2) {
        if (plain && pair === parts[0] && press.key === key) return id;
      } else if (plain && pair === "" && press.key === key) {
        return id;
      }
    }
    return null;
  }
}
