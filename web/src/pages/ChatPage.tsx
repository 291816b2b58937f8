import { type JSX, useRef, useState } from "react";
import { ListIcon, PlusIcon, SlidersIcon } from "../components/icons";
import { Sheet } from "../components/Sheet";
import { MiniMap } from "../features/brain/MiniMap";
import { ChatList } from "../features/chat/ChatList";
import { Composer } from "../features/chat/Composer";
import { EmptyState } from "../features/chat/EmptyState";
import { AnswerView, UserView } from "../features/chat/MessageView";
import { ParametersForm } from "../features/chat/ParametersForm";
import { newChat, useChat } from "../features/chat/store";
import { useFollow } from "../features/chat/useFollow";

function Messages(): JSX.Element {
  const messages = useChat((chat) => chat.conversation.messages);
  return (
    <>
      {messages.map((message, i) =>
        message.role === "user" ? (
          <UserView key={message.id} message={message} />
        ) : (
          <AnswerView key={message.id} message={message} last={i === messages.length - 1} />
        ),
      )}
    </>
  );
}

export function ChatPage(): JSX.Element {
  const [sheet, setSheet] = useState<"chats" | "parameters" | null>(null);
  const loaded = useChat((chat) => chat.loaded);
  const title = useChat((chat) => chat.conversation.title);
  const empty = useChat((chat) => chat.conversation.messages.length === 0);
  const announcement = useChat((chat) => chat.announcement);
  const storageProblem = useChat((chat) => chat.storageProblem);
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const { following, jump } = useFollow(scroller, content);

  return (
    <main id="main" className="page chat">
      <header className="chat-head">
        <h1>{title || "New chat"}</h1>
        <button type="button" className="tool" onClick={() => setSheet("chats")}>
          <ListIcon />
          <span>Chats</span>
        </button>
        <button type="button" className="tool" onClick={() => setSheet("parameters")}>
          <SlidersIcon />
          <span>Parameters</span>
        </button>
        <button type="button" className="tool" onClick={newChat} disabled={empty}>
          <PlusIcon />
          <span>New chat</span>
        </button>
      </header>
      {storageProblem && (
        <p className="banner" role="status">
          This browser keeps no conversations: {storageProblem}
        </p>
      )}
      <div className="chat-scroll" ref={scroller}>
        <div className="chat-column" ref={content}>
          {loaded && (empty ? <EmptyState /> : <Messages />)}
        </div>
      </div>
      <div className="dock">
        {!following && (
          <button type="button" className="jump" onClick={jump}>
            Jump to latest
          </button>
        )}
        <Composer />
        <MiniMap />
      </div>
      <p className="hidden" aria-live="polite">
        {announcement}
      </p>
      <Sheet open={sheet === "chats"} onClose={() => setSheet(null)} title="Chats" side="left">
        <ChatList onChosen={() => setSheet(null)} />
      </Sheet>
      <Sheet
        open={sheet === "parameters"}
        onClose={() => setSheet(null)}
        title="Parameters"
        side="right"
      >
        <ParametersForm />
      </Sheet>
    </main>
  );
}
