/** Words of the server, written for a terminal, made fit for a page. */

/** An ordinary word: neither a file name nor an option, whose first letter must stay as it is. */
const WORD = /^[a-z]+(?=[\s,;:!?]|\.?$|\.\s)/;
/** The product's name is its command. */
const COMMAND = "colibri";

/** Begins with a capital, unless what stands there is a name that would be wrong with one. */
export function sentence(text: string): string {
  const first = WORD.exec(text)?.[0];
  return first === undefined || first === COMMAND
    ? text
    : text.charAt(0).toUpperCase() + text.slice(1);
}

export interface Piece {
  text: string;
  code: boolean;
}

/** Splits at pairs of backticks. A backtick without a partner is an ordinary character. */
export function codePieces(text: string): Piece[] {
  return text
    .split(/(`[^`\n]+`)/)
    .filter((part) => part !== "")
    .map((part) =>
      part.length > 2 && part.startsWith("`") && part.endsWith("`")
        ? { text: part.slice(1, -1), code: true }
        : { text: part, code: false },
    );
}

/** For a place that can show nothing but characters. */
export function plainSentence(text: string): string {
  return codePieces(sentence(text))
    .map((piece) => piece.text)
    .join("");
}
