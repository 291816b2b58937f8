import * as fc from "fast-check";
import { act } from "react";
import { createRoot } from "react-dom/client";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { BlockStream, parseBlocks } from "./blocks";
import { safeUrl } from "./links";
import { Markdown, StreamingMarkdown } from "./Markdown";

let box: HTMLElement;
let root: ReturnType<typeof createRoot>;

beforeEach(() => {
  (globalThis as Record<string, unknown>).IS_REACT_ACT_ENVIRONMENT = true;
  box = document.createElement("div");
  document.body.append(box);
  root = createRoot(box);
});

afterEach(() => {
  act(() => root.unmount());
  box.remove();
});

function render(text: string): HTMLElement {
  act(() => root.render(<Markdown text={text} />));
  return box;
}

const HOSTILE = [
  "<script>window.hit = 1</script>",
  '<img src="https://evil.example/a.png" onerror="window.hit = 1">',
  "<svg onload=alert(1)><a href='javascript:alert(1)'>x</a></svg>",
  "<iframe src='https://evil.example'></iframe>",
  "text <b onclick='x()'>bold</b> <style>*{display:none}</style>",
  "[click](javascript:alert(1))",
  "[click](  JaVaScRiPt:alert(1) )",
  "[click](data:text/html;base64,PHNjcmlwdD4=)",
  "[click](vbscript:x)",
  "[click](/v1/chat/completions)",
  "[click](//evil.example/x)",
  "<javascript:alert(1)>",
  "![beacon](https://evil.example/beacon.png)",
  "![beacon][b]\n\n[b]: https://evil.example/beacon.png",
  "[ref]\n\n[ref]: javascript:alert(1)",
  "| a |\n|---|\n| <img src=x onerror=alert(1)> |",
  "```html\n<script>alert(1)</script>\n```",
  "- [ ] <input autofocus onfocus=alert(1)>",
];

describe("hostile output", () => {
  it.each(HOSTILE)("stays inert: %s", (text) => {
    const html = render(text);
    expect(
      html.querySelector("script, img, svg:not([aria-hidden]), iframe, style, b, object"),
    ).toBe(null);
    for (const element of html.querySelectorAll("*")) {
      for (const name of element.getAttributeNames()) expect(name).not.toMatch(/^on|^srcdoc$/);
    }
    for (const link of html.querySelectorAll("a")) {
      expect(link.getAttribute("href")).toMatch(/^(https?|mailto):/);
    }
  });

  it("shows raw HTML as the characters it is", () => {
    expect(render("<b>not bold</b>").textContent).toContain("<b>not bold</b>");
  });

  it("keeps arbitrary text from becoming elements of its own", () => {
    const allowed = new Set(
      ["div", "p", "em", "strong", "del", "code", "pre", "a", "span", "ul", "ol", "li", "input"]
        .concat(["h3", "h4", "h5", "h6", "hr", "br", "blockquote", "table", "thead", "tbody", "tr"])
        .concat(["th", "td", "sup", "button", "svg", "rect", "path"]),
    );
    const piece = fc.constantFrom(
      "<",
      ">",
      "!",
      "[",
      "](",
      ")",
      "a",
      "\n",
      "`",
      "*",
      "_",
      "img",
      " ",
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 60 }), (pieces) => {
        for (const element of render(pieces.join("")).querySelectorAll("*")) {
          expect(allowed).toContain(element.tagName.toLowerCase());
        }
      }),
      { numRuns: 60 },
    );
  });
});

describe("links and images", () => {
  it("open apart, without referrer, and show their target", () => {
    const html = render("[our page](https://example.org/a)");
    const link = html.querySelector("a");
    expect(link?.rel).toBe("noopener noreferrer");
    expect(html.textContent).toContain("our page (example.org)");
  });

  it("allow http, https and mailto only", () => {
    expect(safeUrl("http://a.example")).not.toBeNull();
    expect(safeUrl("mailto:a@b.example")).not.toBeNull();
    for (const bad of ["javascript:1", "file:///etc/passwd", "x", "", "blob:http://a/1"]) {
      expect(safeUrl(bad)).toBeNull();
    }
  });

  it("load an image only after a click", () => {
    const html = render("![a cat](https://example.org/cat.png)");
    expect(html.querySelector("img")).toBeNull();
    act(() => html.querySelector("button")?.click());
    expect(html.querySelector("img")?.getAttribute("src")).toBe("https://example.org/cat.png");
  });
});

describe("incremental parsing", () => {
  // Without link definitions: those may rightly change earlier text, and the final pass settles them.
  const piece = fc.constantFrom(
    ...[
      "# Head",
      "text",
      "- item",
      "  - nested",
      "1. one",
      "> quote",
      "```js",
      "```",
      "---",
      "    code",
    ],
    ...[
      "| a | b |",
      "|---|---|",
      "| 1 | 2 |",
      "**bold",
      "**",
      "<div>",
      "</div>",
      "\n",
      "\n",
      "\n\n",
      " ",
    ],
  );

  it("ends with the blocks of a one-shot parse, whatever the cuts", () => {
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 25 }), (pieces) => {
        const stream = new BlockStream();
        let text = "";
        for (const part of pieces) {
          text += part;
          stream.update(text);
        }
        const plain = (node: unknown): unknown =>
          JSON.parse(
            JSON.stringify(node, (key, value) => (key === "position" ? undefined : value)),
          );
        expect(stream.update(text).map(({ node }) => plain(node))).toEqual(
          parseBlocks(text).map(({ node }) => plain(node)),
        );
      }),
      { numRuns: 400 },
    );
  });

  it("keeps finished blocks as they are", () => {
    const stream = new BlockStream();
    const [first] = stream.update("# Title\n\nfirst paragraph\n\nsec");
    const after = stream.update("# Title\n\nfirst paragraph\n\nsecond one");
    expect(after[0]).toBe(first);
    expect(after).toHaveLength(3);
  });

  it("starts over when the text is another one", () => {
    const stream = new BlockStream();
    stream.update("one\n\ntwo");
    expect(stream.update("other")).toHaveLength(1);
  });

  it("draws the growing answer", () => {
    act(() => root.render(<StreamingMarkdown text={"a\n\n**b"} />));
    act(() => root.render(<StreamingMarkdown text={"a\n\n**b** c"} />));
    expect(box.querySelector("strong")?.textContent).toBe("b");
  });
});
