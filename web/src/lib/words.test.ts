import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { codePieces, plainSentence, sentence } from "./words";

describe("sentence", () => {
  it("begins with a capital", () => {
    expect(sentence("shorten the prompt")).toBe("Shorten the prompt");
    expect(sentence("stopped.")).toBe("Stopped.");
    expect(sentence("no: it is not there")).toBe("No: it is not there");
  });

  it("leaves names as they are", () => {
    for (const text of [
      "config.json is missing",
      "--ctx is too large",
      "max_tokens must be positive",
      "/models/x: no such file",
      "`colibri doctor` tells more",
      "colibri serve has ended",
      "Already right",
      "",
    ]) {
      expect(sentence(text)).toBe(text);
    }
  });
});

describe("codePieces", () => {
  it("finds code between backticks", () => {
    expect(codePieces("Run `colibri doctor` and see.")).toEqual([
      { text: "Run ", code: false },
      { text: "colibri doctor", code: true },
      { text: " and see.", code: false },
    ]);
    expect(codePieces("a ` alone")).toEqual([{ text: "a ` alone", code: false }]);
  });

  it("loses nothing but the backticks", () => {
    fc.assert(
      fc.property(fc.string(), (text) => {
        const shown = codePieces(text).map(({ text, code }) => (code ? `\`${text}\`` : text));
        expect(shown.join("")).toBe(text);
      }),
    );
    expect(plainSentence("run `x`")).toBe("Run x");
  });
});
