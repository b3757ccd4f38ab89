import { memo } from "preact/compat";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { copy } from "./copy";
import { Icon } from "./icons";
import { renderBlocks, trusted } from "./markdown";
import {
  busy as isBusy, current, edit, elsewhere, goOn, interrupted, type Live, loaded, model, regenerate, send, server, showVersion, shown, startAnew, stop, writing,
} from "./state";
import { versions } from "./tree";
import type { Message } from "./types";

export function Chat() {
  const scroller = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const editing = useRef<((id: string) => void) | null>(null);
  const conversation = current.value;
  const messages = shown.value;
  const live = conversation ? writing.value.get(conversation.id) : undefined;
  const busy = live !== undefined;
  const blocked = busy || elsewhere.value;

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
          {messages.map((message, index) => {
            const all = versions(conversation!, message);
            const last = index === messages.length - 1;
            return (
              <MessageView key={message.id} message={message} editing={editing} blocked={blocked} last={last}
                live={live?.messageId === message.id ? live : undefined}
                elsewhere={last && elsewhere.value} broken={interrupted(message)}
                versions={all.map((one) => one.id).join(" ")}
              />
            );
          })}
        </div>
      </div>
      <Composer
        busy={busy} elsewhere={elsewhere.value}
        onEditLast={() => {
          const last = messages.filter((message) => message.role === "user").at(-1);
          if (last && !blocked) editing.current?.(last.id);
        }}
      />
    </>
  );
}

function welcome(name: string): string {
  switch (model.value?.state) {
    case "loading": return `${name} is being loaded.`;
    case "failed": return `${name} could not be loaded.`;
    case "unloaded":
    case "unloading": return `${name} will be loaded for your first message.`;
    default: return `${name} is ready.`;
  }
}

function Welcome() {
  return (
    <div class="welcome">
      <svg viewBox="0 0 64 32" aria-hidden="true">
        <path d="M4 10c6-6 12-6 18 0s12 6 18 0 12-6 18 0M4 22c6-6 12-6 18 0s12 6 18 0 12-6 18 0" />
      </svg>
      <h2>What shall we talk about?</h2>
      <p>{server.value ? welcome(server.value.model) : "Looking for the server…"}</p>
    </div>
  );
}

async function copyText(text: string, button: HTMLElement) {
  const before = button.textContent;
  button.textContent = (await copy(text)) ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = before), 1500);
}

function copyCode(event: MouseEvent) {
  const button = (event.target as HTMLElement).closest<HTMLElement>(".copy-code");
  const code = button?.closest(".code")?.querySelector("code");
  if (button && code) void copyText(code.textContent ?? "", button);
}

