import { describe, expect, it } from "vitest";
import {
  addUser,
  type Conversation,
  DEFAULT_PARAMETERS,
  newConversation,
  openAnswer,
  promptFor,
  settle,
  updateAnswer,
} from "./conversation";

function asked(...questions: string[]): Conversation {
  return questions.reduce(
    (conversation, text, i) => {
      const open = openAnswer(addUser(conversation, `u${i}`, text, i), `a${i}`);
      return updateAnswer(open, `a${i}`, { content: `answer ${i}`, status: "done" }, i);
    },
    newConversation("c", 0, DEFAULT_PARAMETERS),
  );
}

describe("conversation", () => {
  it("takes its title from the first line of the first question", () => {
    expect(asked("First line\nsecond", "later").title).toBe("First line");
    expect(asked("x".repeat(200)).title).toHaveLength(60);
  });

  it("never changes what it was given", () => {
    const before = asked("one");
    const frozen = JSON.stringify(before);
    openAnswer(addUser(before, "u9", "two", 9), "a9");
    updateAnswer(before, "a0", { content: "changed" }, 9);
    expect(JSON.stringify(before)).toBe(frozen);
  });

  it("replaces the last answer when it is regenerated", () => {
    const again = openAnswer(asked("one"), "again");
    expect(again.messages.map(({ id }) => id)).toEqual(["u0", "again"]);
  });

  it("gives an older stored conversation the parameters that it lacks", () => {
    const { topP: _, ...older } = { ...DEFAULT_PARAMETERS, temperature: 0.5 };
    const stored = { ...asked("one"), parameters: older } as Conversation;
    expect(settle(stored).parameters).toEqual({ ...DEFAULT_PARAMETERS, temperature: 0.5 });
  });

  it("marks what a reload interrupted", () => {
    const open = openAnswer(addUser(asked("one"), "u1", "two", 1), "a1");
    const [, done, , interrupted] = settle(open).messages;
    expect(done).toMatchObject({ status: "done" });
    expect(interrupted).toMatchObject({ status: "interrupted" });
  });
});

describe("promptFor", () => {
  it("sends the system prompt and every answer that has text, but not the open one", () => {
    let conversation = asked("one", "two");
    conversation = updateAnswer(conversation, "a0", { content: "", status: "failed" }, 3);
    conversation = openAnswer(addUser(conversation, "u2", "three", 4), "a2");
    conversation = { ...conversation, parameters: { ...DEFAULT_PARAMETERS, system: " Be kind. " } };
    expect(promptFor(conversation)).toEqual([
      { role: "system", content: "Be kind." },
      { role: "user", content: "one" },
      { role: "user", content: "two" },
      { role: "assistant", content: "answer 1" },
      { role: "user", content: "three" },
    ]);
  });
});
