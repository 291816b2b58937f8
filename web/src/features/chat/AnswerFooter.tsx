import type { JSX, ReactNode } from "react";
import { integer, milliseconds, percent, rate } from "../../lib/format";
import type { TurnStats } from "../../lib/wire";
import type { AssistantMessage } from "./conversation";

function ending({ status, finish, stats }: AssistantMessage): string | null {
  if (status === "stopped") return "stopped";
  if (status === "interrupted") return "interrupted by a reload";
  if (status === "failed") return null;
  if (finish === "length" || stats?.length_limited) return "token limit reached";
  return finish === null || finish === "stop" ? "finished" : finish;
}

interface Fact {
  term: string;
  meaning: string;
  figure: ReactNode;
}

function factsOf(stats: TurnStats): Fact[] {
  return [
    {
      term: "tok/s",
      meaning: "Tokens written per second. A token is a word or a part of one.",
      figure: (
        <>
          <b>{rate(stats.tokens_per_second)}</b> tok/s
        </>
      ),
    },
    {
      term: "TTFT",
      meaning: "Time to first token: how long the answer took to begin.",
      figure: (
        <>
          TTFT <b>{milliseconds(stats.ttft_ms)}</b>
        </>
      ),
    },
    {
      term: "→ tokens",
      meaning: "Tokens of the prompt → tokens of the answer.",
      figure: (
        <>
          <b>{integer(stats.prompt_tokens)}</b> → <b>{integer(stats.completion_tokens)}</b> tokens
        </>
      ),
    },
    {
      term: "reused",
      meaning: "Prompt tokens still in the cache from the turn before, not computed again.",
      figure: (
        <>
          <b>{integer(stats.cached_tokens)}</b> reused
        </>
      ),
    },
    {
      term: "hits",
      meaning: "Experts that were in RAM or VRAM when needed; the others came from the disk.",
      figure: (
        <>
          <b>{percent(stats.cache_hit_percent)}</b> hits
        </>
      ),
    },
  ];
}

/** The engine's own figures for one answer, which open into what they mean. The browser measures nothing. */
export function AnswerFooter({ message }: { message: AssistantMessage }): JSX.Element {
  const end = ending(message);
  const badge = end !== null && <span className={`badge badge-${message.status}`}>{end}</span>;
  if (!message.stats) return <p className="answer-facts figure">{badge}</p>;
  const facts = factsOf(message.stats);
  return (
    <details className="answer-about">
      <summary className="answer-facts figure">
        {facts.map(({ term, meaning, figure }) => (
          <span key={term} title={meaning}>
            {figure}
          </span>
        ))}
        {badge}
        <span className="answer-more" aria-hidden="true">
          ?
        </span>
      </summary>
      <dl>
        {facts.map(({ term, meaning }) => (
          <div key={term}>
            <dt>{term}</dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
