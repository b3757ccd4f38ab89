// Conversations are kept in this browser's IndexedDB, settings in its localStorage. Where a browser refuses
// (private windows), they live as long as the page. Several pages may be open: each puts its messages to what the
// others have kept, and tells them.
import { merged, upgraded } from "./tree";
import { type Conversation, defaultSettings, type Settings } from "./types";

let database: Promise<IDBDatabase | null> | undefined;

function open(): Promise<IDBDatabase | null> {
  database ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open("sluice", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
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
  return (kept ?? []).map(upgraded);
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
  await run<void>("readwrite", (store) => {
    const request = store.get(one.id) as IDBRequest<Conversation | undefined>;
    request.onsuccess = () => {
      if (request.result) store.put(merged(one, upgraded(request.result)));
      else if (isNew) store.put(one);
    };
  });
  channel?.postMessage({ id: one.id });
}

export async function removeConversation(id: string) {
  await run<void>("readwrite", (store) => void store.delete(id));
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
