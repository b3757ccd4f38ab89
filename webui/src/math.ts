// Mathematics in Markdown: $...$ and \(...\) within a line, $$...$$ and \[...\] on their own, as MathML, which
// browsers draw by themselves. What KaTeX cannot read is shown as it was written, its backslashes too.
import katex from "katex";
import type { MarkedExtension, Tokens } from "marked";

const mostCharacters = 4000;

/** Addresses, pictures and styles: what is of no use here is no formula. */
const untrusted = () => {
  throw new Error("not in formulas of strangers");
};

// Where the letters of a style begin in Unicode: A, a, 0. Styles that lack one of them leave it as it is.
const styles: Record<string, number[]> = {
  bold: [0x1d400, 0x1d41a, 0x1d7ce],
  italic: [0x1d434, 0x1d44e, 0],
  "bold-italic": [0x1d468, 0x1d482, 0],
  script: [0x1d49c, 0x1d4b6, 0],
  fraktur: [0x1d504, 0x1d51e, 0],
  "double-struck": [0x1d538, 0x1d552, 0x1d7d8],
  "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2],
  "bold-sans-serif": [0x1d5d4, 0x1d5ee, 0x1d7ec],
  "sans-serif-italic": [0x1d608, 0x1d622, 0],
  monospace: [0x1d670, 0x1d68a, 0x1d7f6],
};
// Letters that Unicode had before the others, and has elsewhere.
const elsewhere: Record<string, string> = {
  italic: "hℎ", script: "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ", fraktur: "CℭHℌIℑRℜZℨ", "double-struck": "CℂHℍNℕPℙQℚRℝZℤ",
};

/** Letters of a style as characters of their own: browsers know no style but "normal". */
function styled(html: string) {
  return html.replace(/<(m[a-z]+) mathvariant="([a-z-]+)">([^<]*)</g, (all, tag: string, style: string, text: string) => {
    const begins = styles[style];
    if (!begins || text.includes("&")) return all;
    const letters = Array.from(text, (letter) => {
      const place = (elsewhere[style] ?? "").indexOf(letter);
      if (place >= 0 && place % 2 === 0) return elsewhere[style][place + 1];
      const from = ["A", "a", "0"].findIndex((first, i) => letter >= first && letter <= ["Z", "z", "9"][i]);
      return begins[from] ? String.fromCodePoint(begins[from] + letter.charCodeAt(0) - "Aa0".charCodeAt(from)) : letter;
    });
    return `<${tag}>${letters.join("")}<`;
  });
}

function render(tex: string, display: boolean): string | null {
  try {
    return styled(katex.renderToString(tex, {
      output: "mathml", displayMode: display, throwOnError: true, strict: false, trust: untrusted, maxSize: 20, maxExpand: 200,
    }));
  } catch {
    return null;
  }
}

/** Marks the page where no font says how far to lower a subscript: browsers leave it on the line there. */
export function markMissingFont() {
  const element = (name: string, ...inner: (string | Element)[]) => {
    const one = document.createElementNS("http://www.w3.org/1998/Math/MathML", name);
    one.append(...inner);
    return one;
  };
  const base = element("mi", "x"), below = element("mi", "x");
  const probe = element("math", element("msub", base, below));
  document.body.append(probe);
  const lowered = below.getBoundingClientRect().bottom > base.getBoundingClientRect().bottom;
  document.documentElement.classList.toggle("no-math-font", !lowered);
  probe.remove();
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
