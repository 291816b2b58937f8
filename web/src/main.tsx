import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import { ErrorBoundary } from "./components/ErrorBoundary";
import { loadChat } from "./features/chat/store";
import { startLive } from "./features/engine/live";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/chat.css";
import "./styles/markdown.css";
import "./styles/brain.css";

startLive();
void loadChat();

const root = document.getElementById("root");
if (!root) throw new Error("index.html has lost its root element");
createRoot(root).render(
  <StrictMode>
    <ErrorBoundary>
      <App />
    </ErrorBoundary>
  </StrictMode>,
);
