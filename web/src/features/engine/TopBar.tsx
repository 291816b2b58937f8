import type { JSX } from "react";
import { rate } from "../../lib/format";
import { plainSentence } from "../../lib/words";
import { useChat } from "../chat/store";
import { statusOf } from "./status";
import { useEngine } from "./store";

export function TopBar(): JSX.Element {
  const { connection, engine, lastTurn } = useEngine();
  const answering = useChat((chat) => chat.live !== null);
  const status = statusOf(connection, engine);
  return (
    <header className="topbar">
      <span
        className="topbar-model"
        title={engine?.version ? `colibri ${engine.version}` : undefined}
      >
        {engine?.model || "colibri"}
      </span>
      <span
        className={`pill pill-${status.tone}`}
        role="status"
        title={status.detail === null ? undefined : plainSentence(status.detail)}
      >
        <span className="pill-dot" aria-hidden="true" />
        {status.text}
      </span>
      <span className="topbar-rate" data-live={answering}>
        <span className="figure">{rate(lastTurn?.tokens_per_second)}</span> tok/s
      </span>
    </header>
  );
}
