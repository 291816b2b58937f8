/** The conversation on screen and the answer in flight. */
import { create } from "zustand";
import {
  addUser,
  type Conversation,
  DEFAULT_PARAMETERS,
  newConversation,
  openAnswer,
  type Parameters,
  settle,
  updateAnswer,
} from "./conversation";
import * as storage from "./storage";
import { runTurn } from "./turn";

/** The growing answer lives apart from the conversation, so that a token renders one message, not all. */
export interface LiveAnswer {
  id: string;
  phase: "queued" | "reading" | "writing";
  startedAt: number;
  content: string;
  reasoning: string;
}

interface ChatStore {
  /** Storage has been read; before that, an empty chat would only flash up. */
  loaded: boolean;
  conversation: Conversation;
  live: LiveAnswer | null;
  /** What is in the message field: kept here so that a look at the map does not lose it. */
  draft: string;
  /** Why conversations are not kept, if they are not. */
  storageProblem: string | null;
  /** The last finished answer, for screen readers. */
  announcement: string;
}

function fresh(parameters: Parameters = DEFAULT_PARAMETERS): Conversation {
  return newConversation(crypto.randomUUID(), Date.now(), parameters);
}

export const useChat = create<ChatStore>(() => ({
  loaded: false,
  conversation: fresh(),
  live: null,
  draft: "",
  storageProblem: null,
  announcement: "",
}));

const { getState, setState } = useChat;
let abort: AbortController | null = null;
/** Deleted while still being answered: the end of that answer must not bring the conversation back. */
const deleted = new Set<string>();

async function keep(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    setState({ storageProblem: reason });
  }
}

function save(): void {
  const { conversation } = getState();
  if (conversation.messages.length > 0) void keep(storage.saveConversation(conversation));
}

/** The conversation with as much of its open answer as has arrived. */
function withLive(): Conversation | null {
  const { conversation, live } = getState();
  if (!live || deleted.has(conversation.id)) return null;
  const { content, reasoning } = live;
  return updateAnswer(conversation, live.id, { content, reasoning }, Date.now());
}

function saveBeforeLeaving(): void {
  const partial = withLive();
  if (partial) storage.saveAtOnce(partial);
}

export async function loadChat(): Promise<void> {
  window.addEventListener("pagehide", saveBeforeLeaving);
  // A phone ends hidden pages without another event.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) saveBeforeLeaving();
  });
  await keep(
    storage.loadCurrent().then((stored) => {
      // A quick writer may have begun already.
      const begun = getState().conversation.messages.length > 0;
      if (stored && !begun) setState({ conversation: settle(stored) });
    }),
  );
  setState({ loaded: true });
}

function show(conversation: Conversation): void {
  stop();
  setState({ conversation, live: null, announcement: "" });
  void keep(storage.setCurrent(conversation.id));
}

export function newChat(): void {
  show(fresh(getState().conversation.parameters));
}

export async function openChat(id: string): Promise<void> {
  await keep(
    storage.loadConversation(id).then((stored) => {
      if (stored) show(settle(stored));
    }),
  );
}

export async function deleteChat(id: string): Promise<void> {
  deleted.add(id);
  if (getState().conversation.id === id) newChat();
  await keep(storage.deleteConversation(id));
}

export function setParameters(change: Partial<Parameters>): void {
  const { conversation } = getState();
  setState({
    conversation: { ...conversation, parameters: { ...conversation.parameters, ...change } },
  });
  save();
}

export function send(text: string): void {
  const content = text.trim();
  if (content === "" || getState().live) return;
  setState({
    conversation: addUser(getState().conversation, crypto.randomUUID(), content, Date.now()),
  });
  answer();
}

/** Also the retry after an error: the last question is asked again. */
export function regenerate(): void {
  if (!getState().live) answer();
}

export function stop(): void {
  abort?.abort();
}

function answer(): void {
  const id = crypto.randomUUID();
  const conversation = openAnswer(getState().conversation, id);
  const controller = new AbortController();
  abort = controller;
  setState({
    conversation,
    live: { id, phase: "queued", startedAt: performance.now(), content: "", reasoning: "" },
    announcement: "",
  });
  void keep(storage.setCurrent(conversation.id));
  save();
  void runTurn(conversation, controller.signal, {
    progress(phase, content, reasoning) {
      const { live } = getState();
      if (live?.id === id) setState({ live: { ...live, phase, content, reasoning } });
    },
    checkpoint(content, reasoning) {
      if (deleted.has(conversation.id)) return;
      // The stored copy alone grows meanwhile: a page that dies without warning keeps what was there.
      const partial = updateAnswer(conversation, id, { content, reasoning }, Date.now());
      void keep(storage.saveConversation(partial));
    },
  }).then((result) => {
    if (abort === controller) abort = null;
    if (deleted.has(conversation.id)) return;
    const current = getState();
    const finished = updateAnswer(
      current.conversation.id === conversation.id ? current.conversation : conversation,
      id,
      result,
      Date.now(),
    );
    void keep(storage.saveConversation(finished));
    if (current.conversation.id !== conversation.id) return;
    setState({
      conversation: finished,
      announcement: result.status === "failed" ? "The answer failed." : result.content,
    });
    if (current.live?.id === id) setState({ live: null });
  });
}
