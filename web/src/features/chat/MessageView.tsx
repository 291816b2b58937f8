import { type JSX, memo } from "react";
import { CopyButton } from "../../components/CopyButton";
import { AgainIcon } from "../../components/icons";
import { useNow } from "../../components/useNow";
import { Words } from "../../components/Words";
import { milliseconds } from "../../lib/format";
import { Markdown, StreamingMarkdown } from "../../lib/markdown/Markdown";
import { statusOf } from "../engine/status";
import { useEngine } from "../engine/store";
import { AnswerFooter } from "./AnswerFooter";
import type { AssistantMessage, Failure, UserMessage } from "./conversation";
import { type LiveAnswer, regenerate, useChat } from "./store";

function ErrorCard({ failure }: { failure: Failure }): JSX.Element {
  return (
    <div className="error-card" role="alert">
      <p className="error-title">
        <Words text={failure.message} />
      </p>
      {failure.hint && (
        <p>
          <Words text={failure.hint} />
        </p>
      )}
      {failure.requestId && <p className="muted">Request {failure.requestId}</p>}
      <button type="button" className="button" onClick={regenerate}>
        <AgainIcon /> Try again
      </button>
    </div>
  );
}

function Reasoning({ text, open }: { text: string; open: boolean }): JSX.Element | null {
  if (text === "") return null;
  return (
    <details className="reasoning" open={open}>
      <summary>Reasoning</summary>
      <p>{text}</p>
    </details>
  );
}

function Waiting({ live }: { live: LiveAnswer }): JSX.Element {
  const now = useNow(100);
  const { connection, engine } = useEngine();
  return (
    <p className="waiting figure">
      {live.phase === "queued"
        ? `Waiting for the engine: ${statusOf(connection, engine).text}`
        : `Reading the prompt · ${milliseconds(Math.max(0, now - live.startedAt))}`}
    </p>
  );
}

function LiveBody({ id }: { id: string }): JSX.Element | null {
  const live = useChat((chat) => (chat.live?.id === id ? chat.live : null));
  if (!live) return null;
  return (
    <>
      <Reasoning text={live.reasoning} open={live.content === ""} />
      {live.content === "" && live.reasoning === "" ? (
        <Waiting live={live} />
      ) : (
        <StreamingMarkdown text={live.content} />
      )}
    </>
  );
}

export const UserView = memo(function UserView({ message }: { message: UserMessage }): JSX.Element {
  return (
    <article className="message message-user" aria-label="You">
      <p>{message.content}</p>
    </article>
  );
});

export const AnswerView = memo(function AnswerView({
  message,
  last,
}: {
  message: AssistantMessage;
  last: boolean;
}): JSX.Element {
  const open = message.status === "open";
  return (
    <article
      className="message message-answer"
      data-status={message.status}
      aria-label="Answer"
      aria-busy={open}
    >
      {open ? (
        <LiveBody id={message.id} />
      ) : (
        <>
          <Reasoning text={message.reasoning} open={false} />
          {message.content !== "" && <Markdown text={message.content} />}
          {message.failure && <ErrorCard failure={message.failure} />}
          <div className="answer-foot">
            <AnswerFooter message={message} />
            <span className="answer-actions">
              {message.content !== "" && <CopyButton text={message.content} label="Copy answer" />}
              {last && !message.failure && (
                <button
                  type="button"
                  className="icon-button"
                  aria-label="Regenerate"
                  title="Regenerate"
                  onClick={regenerate}
                >
                  <AgainIcon />
                </button>
              )}
            </span>
          </div>
        </>
      )}
    </article>
  );
});
