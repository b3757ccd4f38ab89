// A Chromium for the tests: Debian's, without anything that would reach for the network.
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

export const executable = process.env.CHROMIUM ?? "/usr/bin/chromium";
export const skip = existsSync(executable) ? false : `no Chromium at ${executable} (Debian package chromium)`;

export async function openBrowser({ flags = [], ...options } = {}) {
  const profile = mkdtempSync(join(tmpdir(), "sluice-webui-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: executable,
    headless: true,
    args: [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", ...flags,
    ],
    viewport: { width: 1200, height: 800 },
    acceptDownloads: true,
    ...options,
  });
  return {
    context,
    async close() {
      await context.close();
      rmSync(profile, { recursive: true, force: true });
    },
  };
}
