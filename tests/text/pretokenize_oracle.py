#!/usr/bin/python3
"""Cuts random texts with the regexes of each pre-tokenizer, by Python's `regex` module.

    pretokenize_oracle.py COUNT SEED [PRE ...]

prints one JSON object a line: {"pre": ..., "text": ..., "pieces": [...]}. The patterns are written out
as the models' tokenizers publish them, so this file shares nothing with the engine's table. Random
characters come from Unicode 14 and earlier: what later versions assign, two libraries may see
differently.
"""
import json
import random
import sys
import unicodedata

import regex

C = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = (C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943")
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
KIMI_UPPER = r"[[" + UPPER + r"]&&[^\p{Han}]]"
KIMI_LOWER = r"[[" + LOWER + r"]&&[^\p{Han}]]"

PASSES = {
    "glm4": [LLAMA3],
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "qwen35": [
        C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "seed-coder": [
        C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "tekken": [
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "gpt-4o": [
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "deepseek-llm": [
        r"[\r\n]", r"\s?[" + LETTERS + "]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$", CJK, r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""],
    "youtu": [
        "[\uac00-\ud7a3\u3131-\u318e]+"
        "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
        "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{C}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{C}?"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "kimi-k2": [
        r"[\p{Han}]+"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{C}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{C}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
}

SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
# Near misses of white space, and other characters that libraries have disagreed on.
ODD = "\u180e\u200b\u200d\u2060\ufeff\x1c\x1f\x7f\x00\u00ad\u0345\u2160\u24b6\u3005\u3007\u02b0\u01c5\u00aa\ufffd\U000f0000"
POOLS = [
    "abcxyz", "ABCXYZ", "aBcD", "0123456789", "    ", "\n\r", SPACES, "'", "stmdlrveSTMDLRVE",
    "!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~", "\u00e9\u00df\u00c5\u0130\u0153", "\u0436\u0429\u03bb\u03a9\u05d0\u0639",
    "\u4e2d\u6587\u3042\u30ab\ud55c\u3105\u2e80\U00020000", "\uff01\uff0c\u3001\u3002\u201c\u2019\u2026\u2014\uff21\uff11",
    "\U0001f600\U0001f468\U0001f3fd\u2764\ufe0f", "\u0301\u0308\u093f\u0e31", "\u0663\u0967\u00bd\u00b2\u2167\u2460", ODD,
]


def unicode_14():
    """A sample of every kind of assigned character; Python's own table is 14 or older in Python 3.11."""
    assert unicodedata.unidata_version <= "14.0.0"
    every = [chr(c) for c in range(0x110000)
             if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn"]
    return random.Random(1).sample(every, 6000)


def random_text(rng, everything):
    out = []
    for _ in range(rng.randint(1, 14)):
        if rng.random() < 0.08:
            pool = everything
        else:
            pool = rng.choice(POOLS)
        out.extend(rng.choice(pool) for _ in range(rng.choice((1, 1, 1, 2, 3, 4, 7))))
    return "".join(out)


def one_pass(pattern, piece):
    done = 0
    for match in pattern.finditer(piece):
        if match.start() > done:
            yield piece[done:match.start()]
        if match.end() > match.start():
            yield match.group()
            done = match.end()
    if done < len(piece):
        yield piece[done:]


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    everything = unicode_14()
    for pre in sys.argv[3:] or PASSES:
        flags = regex.V1 if pre == "kimi-k2" else regex.V0  # V1: sets may be intersected
        passes = [regex.compile(source, flags) for source in PASSES[pre]]
        rng = random.Random(f"{pre} {seed}")
        for _ in range(count):
            text = random_text(rng, everything)
            pieces = [text]
            for pattern in passes:
                pieces = [part for piece in pieces for part in one_pass(pattern, piece)]
            assert "".join(pieces) == text
            print(json.dumps({"pre": pre, "text": text, "pieces": pieces}))


if __name__ == "__main__":
    main()
