/** One request from its wait for the engine to its last frame. Knows nothing of the store. */
import { ApiError, type ChatRequest, getModelId, streamChat } from "../../lib/api";
import type { TurnStats } from "../../lib/wire";
import { noteError } from "../engine/live";
import { untilReady, useEngine } from "../engine/store";
import {
  type AssistantMessage,
  type Conversation,
  type Failure,
  failureOf,
  promptFor,
} from "./conversation";
import type { LiveAnswer } from "./store";

export interface TurnSink {
  progress(phase: LiveAnswer["phase"], content: string, reasoning: string): void;
  checkpoint(content: string, reasoning: string): void;
}

export type TurnResult = Pick<
  AssistantMessage,
  "content" | "reasoning" | "status" | "finish" | "stats" | "failure"
>;

const CHECKPOINT_MS = 500;

async function requestFor(conversation: Conversation, signal: AbortSignal): Promise<ChatRequest> {
  const { temperature, topP, maxTokens, seed } = conversation.parameters;
  const model = useEngine.getState().engine?.model || (await getModelId(signal)) || "default";
  return {
    model,
    messages: promptFor(conversation),
    ...(temperature === null ? {} : { temperature }),
    ...(topP === null ? {} : { top_p: topP }),
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    ...(seed === null ? {} : { seed }),
  };
}

function toFailure(error: unknown): Failure {
  if (error instanceof ApiError) {
    return { message: error.message, hint: error.hint, requestId: error.requestId };
  }
  return {
    message: "The connection broke while the answer was being written.",
    hint: "What arrived is kept. Regenerate to ask again.",
    requestId: null,
  };
}

export async function runTurn(
  conversation: Conversation,
  signal: AbortSignal,
  sink: TurnSink,
): Promise<TurnResult> {
  let content = "";
  let reasoning = "";
  let finish: string | null = null;
  let stats: TurnStats | null = null;
  let complete = false;
  let frame = 0;
  let savedAt = performance.now();

  // Tokens may come faster than the screen refreshes; more renders than frames would only cost.
  const schedule = (): void => {
    if (frame !== 0) return;
    frame = requestAnimationFrame(() => {
      frame = 0;
      sink.progress("writing", content, reasoning);
    });
  };
  const result = (status: AssistantMessage["status"], failure: Failure | null): TurnResult => {
    cancelAnimationFrame(frame);
    return { content, reasoning, status, finish, stats, failure };
  };

  try {
    await untilReady(signal);
    sink.progress("reading", "", "");
    const request = await requestFor(conversation, signal);
    for await (const event of streamChat(request, signal)) {
      if (event.kind === "error") return result("failed", failureOf(event.error));
      if (event.kind === "stats") stats = event.stats;
      if (event.kind === "done") {
        complete = true;
        break;
      }
      if (event.kind !== "delta") continue;
      content += event.content;
      reasoning += event.reasoning;
      finish = event.finish ?? finish;
      if (event.content !== "" || event.reasoning !== "") schedule();
      if (performance.now() - savedAt > CHECKPOINT_MS) {
        savedAt = performance.now();
        sink.checkpoint(content, reasoning);
      }
    }
  } catch (error) {
    if (signal.aborted) return result("stopped", null);
    noteError(error);
    return result("failed", toFailure(error));
  }
  if (signal.aborted) return result("stopped", null);
  // A finish reason without [DONE] still is a whole answer; neither means that the server went away.
  if (!complete && finish === null) return result("failed", toFailure(null));
  return result("done", null);
}
