import { type JSX, type KeyboardEvent, useEffect, useRef } from "react";
import { SendIcon, StopIcon } from "../../components/icons";
import { useMediaQuery } from "../../components/useMediaQuery";
import { send, stop, useChat } from "./store";

export function Composer(): JSX.Element {
  const draft = useChat((chat) => chat.draft);
  const answering = useChat((chat) => chat.live !== null);
  // On a touch keyboard Enter is the only way to a new line; sending has its button.
  const touch = useMediaQuery("(pointer: coarse)");
  const field = useRef<HTMLTextAreaElement>(null);

  useEffect(() => {
    if (!touch) field.current?.focus();
  }, [touch]);

  const submit = (): void => {
    if (answering || draft.trim() === "") return;
    send(draft);
    useChat.setState({ draft: "" });
  };

  const onKey = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.shiftKey || touch || event.nativeEvent.isComposing) return;
    event.preventDefault();
    submit();
  };

  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <label className="hidden" htmlFor="composer">
        Message
      </label>
      <textarea
        id="composer"
        ref={field}
        rows={1}
        value={draft}
        placeholder="Write a message"
        onChange={(event) => useChat.setState({ draft: event.target.value })}
        onKeyDown={onKey}
      />
      {answering ? (
        <button
          type="button"
          className="send"
          aria-label="Stop"
          title="Stop (Escape)"
          onClick={() => {
            stop();
            field.current?.focus();
          }}
        >
          <StopIcon />
        </button>
      ) : (
        <button type="submit" className="send" aria-label="Send" disabled={draft.trim() === ""}>
          <SendIcon />
        </button>
      )}
    </form>
  );
}
