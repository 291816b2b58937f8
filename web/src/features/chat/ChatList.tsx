import { type JSX, useEffect, useState } from "react";
import { TrashIcon } from "../../components/icons";
import { listConversations, type Summary } from "./storage";
import { deleteChat, openChat, useChat } from "./store";

const day = new Intl.DateTimeFormat("en", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
});

export function ChatList({ onChosen }: { onChosen: () => void }): JSX.Element {
  const [chats, setChats] = useState<Summary[] | null>(null);
  const current = useChat((chat) => chat.conversation.id);

  useEffect(() => {
    listConversations().then(setChats, () => setChats([]));
  }, []);

  if (chats === null) return <p className="muted">Reading…</p>;
  if (chats.length === 0) return <p className="muted">No stored chats.</p>;
  return (
    <ul className="chat-list">
      {chats.map(({ id, title, updatedAt }) => (
        <li key={id} aria-current={id === current ? "true" : undefined}>
          <button
            type="button"
            className="chat-open"
            onClick={() => {
              void openChat(id);
              onChosen();
            }}
          >
            <span>{title || "Untitled"}</span>
            <span className="muted figure">{day.format(updatedAt)}</span>
          </button>
          <button
            type="button"
            className="icon-button"
            aria-label={`Delete “${title}”`}
            onClick={() => {
              if (!window.confirm(`Delete “${title}” from this browser?`)) return;
              void deleteChat(id);
              setChats(chats.filter((chat) => chat.id !== id));
            }}
          >
            <TrashIcon />
          </button>
        </li>
      ))}
    </ul>
  );
}
