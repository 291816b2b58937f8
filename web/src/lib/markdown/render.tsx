/**
 * Syntax tree to React elements. Model output is hostile input: no node is ever turned into HTML text, raw
 * HTML is shown as the characters it is, and nothing here loads anything by itself.
 */
import type { AlignType, Definition, Nodes, Parent, Table } from "mdast";
import { Fragment, type JSX, memo, type ReactNode, useState } from "react";
import { CopyButton } from "../../components/CopyButton";
import type { Block } from "./blocks";
import { safeUrl, shownTarget } from "./links";

export type Definitions = ReadonlyMap<string, Definition>;

export function collectDefinitions(blocks: readonly Block[]): Definitions {
  const found = new Map<string, Definition>();
  for (const { node } of blocks) {
    if (node.type === "definition" && !found.has(node.identifier)) found.set(node.identifier, node);
  }
  return found;
}

function plainText(node: Nodes): string {
  if ("value" in node) return node.value;
  if ("children" in node) return node.children.map(plainText).join("");
  return "";
}

function Link({ target, children }: { target: string; children: ReactNode }): JSX.Element {
  const url = safeUrl(target);
  if (!url) {
    return (
      <>
        {children} <code className="md-dead-link">{target}</code>
      </>
    );
  }
  return (
    <>
      <a href={url.href} target="_blank" rel="noopener noreferrer" title={url.href}>
        {children}
      </a>
      <span className="md-target"> ({shownTarget(url)})</span>
    </>
  );
}

/** An image address is a beacon: fetching it tells its host that this answer was read, so a person decides. */
function Image({ target, alt }: { target: string; alt: string }): JSX.Element {
  const [state, setState] = useState<"closed" | "open" | "failed">("closed");
  const url = safeUrl(target);
  const name = alt || "image";
  if (!url || url.protocol === "mailto:") return <span className="md-dead-link">{name}</span>;
  if (state === "open") {
    return (
      <img
        src={url.href}
        alt={alt}
        referrerPolicy="no-referrer"
        onError={() => setState("failed")}
      />
    );
  }
  if (state === "failed") return <Link target={url.href}>{name} (not shown here)</Link>;
  return (
    <button type="button" className="md-image" title={url.href} onClick={() => setState("open")}>
      Load image “{name}” from {shownTarget(url)}
    </button>
  );
}

function Code({ value, lang }: { value: string; lang: string | null | undefined }): JSX.Element {
  return (
    <div className="md-code">
      <div className="md-code-bar">
        <span>{lang ?? "text"}</span>
        <CopyButton text={value} label="Copy code" />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling box must be reachable by keyboard */}
      <pre tabIndex={0}>
        <code>{value}</code>
      </pre>
    </div>
  );
}

function cellStyle(align: AlignType | undefined): { textAlign: "left" | "right" | "center" } {
  return { textAlign: align ?? "left" };
}

function TableView({ node, definitions }: { node: Table; definitions: Definitions }): JSX.Element {
  const [head, ...body] = node.children;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a scrolling box must be reachable by keyboard
    <div className="md-table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head?.children.map((cell, i) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: parsed trees have no other identity
              <th key={i} style={cellStyle(node.align?.[i])}>
                <Children of={cell} definitions={definitions} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {body.map((row, r) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: parsed trees have no other identity
            <tr key={r}>
              {row.children.map((cell, i) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: parsed trees have no other identity
                <td key={i} style={cellStyle(node.align?.[i])}>
                  <Children of={cell} definitions={definitions} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Children({ of, definitions }: { of: Parent; definitions: Definitions }): JSX.Element {
  return (
    <>
      {of.children.map((child, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: parsed trees have no other identity
        <Fragment key={i}>{renderNode(child, definitions)}</Fragment>
      ))}
    </>
  );
}

function renderNode(node: Nodes, definitions: Definitions): ReactNode {
  const inner = (of: Parent): JSX.Element => <Children of={of} definitions={definitions} />;
  switch (node.type) {
    case "text":
      return node.value;
    case "html":
      return <span className="md-raw">{node.value}</span>;
    case "paragraph":
      return <p>{inner(node)}</p>;
    case "heading": {
      // The page owns h1 and h2; an answer's outline hangs below its message.
      const Tag = `h${Math.min(6, node.depth + 2)}` as "h3" | "h4" | "h5" | "h6";
      return <Tag className={`md-h${node.depth}`}>{inner(node)}</Tag>;
    }
    case "emphasis":
      return <em>{inner(node)}</em>;
    case "strong":
      return <strong>{inner(node)}</strong>;
    case "delete":
      return <del>{inner(node)}</del>;
    case "inlineCode":
      return <code>{node.value}</code>;
    case "code":
      return <Code value={node.value} lang={node.lang} />;
    case "blockquote":
      return <blockquote>{inner(node)}</blockquote>;
    case "list":
      return node.ordered ? <ol start={node.start ?? 1}>{inner(node)}</ol> : <ul>{inner(node)}</ul>;
    case "listItem":
      return (
        <li className={typeof node.checked === "boolean" ? "md-task" : undefined}>
          {typeof node.checked === "boolean" && (
            <input type="checkbox" checked={node.checked} disabled aria-label="task" />
          )}
          {inner(node)}
        </li>
      );
    case "break":
      return <br />;
    case "thematicBreak":
      return <hr />;
    case "link":
      return <Link target={node.url}>{inner(node)}</Link>;
    case "image":
      return <Image target={node.url} alt={node.alt ?? ""} />;
    case "linkReference": {
      const definition = definitions.get(node.identifier);
      return definition ? <Link target={definition.url}>{inner(node)}</Link> : inner(node);
    }
    case "imageReference": {
      const definition = definitions.get(node.identifier);
      return definition ? <Image target={definition.url} alt={node.alt ?? ""} /> : node.alt;
    }
    case "table":
      return <TableView node={node} definitions={definitions} />;
    case "footnoteReference":
      return <sup>[{node.label ?? node.identifier}]</sup>;
    case "footnoteDefinition":
      return (
        <div className="md-footnote">
          <span>[{node.label ?? node.identifier}]</span>
          {inner(node)}
        </div>
      );
    case "definition":
      return null;
    default:
      return plainText(node);
  }
}

/** One top-level block. Memoised on the node: finished blocks of a streaming answer never render again. */
export const BlockView = memo(function BlockView({
  node,
  definitions,
}: {
  node: Block["node"];
  definitions: Definitions;
}): ReactNode {
  return renderNode(node, definitions);
});
