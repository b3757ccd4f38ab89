import { useRef, useState } from "preact/hooks";
import { Icon } from "./icons";
import { currentId, exportAll, importAll, remove, rename, select, sidebarOpen, sorted, writing } from "./state";
import type { Conversation } from "./types";

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([exportAll()], { type: "application/json" }));
  link.download = `sluice-conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function Row({ one }: { one: Conversation }) {
  const [title, setTitle] = useState<string | null>(null);
  const keep = () => {
    if (title !== null) rename(one.id, title);
    setTitle(null);
  };
  const chosen = one.id === currentId.value;
  return (
    <li class={chosen ? "current" : ""}>
      {title === null ? (
        <>
          <button type="button" class="title" dir="auto" aria-current={chosen ? "page" : undefined} title={one.title}
            onClick={() => select(one.id)} onDblClick={() => setTitle(one.title)}
          >
            {one.title}
            {writing.value.has(one.id) && <span class="dot" aria-label="an answer is being written" />}
          </button>
          <button type="button" class="icon small" aria-label={`Rename “${one.title}”`} title="Rename" onClick={() => setTitle(one.title)}>
            <Icon name="edit" />
          </button>
          <button type="button" class="icon small" aria-label={`Delete “${one.title}”`} title="Delete" onClick={() => {
              if (confirm(`Delete “${one.title}”?`)) remove(one.id);
            }}
          >
            <Icon name="trash" />
          </button>
        </>
      ) : (
        <input class="rename" dir="auto" aria-label="Title" value={title} maxLength={200} enterkeyhint="done"
          ref={(element) => {
            if (element && document.activeElement !== element) element.select();
          }}
          onInput={(event) => setTitle(event.currentTarget.value)} onBlur={keep}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.isComposing) keep();
            if (event.key !== "Escape") return;
            event.stopPropagation();
            setTitle(null);
          }}
        />
      )}
    </li>
  );
}

export function Sidebar() {
  const file = useRef<HTMLInputElement>(null);
  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="brand">
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="8" />
          <path d="M6 12c3.3-3 6.7-3 10 0s6.7 3 10 0M6 20c3.3-3 6.7-3 10 0s6.7 3 10 0" />
        </svg>
        <span>Sluice</span>
        <button type="button" class="icon only-narrow" aria-label="Close" onClick={() => (sidebarOpen.value = false)}>
          <Icon name="close" />
        </button>
      </div>
      <button type="button" class="new" title="Ctrl+Shift+O" onClick={() => {
          select(null);
          document.querySelector<HTMLTextAreaElement>("#prompt")?.focus();
        }}
      >
        <Icon name="plus" /> New chat
      </button>
      <ul>
        {sorted.value.map((one) => (
          <Row key={one.id} one={one} />
        ))}
      </ul>
      {sorted.value.length === 0 && <p class="hint">Conversations are kept in this browser and nowhere else.</p>}
      <div class="files">
        <button type="button" onClick={download} disabled={sorted.value.length === 0}>
          <Icon name="download" /> Export
        </button>
        <button type="button" onClick={() => file.current?.click()}>
          <Icon name="upload" /> Import
        </button>
        <input ref={file} type="file" accept="application/json,.json" hidden aria-label="File to import"
          onChange={async (event) => {
            const input = event.currentTarget;
            const chosen = input.files?.[0];
            if (chosen) importAll(await chosen.text());
            input.value = "";
          }}
        />
      </div>
    </nav>
  );
}
