import { type FormEvent, type JSX, useState } from "react";
import { enterKey } from "./live";
import { useEngine } from "./store";

/** Shown only after a request was refused for want of a key: most servers on loopback need none. */
export function KeyPrompt(): JSX.Element | null {
  const needsKey = useEngine((engine) => engine.needsKey);
  const [key, setKey] = useState("");
  if (!needsKey) return null;
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (key.trim() !== "") enterKey(key.trim());
    setKey("");
  };
  return (
    <form className="banner" onSubmit={submit}>
      <label htmlFor="api-key">This server needs its API key. It is kept until you reload.</label>
      <input
        id="api-key"
        type="password"
        autoComplete="off"
        value={key}
        onChange={(event) => setKey(event.target.value)}
      />
      <button type="submit" className="button">
        Use key
      </button>
    </form>
  );
}
