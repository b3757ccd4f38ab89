// What a conversation is, and what the settings are. The form in which conversations are kept and exported.

export interface Stats {
  promptTokens?: number;
  cachedTokens?: number;
  tokens?: number;
  seconds?: number;
  tokensPerSecond?: number;
}

export interface Message {
  id: string;
  /** The message that it answers; null: the first. */
  parent: string | null;
  role: "user" | "assistant";
  content: string;
  reasoning?: string;
  reasoningSeconds?: number;
  stats?: Stats;
  /** Why the answer is not whole, in plain words. */
  note?: string;
  failed?: boolean;
  /** The conversation has outgrown the model's context. */
  full?: boolean;
  created: number;
  /** Of two copies the one that was changed last counts. */
  changed: number;
  /** The page that is writing it. */
  writer?: string;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  /** When something was last said. */
  updated: number;
  /** When title, system or leaf were last changed. */
  changed: number;
  system: string;
  /** All of them, versions that are not shown too. */
  messages: Message[];
  /** The last message of those that are shown. */
  leaf: string | null;
}

export interface Settings {
  theme: "auto" | "light" | "dark";
  system: string;
  thinking: boolean;
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  max_tokens: number | null;
  apiKey: string;
  /** Of several models, the one that is asked; null: one that is there. */
  model: string | null;
}

export const defaultSettings: Settings = {
  theme: "auto",
  system: "",
  thinking: true,
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  max_tokens: null,
  apiKey: "",
  model: null,
};

export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const isId = (value: unknown): value is string => typeof value === "string" && /^[0-9a-f]{24}$/.test(value);

/** Reads what an exported file says; throws an Error in plain words. Files of earlier versions of this page, and
 *  of other hands, hold lists: each message answers the one before it. */
export function readExport(text: string): Conversation[] {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  const list = (data as { conversations?: unknown })?.conversations;
  if (!Array.isArray(list)) throw new Error("This file holds no conversations.");
  return list.map((entry, index) => {
    const one = entry as Partial<Conversation>;
    const bad = () => new Error(`Conversation ${index + 1} in this file is damaged.`);
    if (typeof one !== "object" || one === null || !Array.isArray(one.messages)) throw bad();
    const text = (value: unknown) => (typeof value === "string" ? value : "");
    const now = Date.now();
    const time = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : now);
    const known = new Set<string>();
    let before: string | null = null;
    const messages = one.messages.map((message, place) => {
      if (typeof message !== "object" || message === null || typeof message.content !== "string") throw bad();
      if (message.role !== "user" && message.role !== "assistant") throw bad();
      const id = isId(message.id) && !known.has(message.id) ? message.id : newId();
      // What it answers stands before it, or it answers the message before it.
      const answers = message.parent === null || (isId(message.parent) && known.has(message.parent));
      const copy: Message = {
        id, parent: answers ? message.parent : before, role: message.role, content: message.content,
        created: typeof message.created === "number" ? time(message.created) : time(one.created) + place,
        changed: typeof message.changed === "number" ? time(message.changed) : time(one.created) + place,
      };
      if (typeof message.reasoning === "string") copy.reasoning = message.reasoning;
      known.add(id);
      before = id;
      return copy;
    });
    return {
      id: isId(one.id) ? one.id : newId(),
      title: text(one.title) || "Imported conversation",
      created: time(one.created),
      updated: time(one.updated),
      changed: time(one.changed ?? one.updated),
      system: text(one.system),
      messages,
      leaf: isId(one.leaf) && known.has(one.leaf) ? one.leaf : before,
    };
  });
}
