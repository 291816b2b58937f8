/** A conversation and the pure steps that change it. */
import type { ServerError, TurnStats } from "../../lib/wire";

export interface Parameters {
  /** `null`: the model's default. */
  temperature: number | null;
  topP: number | null;
  maxTokens: number | null;
  seed: number | null;
  system: string;
}

export interface Failure {
  message: string;
  hint: string | null;
  requestId: string | null;
}

export interface UserMessage {
  id: string;
  role: "user";
  content: string;
}

export interface AssistantMessage {
  id: string;
  role: "assistant";
  content: string;
  reasoning: string;
  /** `open` is being answered; found in storage it means that the page went away meanwhile. */
  status: "open" | "done" | "stopped" | "interrupted" | "failed";
  finish: string | null;
  stats: TurnStats | null;
  failure: Failure | null;
}

export type Message = UserMessage | AssistantMessage;

export interface Conversation {
  id: string;
  title: string;
  createdAt: number;
  updatedAt: number;
  parameters: Parameters;
  messages: Message[];
}

export const DEFAULT_PARAMETERS: Parameters = {
  temperature: null,
  topP: null,
  maxTokens: null,
  seed: null,
  system: "",
};

const TITLE_LENGTH = 60;

export function newConversation(id: string, now: number, parameters: Parameters): Conversation {
  return { id, title: "", createdAt: now, updatedAt: now, parameters, messages: [] };
}

function titleFrom(text: string): string {
  const line = text.trim().split("\n", 1)[0] ?? "";
  return line.length <= TITLE_LENGTH ? line : `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…`;
}

export function addUser(
  conversation: Conversation,
  id: string,
  content: string,
  now: number,
): Conversation {
  return {
    ...conversation,
    title: conversation.title || titleFrom(content),
    updatedAt: now,
    messages: [...conversation.messages, { id, role: "user", content }],
  };
}

/** Opens a new answer. An answer that already ends the conversation is the one being regenerated. */
export function openAnswer(conversation: Conversation, id: string): Conversation {
  const messages =
    conversation.messages.at(-1)?.role === "assistant"
      ? conversation.messages.slice(0, -1)
      : conversation.messages;
  const answer: AssistantMessage = {
    id,
    role: "assistant",
    content: "",
    reasoning: "",
    status: "open",
    finish: null,
    stats: null,
    failure: null,
  };
  return { ...conversation, messages: [...messages, answer] };
}

export function updateAnswer(
  conversation: Conversation,
  id: string,
  change: Partial<Omit<AssistantMessage, "id" | "role">>,
  now: number,
): Conversation {
  return {
    ...conversation,
    updatedAt: now,
    messages: conversation.messages.map((message) =>
      message.id === id && message.role === "assistant" ? { ...message, ...change } : message,
    ),
  };
}

/** As read from storage: nothing is being answered any more. */
export function settle(conversation: Conversation): Conversation {
  return {
    ...conversation,
    // Stored by an older page, they lack what has been added since.
    parameters: { ...DEFAULT_PARAMETERS, ...conversation.parameters },
    messages: conversation.messages.map((message) =>
      message.role === "assistant" && message.status === "open"
        ? { ...message, status: "interrupted" }
        : message,
    ),
  };
}

export interface PromptMessage {
  role: "system" | "user" | "assistant";
  content: string;
}

/** What the server gets: everything before the open answer, without answers that never began. */
export function promptFor(conversation: Conversation): PromptMessage[] {
  const prompt: PromptMessage[] = [];
  const system = conversation.parameters.system.trim();
  if (system) prompt.push({ role: "system", content: system });
  for (const message of conversation.messages) {
    if (message.role === "assistant" && (message.status === "open" || message.content === ""))
      continue;
    prompt.push({ role: message.role, content: message.content });
  }
  return prompt;
}

export function failureOf(error: ServerError): Failure {
  return { message: error.message, hint: error.hint, requestId: null };
}
