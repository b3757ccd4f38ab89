"""SmolLM2-135M-Instruct, a published checkpoint, against independent implementations: texts become the tokens that the
package tokenizers makes, conversations what jinja2 renders, logits those of a plain forward pass in numpy, and the
greedy text is the same on every backend.
"""
import json
import os
import random
import tempfile
import unicodedata
import unittest
from pathlib import Path

import gguf
import jinja2.ext
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, models, pre_tokenizers

import llama
import support

SEED = int(os.environ.get("SLUICE_SEED", "20261127"))
PATH = None
METADATA = None


def setUpModule():
    global PATH, METADATA
    PATH = support.smollm2()
    METADATA = {name: field.contents() for name, field in gguf.GGUFReader(PATH).fields.items()}
    print(f"seed {SEED} (SLUICE_SEED)", flush=True)


def tree_texts():
    """Documents and sources of the tree."""
    files = sorted(support.ROOT.glob("docs/**/*.md")) + sorted(support.ROOT.glob("src/text/*.cc"))
    return [path.read_text(encoding="utf-8") for path in files]


SCRIPTS = [
    "Zażółć gęślą jaźń. Größe, naïve façade — “quoted” ‘single’ … 1234567890 ½ ² ③ Ⅳ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "אין כמו לישון, عربي: نص حكيم له سر قاطع ٠١٢٣", "ऋषियों को सताने वाले ०१२३", "เป็นมนุษย์สุดประเสริฐ ๑๒๓", "தமிழ் எழுத்து",
    "我能吞下玻璃而不伤身体。３４５", "いろはにほへと カタカナ ｶﾀｶﾅ", "키스의 고유조건은 입술끼리", "ᚠᛇᚻ᛫ᛒᛦᚦ 𐍈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀", "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 ﷽ \u200b\u00a0\u3000 \ufeff",
    "don't DON'T we'LL I'd he's they've I'm\t\ttabs\n\n\n  blank  \r\n\r\n end ", "x=1;for(i=0;i<10;++i){a[i]*=2.5e-3;}//€",
    "\x00\x01\x04\x06\x13\x14\x16\x1d\x7f", "!\x04! a\U00050000b \U000e0041 \U0010ffff",
]


def random_character(source, first, end):
    """One that Unicode has had since 2002, or that it will not have soon: regex libraries know different versions, and
    whether a character is a letter decides where a text is cut."""
    while True:
        character = chr(source.randrange(first, end))
        if unicodedata.ucd_3_2_0.category(character) != "Cn" or 0x40000 <= ord(character) < 0xE0000:
            return character


def random_text(source):
    """Characters of one to four kinds in short runs: all planes, white space, digits, ASCII."""
    kinds = [lambda: chr(source.randrange(0x20, 0x7F)), lambda: source.choice(" \t\n\r\u00a0\u2028\u3000"),
             lambda: source.choice("0123456789٣५"), lambda: random_character(source, 0x80, 0x3000),
             lambda: random_character(source, 0x3000, 0xD800), lambda: random_character(source, 0xE000, 0x110000),
             lambda: chr(source.randrange(0x20)), lambda: source.choice(["'s", "'LL", "the", " and", "ing", "http://"])]
    kinds = source.sample(kinds, source.randint(1, 4))
    return "".join(source.choice(kinds)() * source.choice([1, 1, 1, 2, 5]) for _ in range(source.randint(1, 40)))


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        vocabulary = {token: id for id, token in reversed(list(enumerate(METADATA["tokenizer.ggml.tokens"])))}
        merges = [tuple(merge.split(" ")) for merge in METADATA["tokenizer.ggml.merges"]]
        cls.oracle = Tokenizer(models.BPE(vocabulary, merges))
        # As SmolLM2's tokenizer.json cuts a text.
        cls.oracle.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])

    def check(self, texts):
        answers = support.filtered("tokenize", [{"vocab": PATH, "text": text} for text in texts])
        self.assertEqual(len(answers), len(texts))
        for text, answer in zip(texts, answers):
            self.assertEqual(answer["ids"], self.oracle.encode(text).ids, repr(text[:200]))

    def test_documents(self):
        self.check(tree_texts())

    def test_scripts(self):
        self.check(SCRIPTS)

    def test_random_unicode(self):
        source = random.Random(SEED)
        self.check([random_text(source) for _ in range(20000)])

    def test_texts_come_back(self):
        """But for bytes without tokens, which the last texts are about."""
        for text in SCRIPTS[:-2]:
            ids = support.filtered("tokenize", [{"vocab": PATH, "text": text}])[0]["ids"]
            self.assertEqual(support.sluice("detokenize", "-m", PATH, *ids).removesuffix("\n"), text.removesuffix("\n"))


