import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { readSse, type SseEvent, SseParser } from "./sse";

const encode = (text: string): Uint8Array => new TextEncoder().encode(text);

function parseAll(bytes: Uint8Array, cuts: number[] = []): SseEvent[] {
  const parser = new SseParser();
  const edges = [
    0,
    ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b),
    bytes.length,
  ];
  return edges.slice(1).flatMap((end, i) => parser.push(bytes.slice(edges[i], end)));
}

describe("SseParser", () => {
  it("reads fields, comments, ids and multi-line data", () => {
    const text = ": hello\nid: 7\nevent: hits\ndata: a\ndata: b\n\ndata:no space\n\n";
    expect(parseAll(encode(text))).toEqual([
      { event: "hits", data: "a\nb", id: "7" },
      { event: "message", data: "no space", id: "7" },
    ]);
  });

  it("ends lines with LF, CR and CRLF alike", () => {
    for (const end of ["\n", "\r", "\r\n"]) {
      const text = ["event: map", "data: x", "", "data: y", "", ""].join(end);
      expect(parseAll(encode(text)).map(({ data }) => data)).toEqual(["x", "y"]);
    }
  });

  it("drops an event that the connection's end cut short", () => {
    expect(parseAll(encode("data: whole\n\ndata: half\n"))).toHaveLength(1);
  });

  it("gives the same events however the bytes are cut", () => {
    const line = fc.string({ unit: "grapheme" }).map((text) => text.replaceAll(/[\r\n\0]/g, ""));
    const event = fc.record({
      event: fc.constantFrom("map", "hits", "turn"),
      data: fc.array(line, { minLength: 1, maxLength: 3 }),
      id: fc.nat(),
    });
    fc.assert(
      fc.property(
        fc.array(event, { maxLength: 6 }),
        fc.constantFrom("\n", "\r", "\r\n"),
        fc.array(fc.nat(), { maxLength: 40 }),
        (events, end, cuts) => {
          const text = events
            .flatMap(({ event, data, id }) => [
              `event: ${event}`,
              `id: ${id}`,
              ...data.map((part) => `data: ${part}`),
              "",
              "",
            ])
            .join(end);
          const expected = events.map(({ event, data, id }) => ({
            event,
            data: data.join("\n"),
            id: String(id),
          }));
          // The last separator is missing from the join; add it so that the last event is complete.
          expect(parseAll(encode(text + end), cuts)).toEqual(expected);
        },
      ),
    );
  });

  it("keeps characters whole that are cut byte by byte", () => {
    const bytes = encode("data: Fuchs 🦊 – été\n\n");
    const cuts = Array.from(bytes, (_, i) => i);
    expect(parseAll(bytes, cuts)[0]?.data).toBe("Fuchs 🦊 – été");
  });
});

describe("readSse", () => {
  it("closes the body when the reader leaves early", async () => {
    let cancelled = false;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(encode("data: 1\n\ndata: 2\n\n")),
      cancel: () => {
        cancelled = true;
      },
    });
    for await (const event of readSse(body)) {
      expect(event.data).toBe("1");
      break;
    }
    expect(cancelled).toBe(true);
  });
});
