import { type JSX, lazy, Suspense, useEffect, useRef, useState } from "react";
import { Link, Redirect, Route, Switch, useLocation, useRoute } from "wouter";
import { BrainIcon, ChatIcon } from "./components/icons";
import { Sheet } from "./components/Sheet";
import { useBrain } from "./features/brain/store";
import { newChat, stop, useChat } from "./features/chat/store";
import { FailureNotice } from "./features/engine/FailureNotice";
import { KeyPrompt } from "./features/engine/KeyPrompt";
import { TopBar } from "./features/engine/TopBar";
import { MODES } from "./lib/map/palette";
import { SHORTCUTS, type ShortcutId, ShortcutMatcher } from "./lib/shortcuts";
import { ChatPage } from "./pages/ChatPage";

const BrainPage = lazy(() => import("./pages/BrainPage"));

const VIEWS = [
  { path: "/", label: "Chat", icon: <ChatIcon /> },
  { path: "/brain", label: "Brain", icon: <BrainIcon /> },
] as const;

function RailLink({ path, label, icon }: (typeof VIEWS)[number]): JSX.Element {
  const [active] = useRoute(path);
  return (
    <Link href={path} className="rail-link" aria-current={active ? "page" : undefined}>
      {icon}
      <span>{label}</span>
    </Link>
  );
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

export function App(): JSX.Element {
  const [location, navigate] = useLocation();
  const [help, setHelp] = useState(false);
  const matcher = useRef(new ShortcutMatcher());

  useEffect(() => {
    const run = (id: ShortcutId): void => {
      if (id === "new-chat") {
        newChat();
        navigate("/");
      } else if (id === "focus-composer") {
        navigate("/");
        // After the chat has been mounted, if it was not.
        requestAnimationFrame(() => document.getElementById("composer")?.focus());
      } else if (id === "stop") {
        if (useChat.getState().live) stop();
      } else if (id === "go-chat") navigate("/");
      else if (id === "go-brain") navigate("/brain");
      else if (id === "help") setHelp(true);
      else if (location === "/brain") {
        const mode = MODES.find((name) => `mode-${name}` === id);
        if (mode) useBrain.setState({ mode });
      }
    };
    const onKey = (event: KeyboardEvent): void => {
      // An open sheet has its own keys, above all Escape.
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      const id = matcher.current.match(event, isTyping(event.target), event.timeStamp);
      if (id === null) return;
      if (id !== "stop") event.preventDefault();
      run(id);
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [location, navigate]);

  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to content
      </a>
      <nav className="rail" aria-label="Views">
        <img className="rail-mark" src="/favicon.svg" alt="" width="32" height="32" />
        {VIEWS.map((view) => (
          <RailLink key={view.path} {...view} />
        ))}
        <button
          type="button"
          className="rail-help"
          aria-label="Keyboard shortcuts"
          title="Keyboard shortcuts (?)"
          onClick={() => setHelp(true)}
        >
          ?
        </button>
      </nav>
      <TopBar />
      <div className="notices">
        <KeyPrompt />
        <FailureNotice />
      </div>
      <Suspense fallback={<main id="main" className="page" aria-busy="true" />}>
        <Switch>
          <Route path="/" component={ChatPage} />
          <Route path="/brain" component={BrainPage} />
          <Route>
            <Redirect to="/" />
          </Route>
        </Switch>
      </Suspense>
      <Sheet open={help} onClose={() => setHelp(false)} title="Keyboard" side="center">
        <dl className="keys">
          {SHORTCUTS.map(({ id, keys, label }) => (
            <div key={id}>
              <dt>
                {keys.split(" ").map((key) => (
                  <kbd key={key}>{key === "Mod" ? "Ctrl" : key}</kbd>
                ))}
              </dt>
              <dd>{label}</dd>
            </div>
          ))}
          <div>
            <dt>
              <kbd>Arrows</kbd>
              <kbd>Page</kbd>
              <kbd>Home</kbd>
              <kbd>End</kbd>
            </dt>
            <dd>Map: move the cursor</dd>
          </div>
          <div>
            <dt>
              <kbd>Enter</kbd>
            </dt>
            <dd>Map: keep the selection</dd>
          </div>
        </dl>
      </Sheet>
    </div>
  );
}
