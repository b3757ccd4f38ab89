// All that the page knows, and what can be done to it.
import { computed, signal } from "@preact/signals";
import { ApiError, changeModel, type Progress, requestBody, serverInfo, type ServerInfo, streamChat } from "./api";
import { loadConversation, loadConversations, loadSettings, onNews, pageName, removeConversation, saveConversation, saveSettings } from "./storage";
import { endFrom, merged, thread } from "./tree";
import { type Conversation, type Message, newId, readExport, type Settings } from "./types";

/** An answer that this page is writing. */
export interface Live {
  messageId: string;
  stop: AbortController;
  progress?: Progress;
  /** Pieces that have come, about a token each, and when the first did. */
  pieces: number;
  firstAt: number;
  tokensPerSecond?: number;
}

export const settings = signal<Settings>(loadSettings());
export const conversations = signal<Conversation[]>([]);
/** Whether what this browser keeps is among them. Until then nothing is sent: it would go to another conversation. */
export const loaded = signal(false);
export const currentId = signal<string | null>(null);
export const server = signal<ServerInfo | null>(null);
export const serverProblem = signal("");
export const notice = signal("");
export const writing = signal<ReadonlyMap<string, Live>>(new Map()); // by conversation
export const settingsOpen = signal(false);
export const modelsOpen = signal(false);
export const sidebarOpen = signal(false);
const clock = signal(Date.now()); // for what other pages are or were writing

export const current = computed(() => conversations.value.find((one) => one.id === currentId.value) ?? null);
export const shown = computed(() => (current.value ? thread(current.value) : []));
export const sorted = computed(() => [...conversations.value].sort((a, b) => b.updated - a.updated));

const page = pageName(newId);
const keepEveryMs = 1000;
const silentMs = 30_000; // a page that has kept nothing for so long writes no more

export async function start() {
  applyTheme();
  onNews(({ id, gone }) => void (gone ? forget(id) : hear(id)));
  addEventListener("storage", (event) => {
    if (event.key !== "sluice.settings") return;
    settings.value = loadSettings();
    applyTheme();
  });
  setInterval(() => (clock.value = Date.now()), 5000);
  void connect();
  const kept = await loadConversations();
  const heard = new Map(conversations.value.map((one) => [one.id, one])); // what other pages kept meanwhile
  conversations.value = kept.map((one) => {
    const ours = heard.get(one.id);
    heard.delete(one.id);
    return ours ? merged(ours, one) : one;
  });
  if (heard.size) conversations.value = [...conversations.value, ...heard.values()];
  const last = location.hash.slice(1);
  if (conversations.value.some((one) => one.id === last)) currentId.value = last;
  loaded.value = true;
}

let looks = 0;
/** Asks what the server has. Of several that ask at once, the last one is right: it knows the newest settings. */
async function refresh(): Promise<ServerInfo> {
  const mine = ++looks;
  const info = await serverInfo(settings.value);
  if (mine === looks) server.value = info;
  return info;
}

const told = (error: unknown) => (error instanceof Error ? error.message : String(error));

export async function connect() {
  try {
    document.title = `${(await refresh()).model} · Sluice`;
    serverProblem.value = "";
    lookSoon();
  } catch (error) {
    serverProblem.value = told(error);
    if (error instanceof ApiError && error.status === 401) settingsOpen.value = true;
    setTimeout(() => void connect(), 5000);
  }
}

/** The model that is asked, as the server has it. */
export const model = computed(() => server.value?.models.find((one) => one.id === server.value?.model) ?? null);
const several = computed(() => (server.value?.models.length ?? 0) > 1);

let looking = 0;
/** Looks at the server's models again, for as long as one comes or goes, or somebody wants to know. */
function lookSoon() {
  clearTimeout(looking);
  const moving = server.value?.models.some((one) => one.state === "loading" || one.state === "unloading");
  if (several.value && (moving || modelsOpen.value || writing.value.size > 0)) looking = window.setTimeout(() => void look(), 500);
}
export async function look() {
  try {
    await refresh();
  } catch {
    // What is asked of it next tells.
  }
  lookSoon();
}

/** Talks to another model from now on, which is loaded at once. */
export function pickModel(id: string) {
  changeSettings({ model: id });
  const picked = server.value?.models.find((one) => one.id === id);
  if (server.value && picked) server.value = { ...server.value, model: id, context: picked.context };
  void moveModel("load", id);
}

