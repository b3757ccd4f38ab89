// All that the page knows, and what can be done to it.
import { computed, signal } from "@preact/signals";
import { ApiError, requestBody, serverInfo, type ServerInfo, streamChat } from "./api";
import { loadConversations, loadSettings, removeConversation, saveConversation, saveSettings } from "./storage";
import { type Conversation, type Message, newId, readExport, type Settings } from "./types";

export const settings = signal<Settings>(loadSettings());
export const conversations = signal<Conversation[]>([]);
export const currentId = signal<string | null>(null);
export const server = signal<ServerInfo | null>(null);
export const serverProblem = signal("");
export const notice = signal("");
export const writing = signal<string | null>(null); // the conversation that an answer is being written in
export const settingsOpen = signal(false);
export const sidebarOpen = signal(false);

export const current = computed(() => conversations.value.find((one) => one.id === currentId.value) ?? null);
export const sorted = computed(() => [...conversations.value].sort((a, b) => b.updated - a.updated));

let stopper: AbortController | null = null;

export async function start() {
  applyTheme();
  conversations.value = await loadConversations();
  const last = location.hash.slice(1);
  if (conversations.value.some((one) => one.id === last)) currentId.value = last;
  await connect();
}

export async function connect() {
  try {
    server.value = await serverInfo(settings.value);
    serverProblem.value = "";
    document.title = `${server.value.model} · Sluice`;
  } catch (error) {
    serverProblem.value = error instanceof ApiError ? error.message : "The server cannot be reached. Is it still running?";
    if (error instanceof ApiError && error.status === 401) settingsOpen.value = true;
    setTimeout(() => void connect(), 5000);
  }
}

export function changeSettings(change: Partial<Settings>) {
  settings.value = { ...settings.value, ...change };
  saveSettings(settings.value);
  applyTheme();
}

function applyTheme() {
  const { theme } = settings.value;
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
}

export function select(id: string | null) {
  currentId.value = id;
  sidebarOpen.value = false;
  history.replaceState(null, "", id ? `#${id}` : location.pathname);
}

/** Puts a changed conversation in place of the old one; returns it. */
function put(changed: Conversation, keep = true): Conversation {
  const known = conversations.value.some((one) => one.id === changed.id);
  conversations.value = known
    ? conversations.value.map((one) => (one.id === changed.id ? changed : one))
    : [...conversations.value, changed];
  if (keep) void saveConversation(changed);
  return changed;
}

const find = (id: string) => conversations.value.find((one) => one.id === id);

export function rename(id: string, title: string) {
  const one = find(id);
  if (one && title.trim()) put({ ...one, title: title.trim() });
}

export function remove(id: string) {
  if (writing.value === id) stop();
  conversations.value = conversations.value.filter((one) => one.id !== id);
  void removeConversation(id);
  if (currentId.value === id) select(null);
}

export function setSystem(text: string) {
  changeSettings({ system: text });
  if (current.value) put({ ...current.value, system: text });
}

export function send(text: string) {
  if (writing.value || !text.trim()) return;
  const now = Date.now();
  const title = text.trim().replace(/\s+/g, " ").slice(0, 60);
  const base = current.value ?? {
    id: newId(), title, created: now, updated: now, system: settings.value.system, messages: [],
  };
  const message: Message = { id: newId(), role: "user", content: text.trim() };
  put({ ...base, updated: now, messages: [...base.messages, message] });
  if (currentId.value !== base.id) select(base.id);
  void answer(base.id);
}

/** Answers anew what stands before this answer. */
export function regenerate(messageId: string) {
  if (writing.value || !current.value) return;
  const index = current.value.messages.findIndex((message) => message.id === messageId);
  if (index < 0) return;
  put({ ...current.value, messages: current.value.messages.slice(0, index) });
  void answer(current.value.id);
}

/** Changes one's own message; what came after it goes. */
export function edit(messageId: string, text: string) {
  if (writing.value || !current.value || !text.trim()) return;
  const index = current.value.messages.findIndex((message) => message.id === messageId);
  if (index < 0) return;
  const message: Message = { id: newId(), role: "user", content: text.trim() };
  put({ ...current.value, updated: Date.now(), messages: [...current.value.messages.slice(0, index), message] });
  void answer(current.value.id);
}

export function stop() {
  stopper?.abort();
}

async function answer(id: string) {
  const conversation = find(id);
  if (!conversation) return;
  const body = requestBody(server.value?.model ?? "default", conversation.system, conversation.messages, settings.value);
  let message: Message = { id: newId(), role: "assistant", content: "" };
  const asked = conversation.messages;
  let pending = 0;
  const show = (keep = false) => {
    const now = find(id);
    if (now) put({ ...now, updated: Date.now(), messages: [...asked, message] }, keep);
  };
  const showSoon = () => {
    pending ||= requestAnimationFrame(() => {
      pending = 0;
      show();
    });
  };
  const controller = (stopper = new AbortController());
  writing.value = id;
  show();
  const began = performance.now();
  let firstAt = 0;
  try {
    await streamChat(body, settings.value, controller.signal, (delta) => {
      firstAt ||= performance.now();
      if (delta.reasoning) message = { ...message, reasoning: (message.reasoning ?? "") + delta.reasoning };
      if (delta.content) {
        if (message.reasoning && message.reasoningSeconds === undefined)
          message = { ...message, reasoningSeconds: (performance.now() - began) / 1000 };
        message = { ...message, content: message.content + delta.content };
      }
      if (delta.stats) message = { ...message, stats: { ...message.stats, ...delta.stats } };
      if (delta.finish === "length") message = { ...message, note: "The answer reached its length limit." };
      if (delta.finish === "error") message = { ...message, note: "The server ended this answer because of an error.", failed: true };
      showSoon();
    });
    if (controller.signal.aborted) message = { ...message, note: "Stopped." };
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    message = { ...message, note: text, failed: true };
    if (error instanceof ApiError && error.status === 401) settingsOpen.value = true;
  }
  cancelAnimationFrame(pending);
  const seconds = (performance.now() - (firstAt || began)) / 1000;
  const tokens = message.stats?.tokens;
  const measured = tokens && tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : undefined;
  message = { ...message, stats: { tokensPerSecond: measured, ...message.stats, seconds } };
  if (stopper === controller) stopper = null;
  writing.value = null;
  show(true);
}

export function exportAll(): string {
  return JSON.stringify({ format: "sluice-conversations", version: 1, conversations: sorted.value }, null, 2);
}

export function importAll(text: string) {
  try {
    // What is here already, and no older, stays.
    const list = readExport(text).filter((one) => !((find(one.id)?.updated ?? -1) >= one.updated));
    for (const one of list) put(one);
    notice.value =
      list.length === 0 ? "All of these conversations are here already."
      : list.length === 1 ? "One conversation was imported."
      : `${list.length} conversations were imported.`;
    if (list.length) select(list[0].id);
  } catch (error) {
    notice.value = error instanceof Error ? error.message : String(error);
  }
}
