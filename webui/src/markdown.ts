// Markdown to HTML that cannot do anything. Whatever a model writes is text from a stranger: marked makes HTML
// of it, with raw HTML shown as text, and DOMPurify lets through a short list of tags and attributes. The
// page's policy forbids scripts besides its own in any case.
import DOMPurify from "dompurify";
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { Marked, type Tokens } from "marked";
import { math } from "./math";

const languages = {
  bash, c, cpp, csharp, css, diff, go, ini, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml,
};
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);

const escape = (text: string) =>
  text.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]!);

const marked = new Marked({
  gfm: true,
  breaks: false,
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => escape(text),
    // A picture would be a request to somebody else's server: it becomes a link.
    image({ href, text }: Tokens.Image) {
      return `<a href="${escape(href)}">${escape(text || href)}</a>`;
    },
    code({ text, lang }: Tokens.Code) {
      const name = (lang ?? "").trim().split(/\s+/)[0].toLowerCase();
      const known = name !== "" && hljs.getLanguage(name) !== undefined && text.length < 50_000;
      const body = known ? hljs.highlight(text, { language: name, ignoreIllegals: true }).value : escape(text);
      return (
        `<div class="code"><div class="code-head"><span>${escape(name || "text")}</span>` +
        `<button type="button" class="copy-code">Copy</button></div><pre tabindex="0"><code>${body}</code></pre></div>`
      );
    },
    table(token: Tokens.Table) {
      const cell = (tag: string, content: Tokens.TableCell) =>
        `<${tag}${content.align ? ` class="to-${content.align}"` : ""}>${this.parser.parseInline(content.tokens)}</${tag}>`;
      const head = token.header.map((one) => cell("th", one)).join("");
      const rows = token.rows.map((row) => `<tr>${row.map((one) => cell("td", one)).join("")}</tr>`).join("");
      return `<div class="table"><table><thead><tr>${head}</tr></thead><tbody>${rows}</tbody></table></div>`;
    },
  },
});

marked.use(math(escape));

/** What KaTeX makes of formulas. */
const mathTags = [
  "annotation", "math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mpadded", "mphantom", "mroot", "mrow", "ms", "mspace",
  "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "semantics",
];
const plainAttributes = [
  "title", "class", "start", "type", "checked", "disabled", "tabindex", "dir",
  // of mathematics
  "accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display", "displaystyle", "encoding", "fence",
  "height", "linebreak", "linethickness", "lspace", "mathbackground", "mathcolor", "mathsize", "mathvariant", "maxsize", "minsize",
  "movablelimits", "notation", "rowlines", "rowspacing", "rspace", "scriptlevel", "separator", "side", "stretchy", "symmetric",
  "voffset", "width", "xmlns",
];

const purifyOptions = {
  ALLOWED_TAGS: [
    ...mathTags,
    "a", "b", "blockquote", "br", "button", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i",
    "input", "li", "ol", "p", "pre", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", ...plainAttributes],
  // Their values name nothing that could be fetched: they are not held against the addresses that are allowed.
  ADD_URI_SAFE_ATTR: plainAttributes,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  if (node.tagName === "INPUT") {
    node.setAttribute("disabled", "");
    if (node.getAttribute("type") !== "checkbox") node.remove();
  }
});

// Only what is still being written changes, so that a long answer is not made anew for each token.
const known = new Map<string, string>();

function blockHtml(raw: string, html: () => string): string {
  let out = known.get(raw);
  if (out === undefined) {
    out = DOMPurify.sanitize(html(), purifyOptions) as unknown as string;
    if (known.size > 2000) known.clear();
    known.set(raw, out);
  }
  return out;
}

const policy = (globalThis as { trustedTypes?: { createPolicy(name: string, rules: object): { createHTML(html: string): unknown } } })
  .trustedTypes?.createPolicy("sluice", { createHTML: (html: string) => html });

/** What innerHTML takes under the page's policy; for HTML that DOMPurify made. */
export function trusted(html: string): string {
  return (policy ? policy.createHTML(html) : html) as string;
}

/** The blocks of a text, each as HTML. */
export function renderBlocks(text: string): string[] {
  const tokens = marked.lexer(text);
  const { links } = tokens;
  return tokens
    .filter((token) => token.type !== "space" && token.type !== "def")
    .map((token) => blockHtml(token.raw, () => marked.parser(Object.assign([token], { links }))));
}
