/** Conversations in IndexedDB. A browser that refuses storage (private mode, quota) still chats. */
import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { Conversation } from "./conversation";

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation; indexes: { updatedAt: number } };
  meta: { key: string; value: string };
}

const CURRENT = "current-conversation";
let opened: Promise<IDBPDatabase<Schema>> | null = null;
/** The same, for the moment in which nothing can be awaited any more. */
let ready: IDBPDatabase<Schema> | null = null;

function database(): Promise<IDBPDatabase<Schema>> {
  opened ??= openDB<Schema>("colibri", 1, {
    upgrade(db) {
      const store = db.createObjectStore("conversations", { keyPath: "id" });
      store.createIndex("updatedAt", "updatedAt");
      db.createObjectStore("meta");
    },
  });
  void opened.then(
    (db) => {
      ready = db;
    },
    // Whoever awaits the database reports this.
    () => {},
  );
  return opened;
}

export interface Summary {
  id: string;
  title: string;
  updatedAt: number;
}

export async function loadConversation(id: string): Promise<Conversation | null> {
  return (await (await database()).get("conversations", id)) ?? null;
}

export async function loadCurrent(): Promise<Conversation | null> {
  const id = await (await database()).get("meta", CURRENT);
  return id === undefined ? null : loadConversation(id);
}

export async function setCurrent(id: string): Promise<void> {
  await (await database()).put("meta", id, CURRENT);
}

export async function saveConversation(conversation: Conversation): Promise<void> {
  await (await database()).put("conversations", conversation);
}

/**
 * Hands the write to the browser before this returns: for a page that is about to go away. An explicit
 * commit needs no further word from the page; without it the transaction would die with the page.
 */
export function saveAtOnce(conversation: Conversation): void {
  const transaction = ready?.transaction("conversations", "readwrite");
  if (!transaction) return;
  transaction.store.put(conversation).catch(() => {});
  transaction.done.catch(() => {});
  transaction.commit();
}

export async function deleteConversation(id: string): Promise<void> {
  await (await database()).delete("conversations", id);
}

/** Newest first. */
export async function listConversations(): Promise<Summary[]> {
  const all = await (await database()).getAllFromIndex("conversations", "updatedAt");
  return all.reverse().map(({ id, title, updatedAt }) => ({ id, title, updatedAt }));
}
