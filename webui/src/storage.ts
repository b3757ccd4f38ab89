// Conversations are kept in this browser's IndexedDB, settings in its localStorage. Where a browser refuses
// (private windows), they live as long as the page.
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

async function run<T>(mode: IDBTransactionMode, work: (store: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> {
  const db = await open();
  if (!db) return undefined;
  return new Promise((resolve) => {
    const request = work(db.transaction("conversations", mode).objectStore("conversations"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(undefined);
  });
}

export async function loadConversations(): Promise<Conversation[]> {
  return (await run("readonly", (store) => store.getAll() as IDBRequest<Conversation[]>)) ?? [];
}
export const saveConversation = (one: Conversation) => run("readwrite", (store) => store.put(one));
export const removeConversation = (id: string) => run("readwrite", (store) => store.delete(id));

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