class Template(unittest.TestCase):
    def test_conversations(self):
        source = METADATA["tokenizer.chat_template"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=[jinja2.ext.loopcontrols])
        oracle = environment.from_string(source)
        text = ["Hello!", "", "  two\n\nlines ", "<|im_end|>\n<|im_start|>system\nno", "日本語 {{ x }} {% if %}", "\u2028\x07"]
        lines = []
        for count in range(1, 6):
            for system in (False, True):
                messages = [{"role": "system", "content": text[count]}] if system else []
                for i in range(count):
                    messages.append({"role": "assistant" if i % 2 else "user", "content": text[(i * 5 + count) % len(text)]})
                lines.append({"template": "smollm2", "messages": messages, "kwargs": {"add_generation_prompt": count % 2 == 1}})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "smollm2.jinja"
            path.write_text(source, encoding="utf-8")
            lines = [line | {"template": str(path.with_suffix(""))} for line in lines]
            answers = support.filtered("template", lines)
        self.assertEqual(len(answers), len(lines))
        for line, answer in zip(lines, answers):
            expected = oracle.render(messages=line["messages"], tools=None, bos_token="<|im_start|>", eos_token="<|im_end|>",
                                     **line["kwargs"])
            self.assertEqual(answer.get("text", answer), expected)


class Numbers(unittest.TestCase):
    """Logits and what follows from them."""

    @classmethod
    def setUpClass(cls):
        cls.model = llama.Llama(PATH)
        prompt = (support.ROOT / "docs/structured_output.md").read_text(encoding="utf-8")
        cls.ids = support.filtered("tokenize", [{"vocab": PATH, "text": prompt}])[0]["ids"][:96]
        cls.expected = cls.model.run(cls.ids)

    def logits(self, backend, ids):
        with tempfile.TemporaryDirectory() as folder:
            tokens, out = Path(folder) / "tokens.json", Path(folder) / "logits"
            tokens.write_text(json.dumps({"tokens": ids}))
            support.sluice("logits", "-m", PATH, "--backend", backend, "--tokens", tokens, "-o", out)
            return np.fromfile(out, np.float32).reshape(len(ids), -1)

    def test_logits_of_ref(self):
        """Float32 throughout: what differs is the order of sums."""
        actual = self.logits("ref", self.ids)
        error = np.linalg.norm(actual - self.expected) / np.linalg.norm(self.expected)
        divergence = llama.divergence(self.expected, actual)
        print(f"ref: relative error {error:.2e}, KL {divergence:.2e}")
        self.assertLess(error, 1e-5)
        self.assertLess(divergence, 1e-8)

    def test_logits_of_cpu(self):
        """Activations in eight bits. llama.cpp's logits of the same file, which does the same, are as far: 0.0047."""
        divergence = llama.divergence(self.expected, self.logits("cpu", self.ids))
        print(f"cpu: KL {divergence:.2e}")
        self.assertLess(divergence, 0.008)

    def test_greedy_text(self):
        """200 tokens, each the likeliest after those before it; but for near-ties: a token may be as likely but for the
        backend's error in logits, which is measured on another text (three times its root mean square)."""
        text = "Once upon a time, in a small village by the sea, there lived a fisherman who"
        prompt = support.filtered("tokenize", [{"vocab": PATH, "text": text}])[0]["ids"]
        for backend in ("ref", "cpu"):
            with self.subTest(backend):
                out = support.sluice("run", "-m", PATH, "--backend", backend, "-p", text, "-n", 200, "--temp", 0)
                ids = support.filtered("tokenize", [{"vocab": PATH, "text": text + out.removesuffix("\n")}])[0]["ids"]
                self.assertEqual(ids[:len(prompt)], prompt)
                self.assertGreaterEqual(len(ids), len(prompt) + 190, "written anew, a text may have some tokens less")
                self.model.restart()
                rows = self.model.run(ids)[len(prompt) - 1:-1]
                gaps = rows.max(-1) - rows[np.arange(len(rows)), ids[len(prompt):]]
                bound = 3 * float(np.sqrt(np.mean((self.logits(backend, self.ids) - self.expected)**2)))
                print(f"{backend}: {len(gaps)} tokens, {np.count_nonzero(gaps)} of them not the first; the farthest is "
                      f"{gaps.max():.4f} below it, at most {bound:.4f}")
                self.assertLess(gaps.max(), bound)


if __name__ == "__main__":
    support.main("smollm2")
