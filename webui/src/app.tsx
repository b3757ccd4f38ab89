import { useEffect, useRef } from "preact/hooks";
import { Chat } from "./chat";
import { Icon } from "./icons";
import { ModelPicker } from "./models";
import { SettingsPanel } from "./settings";
import { Sidebar } from "./sidebar";
import { busy, current, modelsOpen, notice, select, server, serverProblem, settingsOpen, shown, sidebarOpen, stop } from "./state";

export function App() {
  const noticeTimer = useRef(0);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const command = event.ctrlKey || event.metaKey;
      if (event.key === "Escape") {
        if (settingsOpen.value) settingsOpen.value = false;
        else if (modelsOpen.value) modelsOpen.value = false;
        else if (sidebarOpen.value) sidebarOpen.value = false;
        else if (busy(current.value?.id)) stop();
      } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        select(null);
        document.querySelector<HTMLTextAreaElement>("#prompt")?.focus();
      } else if (command && event.key === ",") {
        event.preventDefault();
        settingsOpen.value = !settingsOpen.value;
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  useEffect(() => {
    clearTimeout(noticeTimer.current);
    if (notice.value) noticeTimer.current = window.setTimeout(() => (notice.value = ""), 6000);
  }, [notice.value]);
  return (
    <div class={`page ${sidebarOpen.value ? "with-sidebar" : ""}`}>
      <Sidebar />
      {sidebarOpen.value && <div class="shade" onClick={() => (sidebarOpen.value = false)} />}
      <main>
        <header class="top">
          <button type="button" class="icon only-narrow" aria-label="Conversations" onClick={() => (sidebarOpen.value = true)}>
            <Icon name="menu" />
          </button>
          <h1 dir="auto" title={current.value?.title}>{current.value?.title ?? "New chat"}</h1>
          <ModelPicker />
          <Meter />
          <button type="button" class="icon" aria-label="Settings" title="Settings (Ctrl+,)" onClick={() => (settingsOpen.value = true)}>
            <Icon name="settings" />
          </button>
        </header>
        {serverProblem.value && (
          <p class="banner" role="alert">
            {serverProblem.value}
          </p>
        )}
        <Chat />
      </main>
      {settingsOpen.value && <SettingsPanel />}
      <div class="notice" role="status" aria-live="polite">
        {notice.value && <span>{notice.value}</span>}
      </div>
    </div>
  );
}

/** How much of the model's context the conversation takes. */
function Meter() {
  const context = server.value?.context;
  const last = shown.value.findLast((message) => message.stats?.promptTokens !== undefined);
  if (!context) return null;
  const full = shown.value.at(-1)?.full; // of what was refused nobody has counted the tokens
  const used = full ? context : (last?.stats?.promptTokens ?? 0) + (last?.stats?.tokens ?? 0);
  const share = Math.min(1, used / context);
  const text = `${used.toLocaleString("en")} of ${context.toLocaleString("en")} tokens of context used`;
  return (
    <div class="meter" title={text}>
      <svg viewBox="0 0 36 36" role="img" aria-label={text} class={share > 0.9 ? "full" : ""}>
        <circle cx="18" cy="18" r="14" />
        <circle cx="18" cy="18" r="14" pathLength="100" stroke-dasharray={`${share * 100} 100`} class="used" />
      </svg>
      <span class="share">{Math.round(share * 100)}%</span>
    </div>
  );
}
