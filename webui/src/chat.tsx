import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";
import { renderBlocks, trusted } from "./markdown";
import { current, edit, regenerate, send, server, stop, writing } from "./state";
import type { Message } from "./types";

export function Chat() {
  const scroller = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const editing = useRef<((id: string) => void) | null>(null);
  const conversation = current.value;
  const messages = conversation?.messages ?? [];
  const busy = writing.value !== null && writing.value === conversation?.id;

  // The end stays in view unless the reader has scrolled away from it.
  useLayoutEffect(() => {
    if (following.current && scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight;
  });
  useEffect(() => {
    following.current = true;
    if (scroller.current) scroller.current.scrollTop = scroller.current.scrollHeight;
  }, [conversation?.id, messages.length]);

  return (
    <>
      <div class="scroller" ref={scroller} tabindex={-1}
        onScroll={(event) => {
          const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
          following.current = scrollTop + clientHeight > scrollHeight - 40;
        }}
        onClick={copyCode}
      >
        <div class="thread" role="log" aria-label="Messages" aria-busy={busy}>
          {messages.length === 0 && <Welcome />}
          {messages.map((message, index) => (
            <MessageView key={message.id} message={message} live={busy && index === messages.length - 1} editing={editing} />
          ))}
        </div>
      </div>
      <Composer
        busy={busy}
        onEditLast={() => {
          const last = messages.filter((message) => message.role === "user").at(-1);
          if (last && !busy) editing.current?.(last.id);
        }}
      />
    </>
  );
}

function Welcome() {
  return (
    <div class="welcome">
      <svg viewBox="0 0 64 32" aria-hidden="true">
        <path d="M4 10c6-6 12-6 18 0s12 6 18 0 12-6 18 0M4 22c6-6 12-6 18 0s12 6 18 0 12-6 18 0" />
      </svg>
      <h2>What shall we talk about?</h2>
      <p>{server.value ? `${server.value.model} is ready.` : "Looking for the server…"}</p>
    </div>
  );
}

async function copyText(text: string, button: HTMLElement, done: string) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = done;
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = before), 1500);
}

function copyCode(event: MouseEvent) {
  const button = (event.target as HTMLElement).closest<HTMLElement>(".copy-code");
  const code = button?.closest(".code")?.querySelector("code");
  if (button && code) void copyText(code.textContent ?? "", button, "Copied");
}

function seconds(value: number) {
  return value < 60 ? `${Math.max(1, Math.round(value))} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

const Block = memo(({ html }: { html: string }) => <div class="block" dangerouslySetInnerHTML={{ __html: trusted(html) }} />);

function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {renderBlocks(text).map((html, index) => (
        <Block key={index} html={html} />
      ))}
    </div>
  );
}

interface MessageProps {
  message: Message;
  live: boolean;
  editing: { current: ((id: string) => void) | null };
}

const MessageView = memo(({ message, live, editing }: MessageProps) => {
  const [draft, setDraft] = useState<string | null>(null);
  const [open, setOpen] = useState(false);
  useEffect(() => {
    if (message.role !== "user") return;
    const before = editing.current;
    editing.current = (id) => (id === message.id ? setDraft(message.content) : before?.(id));
    return () => {
      editing.current = before;
    };
  }, [message.id]);

  if (message.role === "user") {
    return (
      <article class="message user" aria-label="You">
        {draft === null ? (
          <div class="bubble">{message.content}</div>
        ) : (
          <form class="editor" onSubmit={(event) => {
              event.preventDefault();
              edit(message.id, draft);
            }}
          >
            <textarea aria-label="Edit your message" value={draft} rows={Math.min(12, draft.split("\n").length + 1)}
              ref={(element) => {
                if (element && document.activeElement !== element) element.focus();
              }}
              onInput={(event) => setDraft(event.currentTarget.value)}
              onKeyDown={(event) => {
                if (event.key === "Escape") {
                  event.stopPropagation();
                  setDraft(null);
                }
                if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                  event.preventDefault();
                  edit(message.id, draft);
                }
              }}
            />
            <div class="row">
              <button type="button" class="plain" onClick={() => setDraft(null)}>Cancel</button>
              <button type="submit" class="primary" disabled={!draft.trim()}>Send</button>
            </div>
          </form>
        )}
        {draft === null && (
          <div class="actions">
            <button type="button" class="plain" onClick={(event) => void copyText(message.content, event.currentTarget, "Copied")}>Copy</button>
            <button type="button" class="plain" disabled={writing.value !== null} onClick={() => setDraft(message.content)}>Edit</button>
          </div>
        )}
      </article>
    );
  }
  const { stats } = message;
  const thinking = live && !message.content;
  return (
    <article class="message assistant" aria-label="Answer">
      {message.reasoning && (
        <details class="reasoning" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary class={thinking ? "working" : ""}>
            {thinking ? "Thinking…" : `Thought${message.reasoningSeconds ? ` for ${seconds(message.reasoningSeconds)}` : ""}`}
          </summary>
          {open && <Markdown text={message.reasoning} />}
        </details>
      )}
      {message.content ? <Markdown text={message.content} /> : live && !message.reasoning && <div class="waiting" role="status" aria-label="Waiting for the first word"><i /><i /><i /></div>}
      {message.note && (
        <p class={`note ${message.failed ? "failed" : ""}`} role={message.failed ? "alert" : undefined}>
          {message.note}
        </p>
      )}
      {!live && (
        <div class="actions">
          <button type="button" class="plain" onClick={(event) => void copyText(message.content, event.currentTarget, "Copied")}>Copy</button>
          <button type="button" class="plain" disabled={writing.value !== null} onClick={() => regenerate(message.id)}>Regenerate</button>
          {stats?.tokens !== undefined && (
            <span class="stats" title={stats.promptTokens !== undefined ? `${stats.promptTokens} tokens of prompt${stats.cachedTokens ? `, ${stats.cachedTokens} of them from the cache` : ""}` : undefined}>
              {stats.tokens} tokens{stats.tokensPerSecond ? ` · ${stats.tokensPerSecond.toFixed(1)} tokens/s` : ""}
            </span>
          )}
        </div>
      )}
    </article>
  );
});

function Composer({ busy, onEditLast }: { busy: boolean; onEditLast: () => void }) {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const element = area.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, innerHeight * 0.4)}px`;
  }, [text]);
  useEffect(() => area.current?.focus(), []);
  const submit = () => {
    if (writing.value || !text.trim()) return;
    send(text);
    setText("");
  };
  return (
    <form class="composer" onSubmit={(event) => {
        event.preventDefault();
        if (busy) stop();
        else submit();
      }}
    >
      <div class="box">
        <textarea id="prompt" ref={area} rows={1} placeholder="Write a message" aria-label="Message" value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              if (!busy) submit();
            } else if (event.key === "ArrowUp" && text === "") {
              event.preventDefault();
              onEditLast();
            }
          }}
        />
        {busy ? (
          <button type="submit" class="go stop" aria-label="Stop" title="Stop (Esc)"><Icon name="stop" /></button>
        ) : (
          <button type="submit" class="go" aria-label="Send" title="Send (Enter)" disabled={!text.trim() || writing.value !== null}><Icon name="send" /></button>
        )}
      </div>
    </form>
  );
}
