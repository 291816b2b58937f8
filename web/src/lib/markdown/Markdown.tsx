import { type JSX, useMemo, useRef } from "react";
import { BlockStream, parseBlocks } from "./blocks";
import { BlockView, collectDefinitions, type Definitions } from "./render";

const NONE: Definitions = new Map();

/** An answer while it grows: finished blocks stay as they are, only the open one is parsed and drawn. */
export function StreamingMarkdown({ text }: { text: string }): JSX.Element {
  const stream = useRef<BlockStream>(null);
  stream.current ??= new BlockStream();
  return (
    <div className="md">
      {stream.current.update(text).map(({ start, node }) => (
        <BlockView key={start} node={node} definitions={NONE} />
      ))}
    </div>
  );
}

/** A finished text, parsed whole so that link definitions resolve wherever they stand. */
export function Markdown({ text }: { text: string }): JSX.Element {
  const blocks = useMemo(() => parseBlocks(text), [text]);
  const definitions = useMemo(() => collectDefinitions(blocks), [blocks]);
  return (
    <div className="md">
      {blocks.map(({ start, node }) => (
        <BlockView key={start} node={node} definitions={definitions} />
      ))}
    </div>
  );
}