export async function moveModel(change: "load" | "unload", id: string) {
  try {
    await changeModel(change, id, settings.value);
  } catch (error) {
    notice.value = told(error);
  }
  await look();
  if (server.value) document.title = `${server.value.model} · Sluice`;
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

const find = (id: string) => conversations.value.find((one) => one.id === id);

/** Puts a changed conversation in place of the old one. */
function put(changed: Conversation, keep = true) {
  const isNew = !find(changed.id);
  conversations.value = isNew
    ? [...conversations.value, changed]
    : conversations.value.map((one) => (one.id === changed.id ? changed : one));
  if (keep) void saveConversation(changed, isNew);
}

/** Another page has kept something. */
async function hear(id: string) {
  const theirs = await loadConversation(id);
  if (!theirs) return;
  const ours = find(id);
  put(ours ? merged(ours, theirs) : theirs, false);
}

function forget(id: string) {
  stop(id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (currentId.value === id) select(null);
}

/** Whether an answer is not whole and nobody is writing it any more: its page was closed or reloaded. */
export function interrupted(message: Message): boolean {
  if (message.writer === undefined) return false;
  if (message.writer === page) return ![...writing.value.values()].some((live) => live.messageId === message.id);
  return clock.value - message.changed > silentMs;
}

/** Whether another page is writing an answer in the conversation that is shown. */
export const elsewhere = computed(() => {
  const last = shown.value.at(-1);
  return last?.writer !== undefined && last.writer !== page && !interrupted(last);
});

export const busy = (id: string | undefined) => id !== undefined && writing.value.has(id);

export function rename(id: string, title: string) {
  const one = find(id);
  if (one && title.trim()) put({ ...one, title: title.trim(), changed: Date.now() });
}

export function remove(id: string) {
  forget(id);
  void removeConversation(id);
}

export function setSystem(text: string) {
  changeSettings({ system: text });
  if (current.value) put({ ...current.value, system: text, changed: Date.now() });
}

/** A message at the end of a conversation, or in place of another one. */
function ask(base: Conversation, parent: string | null, text: string) {
  const now = Date.now();
  const message: Message = { id: newId(), parent, role: "user", content: text.trim(), created: now, changed: now };
  put({ ...base, updated: now, changed: now, messages: [...base.messages, message], leaf: message.id });
  if (currentId.value !== base.id) select(base.id);
  void answer(base.id);
}

export function send(text: string) {
  const now = Date.now();
  if (!text.trim() || busy(currentId.value ?? undefined) || elsewhere.value) return;
  const title = text.trim().replace(/\s+/g, " ").slice(0, 60);
  const base = current.value ?? {
    id: newId(), title, created: now, updated: now, changed: now, system: settings.value.system, messages: [], leaf: null,
  };
  ask(base, base.leaf, text);
}

/** Another version of one's own message, with a new answer; the old ones stay. */
export function edit(message: Message, text: string) {
  const one = current.value;
  if (!one || !text.trim() || busy(one.id) || elsewhere.value) return;
  ask(one, message.parent, text);
}

/** Another version of an answer; or the first, of a message that has none. */
export function regenerate(message: Message) {
  const one = current.value;
  if (!one || busy(one.id) || elsewhere.value) return;
  put({ ...one, leaf: message.role === "user" ? message.id : message.parent, changed: Date.now() }, false);
  void answer(one.id);
}

/** Goes on with an answer that is not whole. */
export function goOn(message: Message) {
  const one = current.value;
  if (!one || busy(one.id) || elsewhere.value) return;
  put({ ...one, leaf: message.id, changed: Date.now() }, false);
  void answer(one.id, message);
}

/** Shows another version of a message, and what followed it. */
export function showVersion(id: string) {
  const one = current.value;
  if (one && !busy(one.id)) put({ ...one, leaf: endFrom(one, id), changed: Date.now() });
}

/** A new conversation that begins with the last message of one that is full. */
export function startAnew() {
  const last = shown.value.findLast((message) => message.role === "user");
  select(null);
  if (last) send(last.content);
}

export function stop(id = currentId.value) {
  if (id) writing.value.get(id)?.stop.abort();
}

function setLive(id: string, live: Live | null) {
  const all = new Map(writing.value);
  if (live) all.set(id, live);
  else all.delete(id);
  writing.value = all;
}

const fullNote = () =>
  server.value?.context
    ? `The conversation has reached the ${server.value.context.toLocaleString("en")} tokens of the model's context.`
    : "The conversation has reached the end of the model's context.";

/** Writes an answer to where the conversation stands, or goes on with one. */
async function answer(id: string, before?: Message) {
  const conversation = find(id);
  if (!conversation) return;
  const asked = thread(conversation);
  const now = Date.now();
  let message: Message = before
    ? { ...before, note: undefined, failed: undefined, full: undefined, writer: page, changed: now }
    : { id: newId(), parent: conversation.leaf, role: "assistant", content: "", created: now, changed: now, writer: page };
  const live: Live = { messageId: message.id, stop: new AbortController(), pieces: 0, firstAt: 0 };
  let pending = 0, kept = 0;
  const show = (keep = false) => {
    const one = find(id);
    if (!one) return;
    const time = Date.now();
    message = { ...message, changed: time };
    keep ||= time - kept > keepEveryMs; // what came is there after a reload
    if (keep) kept = time;
    const known = one.messages.some((other) => other.id === message.id);
    const messages = known ? one.messages.map((other) => (other.id === message.id ? message : other)) : [...one.messages, message];
    put({ ...one, updated: time, messages, leaf: known ? one.leaf : message.id }, keep);
  };
  const showSoon = () => {
    pending ||= requestAnimationFrame(() => {
      pending = 0;
      if (busy(id)) setLive(id, { ...live });
      show();
    });
    // A page in the background draws nothing, and keeps what comes all the same.
    if (document.hidden && Date.now() - kept > keepEveryMs) show();
  };
  setLive(id, live);
  lookSoon(); // its model may have to be loaded
  show(true);
  const began = performance.now();
  try {
    const { model } = server.value ?? (await refresh());
    const body = requestBody(model, conversation.system, asked, settings.value, before !== undefined);
    await streamChat(body, settings.value, live.stop.signal, (delta) => {
      if (delta.progress) live.progress = delta.progress;
      if (delta.reasoning || delta.content) {
        const time = performance.now();
        live.firstAt ||= time;
        if (live.pieces > 4) live.tokensPerSecond = live.pieces / ((time - live.firstAt) / 1000);
        ++live.pieces;
      }
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
    if (live.stop.signal.aborted) message = { ...message, note: "Stopped." };
    const used = (message.stats?.promptTokens ?? 0) + (message.stats?.tokens ?? 0);
    if (message.note && server.value?.context && used >= server.value.context - 1) message = { ...message, note: fullNote(), full: true };
  } catch (error) {
    const full = error instanceof ApiError && error.full;
    message = { ...message, note: full ? fullNote() : told(error), failed: !full, full };
    if (error instanceof ApiError && error.status === 401) settingsOpen.value = true;
  }
  cancelAnimationFrame(pending);
  const seconds = (performance.now() - (live.firstAt || began)) / 1000;
  const tokens = message.stats?.tokens;
  const measured = tokens && tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : undefined;
  message = { ...message, writer: undefined, stats: { tokensPerSecond: measured, ...message.stats, seconds } };
  setLive(id, null);
  show(true);
}

export function exportAll(): string {
  return JSON.stringify({ format: "sluice-conversations", version: 2, conversations: sorted.value }, null, 2);
}

export function importAll(text: string) {
  try {
    const list = readExport(text).map((one) => ({ one, ours: find(one.id) }));
    // What is here already, and no older, stays.
    const news = list.filter(({ one, ours }) => {
      const known = new Map(ours?.messages.map((message) => [message.id, message.changed]));
      return !ours || one.messages.some((message) => (known.get(message.id) ?? -1) < message.changed);
    });
    for (const { one, ours } of news) put(ours ? merged(ours, one) : one);
    notice.value =
      news.length === 0 ? "All of these conversations are here already."
      : news.length === 1 ? "One conversation was imported."
      : `${news.length} conversations were imported.`;
    if (news.length) select(news[0].one.id);
  } catch (error) {
    notice.value = error instanceof Error ? error.message : String(error);
  }
}
