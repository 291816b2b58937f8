/** Markdown to syntax-tree blocks, incrementally: what is finished is parsed once. */
import type { RootContent } from "mdast";
import { fromMarkdown } from "mdast-util-from-markdown";
import { gfmFromMarkdown } from "mdast-util-gfm";
import { gfm } from "micromark-extension-gfm";

export interface Block {
  /** Offset of the block in the text: stable while streaming, therefore its key. */
  start: number;
  node: RootContent;
}

const extensions = [gfm()];
const mdastExtensions = [gfmFromMarkdown()];

export function parseBlocks(text: string, offset = 0): Block[] {
  const tree = fromMarkdown(text, { extensions, mdastExtensions });
  return tree.children.map((node) => ({
    // Back to the line's beginning: re-parsing from here must see the same indentation.
    start: offset + (node.position?.start.offset ?? 0) - ((node.position?.start.column ?? 1) - 1),
    node,
  }));
}

/**
 * Holds the blocks of a growing text. A block is finished once a later one has begun with a whole line: until
 * its newline arrives, a line such as `---` may still turn into more of the paragraph before it. Finished
 * blocks keep their identity, and what is memoised on them is not rendered again.
 * References to link definitions that arrive later are the exception: `parseBlocks` at the end settles them.
 */
export class BlockStream {
  private text = "";
  private finished: readonly Block[] = [];
  private openFrom = 0;
  private blocks: readonly Block[] = [];

  update(text: string): readonly Block[] {
    if (text === this.text) return this.blocks;
    if (!text.startsWith(this.text)) {
      this.finished = [];
      this.openFrom = 0;
    }
    this.text = text;
    const tail = parseBlocks(text.slice(this.openFrom), this.openFrom);
    this.blocks = [...this.finished, ...tail];
    const wholeLines = text.lastIndexOf("\n");
    const open = tail.findLastIndex(({ start }) => start <= wholeLines);
    if (open > 0) {
      this.finished = [...this.finished, ...tail.slice(0, open)];
      this.openFrom = tail[open]?.start ?? this.openFrom;
    }
    return this.blocks;
  }
}
