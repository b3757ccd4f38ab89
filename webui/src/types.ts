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
  role: "user" | "assistant";
  content: string;
  reasoning?: string;
  reasoningSeconds?: number;
  stats?: Stats;
  /** Why the answer is not whole, in plain words. */
  note?: string;
  failed?: boolean;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  system: string;
  messages: Message[];
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
};

export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Reads what an exported file says; throws an Error in plain words. */
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
    const time = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : Date.now());
    return {
      id: typeof one.id === "string" && /^[0-9a-f]{24}$/.test(one.id) ? one.id : newId(),
      title: text(one.title) || "Imported conversation",
      created: time(one.created),
      updated: time(one.updated),
      system: text(one.system),
      messages: one.messages.map((message) => {
        if (typeof message !== "object" || message === null || typeof message.content !== "string") throw bad();
        if (message.role !== "user" && message.role !== "assistant") throw bad();
        const copy: Message = { id: newId(), role: message.role, content: message.content };
        if (typeof message.reasoning === "string") copy.reasoning = message.reasoning;
        return copy;
      }),
    };
  });
}
