/** One event of a `text/event-stream`. `data` joins its lines with newlines, as the standard says. */
export interface SseEvent {
  event: string;
  data: string;
  id: string | null;
}

/**
 * Incremental parser for `text/event-stream` bytes.
 *
 * `EventSource` can neither POST nor send an Authorization header, so both streams of this page are read
 * with `fetch`. Chunks may be cut anywhere, also inside a multi-byte character or between CR and LF.
 */
export class SseParser {
  private readonly decoder = new TextDecoder("utf-8");
  private rest = "";
  private afterCr = false;
  private event = "";
  private data: string[] = [];
  private lastId: string | null = null;

  push(bytes: Uint8Array): SseEvent[] {
    return this.feed(this.decoder.decode(bytes, { stream: true }));
  }

  private feed(text: string): SseEvent[] {
    const out: SseEvent[] = [];
    let chunk = text;
    if (this.afterCr && chunk.length > 0) {
      // The CR already ended the line; its LF, arriving in the next chunk, must not end an empty one.
      if (chunk.startsWith("\n")) chunk = chunk.slice(1);
      this.afterCr = false;
    }
    const buffer = this.rest + chunk;
    let start = 0;
    for (let i = this.rest.length; i < buffer.length; i++) {
      const code = buffer.charCodeAt(i);
      if (code !== 10 && code !== 13) continue;
      this.line(buffer.slice(start, i), out);
      if (code === 13) {
        if (i + 1 === buffer.length) this.afterCr = true;
        else if (buffer.charCodeAt(i + 1) === 10) i++;
      }
      start = i + 1;
    }
    this.rest = buffer.slice(start);
    return out;
  }

  private line(line: string, out: SseEvent[]): void {
    if (line === "") {
      if (this.data.length > 0) {
        out.push({
          event: this.event || "message",
          data: this.data.join("\n"),
          id: this.lastId,
        });
      }
      this.event = "";
      this.data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id" && !value.includes("\0")) this.lastId = value;
  }
}

/** Reads a response body as events until it ends or its request is aborted. */
export async function* readSse(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  const parser = new SseParser();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    // Leaving early (a `break` in the caller) must close the connection; after an abort this is a no-op.
    await reader.cancel().catch(() => undefined);
  }
}
