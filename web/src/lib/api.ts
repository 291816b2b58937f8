/** The only module that calls `fetch`. Every path is relative to the origin that served the page. */
import { readSse, type SseEvent } from "./sse";
import {
  type ChatFrame,
  decodeChatFrames,
  decodeError,
  decodeExperts,
  decodeLastTurn,
  decodeModelId,
  decodeState,
  type EngineState,
  type ExpertMap,
  type TurnStats,
} from "./wire";

/** A request that failed, in words a person can act on. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** HTTP status, or 0 when no answer came at all. */
    readonly status: number,
    readonly code: string | null = null,
    readonly hint: string | null = null,
    readonly requestId: string | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

export interface ChatRequest {
  model: string;
  messages: { role: "system" | "user" | "assistant"; content: string }[];
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  seed?: number;
}

// In memory only: a reload forgets the key, so that no other page or later user of the browser finds it.
let apiKey: string | null = null;

export function setApiKey(key: string | null): void {
  apiKey = key;
}

function headers(extra: Record<string, string> = {}): Record<string, string> {
  return apiKey === null ? extra : { ...extra, Authorization: `Bearer ${apiKey}` };
}

function hintFor(status: number, code: string | null, retryAfter: string | null): string | null {
  if (status === 401) return "Enter the API key that the server was started with.";
  if (code === "context_length_exceeded") return "Start a new chat, or shorten the message.";
  if (status === 429 || status === 503) {
    return retryAfter === null
      ? "The engine is occupied. Try again in a moment."
      : `The engine is occupied. Try again in ${retryAfter} s.`;
  }
  return null;
}

async function toError(response: Response): Promise<ApiError> {
  let detail = null;
  try {
    detail = decodeError(await response.json());
  } catch {
    // A proxy's HTML page or an empty body: the status line is all there is to say.
  }
  return new ApiError(
    detail?.message ?? `The server answered ${response.status} ${response.statusText}`.trim(),
    response.status,
    detail?.code ?? null,
    detail?.hint ??
      hintFor(response.status, detail?.code ?? null, response.headers.get("retry-after")),
    response.headers.get("x-request-id"),
  );
}

async function request(path: string, init: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { cache: "no-store", redirect: "error", ...init });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(
      "The server cannot be reached.",
      0,
      null,
      "Check that `colibri serve` is still running.",
    );
  }
  if (!response.ok) throw await toError(response);
  return response;
}

async function getJson(path: string, signal: AbortSignal): Promise<unknown> {
  const response = await request(path, {
    signal,
    headers: headers({ Accept: "application/json" }),
  });
  return response.json();
}

export async function getState(signal: AbortSignal): Promise<EngineState | null> {
  return decodeState(await getJson("/api/state", signal));
}

export async function getExperts(signal: AbortSignal): Promise<ExpertMap | null> {
  return decodeExperts(await getJson("/experts", signal));
}

export async function getLastTurn(signal: AbortSignal): Promise<TurnStats | null> {
  return decodeLastTurn(await getJson("/profile", signal));
}

export async function getModelId(signal: AbortSignal): Promise<string | null> {
  return decodeModelId(await getJson("/v1/models", signal));
}

function bodyOf(response: Response): ReadableStream<Uint8Array> {
  if (response.body === null)
    throw new ApiError("The server sent an empty answer.", response.status);
  return response.body;
}

/** Live telemetry. `opened` tells the caller that the server accepted the stream. */
export async function* openEvents(
  lastId: string | null,
  signal: AbortSignal,
  opened: () => void,
): AsyncGenerator<SseEvent> {
  const resume: Record<string, string> = lastId === null ? {} : { "Last-Event-ID": lastId };
  const response = await request("/api/events", {
    signal,
    headers: headers({ Accept: "text/event-stream", ...resume }),
  });
  opened();
  yield* readSse(bodyOf(response));
}

export async function* streamChat(
  body: ChatRequest,
  signal: AbortSignal,
): AsyncGenerator<ChatFrame> {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    signal,
    headers: headers({ "Content-Type": "application/json", Accept: "text/event-stream" }),
    body: JSON.stringify({ ...body, stream: true }),
  });
  for await (const event of readSse(bodyOf(response))) yield* decodeChatFrames(event.data);
}
