// What the server remembers of prompts, and where.
import { useEffect, useState } from "preact/hooks";
import { cacheInfo, type CacheInfo, type CachePlace, clearCache } from "./api";
import { settings } from "./state";

const lookEveryMs = 2000;
const names = { device: "on the device", memory: "in memory", disk: "on disk" };

function size(bytes: number): string {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.ceil(bytes / 1e6)} MB`;
}

function about(one: CachePlace, pageTokens: number): string {
  const tokens = `${(one.pages * pageTokens).toLocaleString("en")} tokens`;
  if (one.place !== "device") return `${tokens} · ${size(one.bytes ?? 0)} of ${size(one.limit ?? 0)}`;
  const used = one.used ? `, ${(one.used * pageTokens).toLocaleString("en")} in use` : "";
  return `${tokens} of ${((one.all ?? 0) * pageTokens).toLocaleString("en")}${used}`;
}

export function CacheView() {
  const [info, setInfo] = useState<CacheInfo | null>(null);
  const [problem, setProblem] = useState("");
  const look = async () => setInfo(await cacheInfo(settings.value));
  useEffect(() => {
    void look();
    const timer = setInterval(() => void look(), lookEveryMs);
    return () => clearInterval(timer);
  }, []);
  const clear = async () => {
    try {
      await clearCache(settings.value);
      setProblem("");
    } catch (error) {
      setProblem(error instanceof Error ? error.message : "The server cannot be reached.");
    }
    await look();
  };
  if (!info) return null;
  return (
    <fieldset class="cache">
      <legend>Remembered prompts <small>(read once, found again)</small></legend>
      <dl>
        {info.places.map((one) => (
          <div key={one.place}>
            <dt>{names[one.place]}</dt>
            <dd>{about(one, info.pageTokens)}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="plain" onClick={() => void clear()}>Forget them</button>
      {problem && <p class="problem" role="alert">{problem}</p>}
    </fieldset>
  );
}
