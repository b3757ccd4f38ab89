// Puts script and style into one page, dist/index.html, which names them by their hashes in its policy: nothing
// else may run, and nothing may be loaded from anywhere but the page's own server.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const read = (name) => readFileSync(join(root, "out", name), "utf8").trim();
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

// The closing tag must not occur inside a script, nor what opens a comment in HTML. Both can only stand in
// strings and regular expressions, where \x3c is the same character.
const script = read("page.js").replaceAll("</script", "\\x3c/script").replaceAll("<!--", "\\x3c!--");
const style = read("page.css");
if (style.toLowerCase().includes("</style")) throw new Error("the style sheet holds its own closing tag");

const icon =
  "data:image/svg+xml," +
  encodeURIComponent(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#0e7c86"/>' +
      '<path d="M6 12c3.3-3 6.7-3 10 0s6.7 3 10 0M6 20c3.3-3 6.7-3 10 0s6.7 3 10 0" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round"/></svg>',
  );
const policy = [
  "default-src 'none'",
  `script-src ${hash(script)}`,
  `style-src ${hash(style)}`,
  "img-src data: blob:",
  "connect-src 'self'",
  "form-action 'none'",
  "base-uri 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types dompurify sluice",
].join("; ");

const page = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Sluice</title>
<link rel="icon" href="${icon}">
<style>${style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript.</noscript>
<script>${script}</script>
</body>
</html>
`;
const target = process.argv[2] ?? join(root, "dist", "index.html");
mkdirSync(dirname(target), { recursive: true });
writeFileSync(target, page);
console.log(`${target}: ${page.length} characters`);
