import { useEffect, useRef } from "preact/hooks";
import { CacheView } from "./cache";
import { Icon } from "./icons";
import { changeSettings, connect, current, setSystem, settings, settingsOpen } from "./state";
import type { Settings } from "./types";

const numbers: { key: "temperature" | "top_p" | "top_k" | "min_p" | "max_tokens"; label: string; hint: string; step: number; min: number; max?: number }[] = [
  { key: "temperature", label: "Temperature", hint: "0 always takes the likeliest word", step: 0.05, min: 0, max: 5 },
  { key: "top_p", label: "Top p", hint: "the likeliest words that together have this share", step: 0.01, min: 0, max: 1 },
  { key: "top_k", label: "Top k", hint: "at most so many words to choose from", step: 1, min: 0 },
  { key: "min_p", label: "Min p", hint: "no word less likely than this share of the likeliest", step: 0.01, min: 0, max: 1 },
  { key: "max_tokens", label: "Longest answer", hint: "in tokens", step: 1, min: 1 },
];

export function SettingsPanel() {
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    panel.current?.querySelector<HTMLElement>("textarea")?.focus();
    return () => before?.focus();
  }, []);
  const keepFocus = (event: KeyboardEvent) => {
    if (event.key !== "Tab" || !panel.current) return;
    const all = [...panel.current.querySelectorAll<HTMLElement>("button, input, select, textarea")];
    const first = all[0], last = all[all.length - 1];
    if (event.shiftKey && document.activeElement === first) {
      event.preventDefault();
      last.focus();
    } else if (!event.shiftKey && document.activeElement === last) {
      event.preventDefault();
      first.focus();
    }
  };
  const now = settings.value;
  return (
    <div class="overlay" onClick={(event) => event.target === event.currentTarget && (settingsOpen.value = false)}>
      <div class="panel" role="dialog" aria-modal="true" aria-labelledby="settings-title" ref={panel} onKeyDown={keepFocus}>
        <header>
          <h2 id="settings-title">Settings</h2>
          <button type="button" class="icon" aria-label="Close settings" onClick={() => (settingsOpen.value = false)}>
            <Icon name="close" />
          </button>
        </header>
        <label class="field">
          <span>System prompt</span>
          <textarea rows={4} placeholder="What the model should know or be before you begin"
            value={current.value?.system ?? now.system} onInput={(event) => setSystem(event.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={now.thinking} onChange={(event) => changeSettings({ thinking: event.currentTarget.checked })} />
          <span>Let the model think before it answers</span>
        </label>
        <fieldset>
          <legend>Sampling <small>(empty: the server's choice)</small></legend>
          {numbers.map(({ key, label, hint, ...range }) => (
            <label class="number" key={key}>
              <span>
                {label}
                <small>{hint}</small>
              </span>
              <input type="number" inputMode="decimal" name={key} {...range} placeholder="auto" value={now[key] ?? ""}
                onInput={(event) => {
                  const { value } = event.currentTarget;
                  const number = value === "" ? null : Number(value);
                  if (number === null || Number.isFinite(number)) changeSettings({ [key]: number } as Partial<Settings>);
                }}
              />
            </label>
          ))}
        </fieldset>
        <label class="number">
          <span>Appearance</span>
          <select value={now.theme} onChange={(event) => changeSettings({ theme: event.currentTarget.value as Settings["theme"] })}>
            <option value="auto">as the system</option>
            <option value="light">light</option>
            <option value="dark">dark</option>
          </select>
        </label>
        <label class="number">
          <span>
            API key
            <small>only if the server wants one; kept in this browser</small>
          </span>
          <input type="password" autocomplete="off" value={now.apiKey}
            onChange={(event) => {
              changeSettings({ apiKey: event.currentTarget.value.trim() });
              void connect();
            }}
          />
        </label>
        <CacheView />
        <p class="hint keys">
          <kbd>Enter</kbd> send · <kbd>Shift</kbd>+<kbd>Enter</kbd> new line · <kbd>Esc</kbd> stop ·{" "}
          <kbd>Ctrl</kbd>+<kbd>Shift</kbd>+<kbd>O</kbd> new chat · <kbd>↑</kbd> edit your last message
        </p>
      </div>
    </div>
  );
}
