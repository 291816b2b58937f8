import type { JSX } from "react";
import { codePieces, sentence } from "../lib/words";

/** A sentence from the server: what stands between backticks becomes code. */
export function Words({ text }: { text: string }): JSX.Element {
  return (
    <>
      {codePieces(sentence(text)).map(({ text: part, code }, i) =>
        // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text never change places
        code ? <code key={i}>{part}</code> : part,
      )}
    </>
  );
}
