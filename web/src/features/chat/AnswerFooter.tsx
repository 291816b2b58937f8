import type { JSX, ReactNode } from "react";
import { integer, milliseconds, percent, rate } from "../../lib/format";
import type { AssistantMessage } from "./conversation";

function ending({ status, finish, stats }: AssistantMessage): string | null {
  if (status === "stopped") return "stopped";
  if (status === "interrupted") return "interrupted by a reload";
  if (status === "failed") return null;
  if (finish === "length" || stats?.length_limited) return "token limit reached";
  return finish === null || finish === "stop" ? "finished" : finish;
}

function Fact({ title, children }: { title: string; children: ReactNode }): JSX.Element {
  return (
    <span className="fact" title={title}>
      {children}
    </span>
  );
}

/** The engine's own figures for one answer. The browser measures nothing here. */
export function AnswerFooter({ message }: { message: AssistantMessage }): JSX.Element {
  const { stats } = message;
  const end = ending(message);
  return (
    <p className="answer-facts figure">
      {stats && (
        <>
          <Fact title="Decode speed">
            <b>{rate(stats.tokens_per_second)}</b> tok/s
          </Fact>
          <Fact title="Time to first token">
            TTFT <b>{milliseconds(stats.ttft_ms)}</b>
          </Fact>
          <Fact title="Prompt tokens → answer tokens">
            <b>{integer(stats.prompt_tokens)}</b> → <b>{integer(stats.completion_tokens)}</b> tokens
          </Fact>
          <Fact title="Prompt tokens found in the KV slot, not computed again">
            <b>{integer(stats.cached_tokens)}</b> reused
          </Fact>
          <Fact title="Experts found in RAM or VRAM when needed">
            <b>{percent(stats.cache_hit_percent)}</b> hits
          </Fact>
        </>
      )}
      {end !== null && <span className={`badge badge-${message.status}`}>{end}</span>}
    </p>
  );
}
