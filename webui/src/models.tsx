// Which model is talked to, and what the server's others are doing.
import { useEffect, useRef } from "preact/hooks";
import type { ModelEntry } from "./api";
import { Icon } from "./icons";
import { look, model, modelsOpen, moveModel, pickModel, server } from "./state";

function size(bytes: number | null): string {
  if (bytes === null) return "";
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.max(1, Math.round(bytes / 1e6))} MB`;
}

/** In a few words; nothing of one that is simply there. */
function stateText(one: ModelEntry): string {
  switch (one.state) {
    case "loading": return `loading, ${Math.round(one.progress * 100)}%`;
    case "loaded": return "in memory";
    case "unloading": return "leaving memory";
    case "failed": return "failed";
    default: return "";
  }
}

function Row({ one }: { one: ModelEntry }) {
  const chosen = one.id === server.value?.model;
  return (
    <li class={chosen ? "current" : ""}>
      <button type="button" class="choice" aria-pressed={chosen} onClick={() => pickModel(one.id)}>
        <span class="name" title={one.id}>{one.id}</span>
        <span class="about">{[stateText(one), size(one.bytes)].filter(Boolean).join(" · ")}</span>
        {one.state === "loading" && <progress max={1} value={one.progress} aria-label={`Loading ${one.id}`} />}
        {one.state === "failed" && <span class="problem">{one.problem}</span>}
      </button>
      {one.state === "loaded" && (
        <button type="button" class="plain" aria-label={`Unload ${one.id}`} onClick={() => void moveModel("unload", one.id)}>
          Unload
        </button>
      )}
    </li>
  );
}

/** The model's name; of several, a button that opens their list. */
export function ModelPicker() {
  const panel = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!modelsOpen.value) return;
    void look();
    const outside = (event: Event) => {
      if (!panel.current?.contains(event.target as Node)) modelsOpen.value = false;
    };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [modelsOpen.value]);
  if (!server.value) return null;
  const { models, model: name } = server.value;
  if (models.length < 2) return <span class="model">{name}</span>;
  const moving = model.value && model.value.state !== "loaded" && model.value.state !== "unloaded" ? stateText(model.value) : "";
  return (
    <div class="models" ref={panel}>
      <button type="button" class="plain picker" aria-expanded={modelsOpen.value} aria-haspopup="true" title="Models of this server"
        onClick={() => (modelsOpen.value = !modelsOpen.value)}
      >
        <span class="model">{name}</span>
        {moving && <span class="moving">{moving}</span>}
        <Icon name="down" />
      </button>
      {modelsOpen.value && (
        <div class="list" role="group" aria-label="Models">
          <ul>
            {models.map((one) => (
              <Row key={one.id} one={one} />
            ))}
          </ul>
        </div>
      )}
    </div>
  );
}
