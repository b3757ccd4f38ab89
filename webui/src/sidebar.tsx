import { useRef } from "preact/hooks";
import { Icon } from "./icons";
import { currentId, exportAll, importAll, remove, rename, select, sidebarOpen, sorted, writing } from "./state";

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([exportAll()], { type: "application/json" }));
  link.download = `sluice-conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
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
          <li key={one.id} class={one.id === currentId.value ? "current" : ""}>
            <button type="button" class="title" aria-current={one.id === currentId.value ? "page" : undefined}
              title={`${one.title} (double-click to rename)`} onClick={() => select(one.id)}
              onDblClick={() => {
                const title = prompt("Title of this conversation", one.title);
                if (title !== null) rename(one.id, title);
              }}
            >
              {one.title}
              {writing.value === one.id && <span class="dot" aria-label="an answer is being written" />}
            </button>
            <button type="button" class="icon small" aria-label={`Delete “${one.title}”`} onClick={() => {
                if (confirm(`Delete “${one.title}”?`)) remove(one.id);
              }}
            >
              <Icon name="trash" />
            </button>
          </li>
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
