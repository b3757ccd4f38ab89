// Mathematics in Markdown: $...$ and \(...\) within a line, $$...$$ and \[...\] on their own, as MathML, which
// browsers draw by themselves. What KaTeX cannot read is shown as it was written, its backslashes too.
import katex from "katex";
import type { MarkedExtension, Tokens } from "marked";

const mostCharacters = 4000;

/** Addresses, pictures and styles: what is of no use here is no formula. */
const untrusted = () => {
  throw new Error("not in formulas of strangers");
};

function render(tex: string, display: boolean): string | null {
  try {
    return katex.renderToString(tex, {
      output: "mathml", displayMode: display, throwOnError: true, strict: false, trust: untrusted, maxSize: 20, maxExpand: 200,
    });
  } catch {
    return null;
  }
}

/** Whether what stands between two dollars is more likely prose about money. */
function isProse(tex: string) {
  return !tex.includes("\\") && /(^|[\s,;])[A-Za-z]{3,}([\s,;.]|$)/.test(tex);
}

interface MathToken extends Tokens.Generic {
  tex: string;
  display: boolean;
}

function read(source: string, rules: [RegExp, boolean][]): MathToken | undefined {
  for (const [rule, display] of rules) {
    const found = rule.exec(source);
    if (!found || found[1].length > mostCharacters || (found[0][0] === "$" && !display && isProse(found[1]))) continue;
    return { type: "math", raw: found[0], tex: found[1].trim(), display };
  }
  return undefined;
}

const onItsOwn: [RegExp, boolean][] = [
  [/^ {0,3}\$\$((?:\\[^]|[^\\$])+?)\$\$[^\S\n]*(?:\n|$)/, true],
  [/^ {0,3}\\\[((?:\\[^\]]|[^\\])+?)\\\][^\S\n]*(?:\n|$)/, true],
];
const withinALine: [RegExp, boolean][] = [
  [/^\$\$((?:\\[^]|[^\\$])+?)\$\$/, true],
  [/^\\\[((?:\\[^\]]|[^\\])+?)\\\]/, true],
  [/^\\\(((?:\\[^)]|[^\\])+?)\\\)/, false],
  // As Pandoc has it: no space inside the dollars, and no digit behind them.
  [/^\$(?![\s$])((?:\\[^\n]|[^\\$\n])*?(?:\\[^\n]|[^\\$\s]))\$(?![\d$])/, false],
];

/** escape: makes text safe in HTML. */
export function math(escape: (text: string) => string): MarkedExtension {
  const renderer = (token: Tokens.Generic) => {
    const { tex, display, raw } = token as MathToken;
    const html = render(tex, display) ?? `<code>${escape(raw.trim())}</code>`;
    return display ? `<div class="math">${html}</div>` : html;
  };
  const start = (source: string) => {
    const at = source.search(/\$|\\[([]/);
    return at < 0 ? undefined : at;
  };
  return {
    extensions: [
      {
        name: "mathBlock", level: "block", renderer, start: (source) => source.match(/(?:^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
        tokenizer: (source) => {
          const token = read(source, onItsOwn);
          return token && { ...token, type: "mathBlock" };
        },
      },
      { name: "math", level: "inline", renderer, start, tokenizer: (source) => read(source, withinALine) },
    ],
  };
}
