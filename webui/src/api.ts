// The server's API, as far as the page needs it.
import type { Message, Settings, Stats } from "./types";

/** A model of the server: one that is there, or may come. */
export interface ModelEntry {
  id: string;
  state: "unloaded" | "loading" | "loaded" | "unloading" | "failed";
  /** Of loading, up to 1. */
  progress: number;
  problem: string;
  bytes: number | null;
  context: number | null;
}

export interface ServerInfo {
  model: string;
  context: number | null;
  models: ModelEntry[];
}

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status = 0,
    /** The conversation is longer than the model's context. */
    readonly full = false,
  ) {
    super(message);
  }
}

function headers(settings: Settings): Record<string, string> {
  return settings.apiKey ? { Authorization: `Bearer ${settings.apiKey}` } : {};
}

async function failure(response: Response): Promise<ApiError> {
  let message = "";
  let full = false;
  try {
    const { error } = await response.json();
    message = error?.message ?? "";
    full = error?.code === "context_length_exceeded" || error?.type === "exceed_context_size_error";
  } catch {
    // Not JSON: the status says it.
  }
  if (response.status === 401) message ||= "This server wants an API key. Enter it in the settings.";
  if (response.status === 503) message ||= "The server is still loading its model, or has too much to do. Try again soon.";
  return new ApiError(message || `The server answered with status ${response.status}.`, response.status, full);
}

/** fetch, whose failure is told as the page's errors are. Throws what fetch does once the signal has ended it. */
async function reach(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(path, init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError("The server cannot be reached. Is it still running?");
  }
}

async function ask(path: string, settings: Settings, body?: unknown) {
  const response = await reach(path, {
    method: body === undefined ? "GET" : "POST",
    headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers(settings) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await failure(response);
  return response.json();
}

const states: readonly string[] = ["unloaded", "loading", "loaded", "unloading", "failed"];

function readModel(model: any): ModelEntry {
  const number = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  const state = model?.status?.value;
  return {
    id: String(model?.id ?? "model"),
    state: states.includes(state) ? state : "loaded", // a server without states has what it lists
    progress: number(model?.status?.progress) ?? 0,
    problem: typeof model?.status?.error === "string" ? model.status.error : "",
    bytes: number(model?.meta?.size),
    context: number(model?.meta?.n_ctx) ?? number(model?.max_model_len),
  };
}

/** Of several models, the one that was chosen, or else one that is there. */
export async function serverInfo(settings: Settings): Promise<ServerInfo> {
  const list = await ask("/v1/models", settings);
  const models: ModelEntry[] = Array.isArray(list?.data) ? list.data.map(readModel) : [];
  if (models.length > 1) {
    const model = models.find((one) => one.id === settings.model) ?? models.find((one) => one.state === "loaded") ?? models[0];
    return { model: model.id, context: model.context, models };
  }
  let context = models[0]?.context ?? null;
  try {
    const props = await ask("/props", settings);
    context = props?.default_generation_settings?.n_ctx ?? props?.n_ctx ?? context;
  } catch {
    // A server without /props says less.
  }
  return { model: models[0]?.id ?? "model", context: typeof context === "number" ? context : null, models };
}

/** Begins to load a model, or to take it out of memory; the list of models tells how it goes. */
export async function changeModel(change: "load" | "unload", model: string, settings: Settings): Promise<void> {
  await ask(`/models/${change}`, settings, { model });
}

/** What is kept of prompts in one place, in pages of some tokens each. */
export interface CachePlace {
  place: "device" | "memory" | "disk";
  /** With what is remembered and what answers use now. */
  pages: number;
  /** Of the device. */
  used?: number;
  all?: number;
  /** Of the others. */
  bytes?: number;
  limit?: number;
}

export interface CacheInfo {
  pageTokens: number;
  places: CachePlace[];
}

/** null: a server that does not tell. */
export async function cacheInfo(settings: Settings): Promise<CacheInfo | null> {
  let told;
  try {
    told = await ask("/cache", settings);
  } catch {
    return null;
  }
  const number = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : 0);
  const { device } = told ?? {};
  if (!device) return null;
  const places: CachePlace[] = [
    { place: "device", pages: number(device.pages_used) + number(device.pages_cached), used: number(device.pages_used), all: number(device.pages) },
  ];
  for (const place of ["memory", "disk"] as const) {
    const there = told[place];
    if (there) places.push({ place, pages: number(there.pages), bytes: number(there.bytes), limit: number(there.limit_bytes) });
  }
  return { pageTokens: number(told.page_tokens), places };
}

/** Forgets all that no answer uses. */
export async function clearCache(settings: Settings): Promise<void> {
  await ask("/cache/clear", settings, {});
}

export interface Delta {
  content?: string;
  reasoning?: string;
  finish?: string;
  stats?: Stats;
  progress?: Progress;
}

/** How far the server has read the conversation, in tokens. */
export interface Progress {
  done: number;
  total: number;
}

/** Splits a stream of server-sent events into the data of each. */
export class EventReader {
  private pending = "";
  push(text: string): string[] {
    this.pending += text;
    const parts = this.pending.split(/\r?\n\r?\n/);
    this.pending = parts.pop()!;
    return parts
      .map((part) =>
        part
          .split(/\r?\n/)
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(line.startsWith("data: ") ? 6 : 5))
          .join("\n"),
      )
      .filter((data) => data !== "");
  }
}

