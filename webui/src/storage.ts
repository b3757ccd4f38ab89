// Conversations are kept in this browser's IndexedDB, settings in its localStorage. Where a browser refuses
// (private windows), they live as long as the page. Several pages may be open: each puts its messages to what the
// others have kept, and tells them.
import { merged, upgraded } from "./tree";
import { type Conversation, defaultSettings, type Settings } from "./types";

let database: Promise<IDBDatabase | null> | undefined;
const openWithinMs = 10_000; // a browser that does not even answer keeps nothing

function open(): Promise<IDBDatabase | null> {
  database ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("sluice", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
      setTimeout(() => resolve(null), openWithinMs);
    } catch {
      resolve(null);
    }
  });
  return database;
}

async function run<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore, done: (result: T) => void) => void): Promise<T | undefined> {
  const db = await open();
  if (!db) return undefined;
  return new Promise((resolve) => {
    const transaction = db.transaction("conversations", mode);
    let result: T | undefined;
    work(transaction.objectStore("conversations"), (value) => (result = value));
    transaction.oncomplete = () => resolve(result);
    transaction.onabort = transaction.onerror = () => resolve(undefined);
  });
}

/** What a click changes of a conversation. A reload within moments takes the database's write with it: this one is
 *  done at once, and stands until that one is. */
type Head = Pick<Conversation, "title" | "system" | "leaf" | "changed">;
const headKey = (id: string) => `sluice.head.${id}`;

function keepHead({ id, title, system, leaf, changed }: Conversation) {
  try {
    localStorage.setItem(headKey(id), JSON.stringify({ title, system, leaf, changed } satisfies Head));
  } catch {
    // The database has it in a moment.
  }
}

function head(id: string): Head | null {
  try {
    return JSON.parse(localStorage.getItem(headKey(id)) ?? "null");
  } catch {
    return null;
  }
}

function dropHead(id: string, upTo: number) {
  try {
    if ((head(id)?.changed ?? Infinity) <= upTo) localStorage.removeItem(headKey(id));
  } catch {
    // Nor is anything kept there.
  }
}

/** Of conversations that are not there any more, they go. */
function dropOldHeads(known: Set<string>) {
  try {
    for (const key of Object.keys(localStorage))
      if (key.startsWith(headKey("")) && !known.has(key)) localStorage.removeItem(key);
  } catch {
    // Nor is anything kept there.
  }
}

/** With what was changed last before a reload. */
function withHead(one: Conversation): Conversation {
  const last = head(one.id);
  if (!last || last.changed <= one.changed) return one;
  const isThere = last.leaf === null || one.messages.some((message) => message.id === last.leaf);
  return { ...one, ...last, leaf: isThere ? last.leaf : one.leaf };
}

type News = { id: string; gone?: boolean };
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("sluice");

/** Hears of what other pages have kept. */
export function onNews(hear: (news: News) => void) {
  channel?.addEventListener("message", (event) => hear(event.data as News));
}

export async function loadConversations(): Promise<Conversation[]> {
  const kept = await run<Conversation[]>("readonly", (store, done) => {
    const request = store.getAll() as IDBRequest<Conversation[]>;
    request.onsuccess = () => done(request.result);
  });
  if (kept) dropOldHeads(new Set(kept.map(({ id }) => headKey(id))));
  return (kept ?? []).map((one) => withHead(upgraded(one)));
}

export async function loadConversation(id: string): Promise<Conversation | undefined> {
  const kept = await run<Conversation | undefined>("readonly", (store, done) => {
    const request = store.get(id) as IDBRequest<Conversation | undefined>;
    request.onsuccess = () => done(request.result);
  });
  return kept && upgraded(kept);
}

/** Puts the messages to those that are kept. One that another page has deleted meanwhile stays so, unless it is new. */
export async function saveConversation(one: Conversation, isNew = false) {
  keepHead(one);
  const isKept = await run<boolean>("readwrite", (store, done) => {
    const request = store.get(one.id) as IDBRequest<Conversation | undefined>;
    request.onsuccess = () => {
      if (request.result) store.put(merged(one, upgraded(request.result)));
      else if (isNew) store.put(one);
      done(true);
    };
  });
  if (isKept) dropHead(one.id, one.changed);
  channel?.postMessage({ id: one.id });
}

export async function removeConversation(id: string) {
  await run<void>("readwrite", (store) => void store.delete(id));
  dropHead(id, Infinity);
  channel?.postMessage({ id, gone: true });
}

export function loadSettings(): Settings {
  try {
    return { ...defaultSettings, ...JSON.parse(localStorage.getItem("sluice.settings") ?? "{}") };
  } catch {
    return { ...defaultSettings };
  }
}

export function saveSettings(settings: Settings) {
  try {
    localStorage.setItem("sluice.settings", JSON.stringify(settings));
  } catch {
    // Kept as long as the page is.
  }
}

/** Names this page, over a reload too: what it was writing before is then known to be nobody's. */
export function pageName(make: () => string): string {
  try {
    const kept = sessionStorage.getItem("sluice.page") ?? make();
    sessionStorage.setItem("sluice.page", kept);
    return kept;
  } catch {
    return make();
  }
}