function seconds(value: number) {
  return value < 60 ? `${Math.max(1, Math.round(value))} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

const Block = memo(({ html }: { html: string }) => <div class="block" dir="auto" dangerouslySetInnerHTML={{ __html: trusted(html) }} />);

function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {renderBlocks(text).map((html, index) => (
        <Block key={index} html={html} />
      ))}
    </div>
  );
}

/** Turns through the versions of a message. */
function Versions({ id, ids, blocked }: { id: string; ids: string; blocked: boolean }) {
  const all = ids.split(" ");
  const at = all.indexOf(id);
  if (all.length < 2) return null;
  return (
    <span class="versions">
      <button type="button" class="plain" aria-label="Version before" disabled={blocked || at === 0} onClick={() => showVersion(all[at - 1])}>‹</button>
      <span>{at + 1}/{all.length}</span>
      <button type="button" class="plain" aria-label="Next version" disabled={blocked || at === all.length - 1} onClick={() => showVersion(all[at + 1])}>›</button>
    </span>
  );
}

/** What there is to see before the first word. */
function Waiting({ live }: { live?: Live }) {
  const progress = live?.progress;
  if (!progress || progress.total === 0 || progress.done >= progress.total)
    return <div class="waiting" role="status" aria-label="Waiting for the first word"><i /><i /><i /></div>;
  const text = `Reading the conversation: ${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")} tokens`;
  return (
    <div class="progress" role="status">
      <span>{text}</span>
      <progress max={progress.total} value={progress.done} aria-label={text} />
    </div>
  );
}

interface MessageProps {
  message: Message;
  live?: Live;
  last: boolean;
  blocked: boolean;
  elsewhere: boolean;
  broken: boolean;
  versions: string;
  editing: { current: ((id: string) => void) | null };
}

const MessageView = memo(({ message, live, last, blocked, elsewhere, broken, versions, editing }: MessageProps) => {
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

  const submit = () => {
    edit(message, draft ?? "");
    setDraft(null);
  };
  if (message.role === "user") {
    return (
      <article class="message user" aria-label="You">
        {draft === null ? (
          <div class="bubble" dir="auto">{message.content}</div>
        ) : (
          <form class="editor" onSubmit={(event) => {
              event.preventDefault();
              submit();
            }}
          >
            <textarea aria-label="Edit your message" dir="auto" value={draft} rows={Math.min(12, draft.split("\n").length + 1)}
              ref={(element) => {
                if (element && document.activeElement !== element) element.focus();
              }}
              onInput={(event) => setDraft(event.currentTarget.value)}
              onKeyDown={(event) => {
                if (event.key === "Escape") {
                  event.stopPropagation();
                  setDraft(null);
                }
                if (sends(event)) {
                  event.preventDefault();
                  submit();
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
            <button type="button" class="plain" onClick={(event) => void copyText(message.content, event.currentTarget)}>Copy</button>
            <button type="button" class="plain" disabled={blocked} onClick={() => setDraft(message.content)}>Edit</button>
            {last && !blocked && <button type="button" class="plain" onClick={() => regenerate(message)}>Answer</button>}
            <Versions id={message.id} ids={versions} blocked={blocked} />
          </div>
        )}
      </article>
    );
  }
  const { stats } = message;
  const written = live !== undefined || elsewhere;
  const thinking = written && !message.content;
  const alone = message.full && !message.content && shown.value[0]?.id === message.parent;
  const note = broken ? "The page was closed before this answer was whole." : message.note;
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
      {message.content ? <Markdown text={message.content} /> : written && !message.reasoning && <Waiting live={live} />}
      {note && (
        <p class={`note ${message.failed ? "failed" : ""}`} role={message.failed ? "alert" : undefined}>
          {note}
          {message.full && (alone
            ? " The message does not fit even alone: edit it to make it shorter."
            : " Start a new chat, with your last message if you like, or edit an earlier message to go on from there.")}
        </p>
      )}
      {written && live?.tokensPerSecond !== undefined && (
        <div class="actions"><span class="stats" role="status" aria-live="off">{live.tokensPerSecond.toFixed(1)} tokens/s</span></div>
      )}
      {!written && (
        <div class="actions">
          {message.content && <button type="button" class="plain" onClick={(event) => void copyText(message.content, event.currentTarget)}>Copy</button>}
          {note && message.content && !message.full && <button type="button" class="plain" disabled={blocked} onClick={() => goOn(message)}>Continue</button>}
          <button type="button" class="plain" disabled={blocked} onClick={() => regenerate(message)}>Regenerate</button>
          {message.full && !alone && <button type="button" class="plain" onClick={startAnew}>New chat with the last message</button>}
          <Versions id={message.id} ids={versions} blocked={blocked} />
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

/** Whether a key sends what was written. Where there is no keyboard but the screen's, Enter begins a new line. */
function sends(event: KeyboardEvent) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(hover: none) and (pointer: coarse)").matches;
}

function Composer({ busy, elsewhere, onEditLast }: { busy: boolean; elsewhere: boolean; onEditLast: () => void }) {
  const [text, setText] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const element = area.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight, innerHeight * 0.4)}px`;
  }, [text]);
  useEffect(() => area.current?.focus(), []);
  const [wanted, setWanted] = useState(false); // before it could be sent
  const submit = () => {
    if (isBusy(current.value?.id) || elsewhere || !text.trim()) return;
    if (!loaded.value) return setWanted(true);
    send(text);
    setText("");
  };
  useEffect(() => {
    if (!wanted || !loaded.value) return;
    setWanted(false);
    submit();
  }, [wanted, loaded.value]);
  return (
    <form class="composer" onSubmit={(event) => {
        event.preventDefault();
        if (busy) stop();
        else submit();
      }}
    >
      <div class="box">
        <textarea id="prompt" ref={area} rows={1} dir="auto" aria-label="Message" value={text}
          placeholder={elsewhere ? "Another page is writing an answer here" : "Write a message"}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (sends(event)) {
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
          <button type="submit" class="go" aria-label="Send" title="Send (Enter)" disabled={!text.trim() || elsewhere}><Icon name="send" /></button>
        )}
      </div>
    </form>
  );
}