/** What one chunk of a chat completion says. Throws ApiError when it says that something went wrong. */
export function readChunk(data: string): Delta {
  const chunk = JSON.parse(data);
  if (chunk.error) throw new ApiError(chunk.error.message ?? "The server stopped with an error.");
  const choice = chunk.choices?.[0];
  const delta: Delta = {};
  if (choice?.delta?.content) delta.content = choice.delta.content;
  const reasoning = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning;
  if (reasoning) delta.reasoning = reasoning;
  const progress = chunk.prompt_progress;
  if (progress) delta.progress = { done: Number(progress.processed) || 0, total: Number(progress.total) || 0 };
  if (choice?.finish_reason) delta.finish = choice.finish_reason;
  if (chunk.usage || chunk.timings) {
    delta.stats = {};
    if (chunk.usage) {
      delta.stats.promptTokens = chunk.usage.prompt_tokens;
      delta.stats.tokens = chunk.usage.completion_tokens;
      delta.stats.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens;
    }
    if (chunk.timings?.predicted_per_second) delta.stats.tokensPerSecond = chunk.timings.predicted_per_second;
  }
  return delta;
}

/** goesOn: the last message is an answer that is to be continued. */
export function requestBody(model: string, system: string, messages: Pick<Message, "role" | "content">[], settings: Settings, goesOn = false) {
  const body: Record<string, unknown> = {
    model,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    messages: [
      ...(system.trim() ? [{ role: "system", content: system }] : []),
      ...messages
        .filter((message) => message.role === "user" || message.content !== "")
        .map((message) => ({ role: message.role, content: message.content })),
    ],
  };
  for (const key of ["temperature", "top_p", "top_k", "min_p", "max_tokens"] as const)
    if (settings[key] !== null) body[key] = settings[key];
  if (goesOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  if (!settings.thinking) body.chat_template_kwargs = { enable_thinking: false };
  return body;
}

/** Streams an answer; resolves when it is whole. Aborting the signal ends it without an error. */
export async function streamChat(
  body: unknown,
  settings: Settings,
  signal: AbortSignal,
  onDelta: (delta: Delta) => void,
): Promise<void> {
  let response: Response;
  try {
    response = await reach("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers(settings) },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal.aborted) return;
    throw error;
  }
  if (!response.ok || !response.body) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  let finished = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      for (const data of events.push(value)) {
        if (data === "[DONE]") return;
        const delta = readChunk(data);
        finished ||= delta.finish !== undefined;
        onDelta(delta);
      }
    }
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof ApiError) throw error;
    throw new ApiError("The connection to the server was lost in the middle of the answer.");
  }
  if (!finished && !signal.aborted) throw new ApiError("The answer ended before it was whole.");
}
