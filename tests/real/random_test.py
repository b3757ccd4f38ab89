"""Random cases against independent implementations, many more than the tests of every day run: texts cut by the regexes
of all pre-tokenizers (Oniguruma, in the package tokenizers), texts made tokens of (the same package), conversations
rendered by real chat templates (transformers).

SLUICE_SEED: another seed. SLUICE_CASES: so many times as many cases (1).
"""
import copy
import datetime
import json
import os
import random
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from jinja2.sandbox import SandboxedEnvironment
from tokenizers import Regex, pre_tokenizers
from transformers.utils import chat_template_utils

import smollm2_test
import support

sys.path.insert(0, str(support.ROOT / "tests/text"))
import pretokenize_oracle  # noqa: E402

SEED = smollm2_test.SEED
TIMES = float(os.environ.get("SLUICE_CASES", "1"))
PIECE = 20000  # cases a process of `sluice debug`
TEMPLATES = support.ROOT / "tests/text/templates"


def pieces(count):
    """Numbers of cases that make up count."""
    count = int(count * TIMES)
    return [min(PIECE, count - at) for at in range(0, count, PIECE)]


def tell(what, count, disagreements):
    print(f"{what}: {count} cases, seed {SEED}, {len(disagreements)} disagreements", flush=True)
    for one in disagreements[:5]:
        print("  " + repr(one)[:1500], flush=True)


class RandomTexts(unittest.TestCase):
    def test_random_pre_tokenizers(self):
        """Each model's cuts, 14 tables of patterns."""
        everything, wrong, total = pretokenize_oracle.unicode_14(), [], 0
        for pre, sources in pretokenize_oracle.PASSES.items():
            oracle = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(source), "isolated") for source in sources])
            source = random.Random(f"{pre} {SEED}")
            for count in pieces(20000):
                texts = [pretokenize_oracle.random_text(source, everything) for _ in range(count)]
                answers = support.filtered("pretokenize", [{"pre": pre, "text": text} for text in texts])
                for text, answer in zip(texts, answers, strict=True):
                    expected = [piece for piece, _ in oracle.pre_tokenize_str(text)]
                    if answer.get("pieces") != expected:
                        wrong.append((pre, text, answer, expected))
                total += count
        tell("pre-tokenizers", total, wrong)
        self.assertFalse(wrong)

    def test_random_tokens(self):
        smollm2_test.setUpModule()
        smollm2_test.Tokens.setUpClass()
        source, wrong, total = random.Random(f"tokens {SEED}"), [], 0
        for count in pieces(200000):
            texts = [smollm2_test.random_text(source) for _ in range(count)]
            answers = support.filtered("tokenize", [{"vocab": smollm2_test.PATH, "text": text} for text in texts])
            expected = smollm2_test.Tokens.oracle.encode_batch(texts)
            wrong += [(text, answer, other.ids) for text, answer, other in zip(texts, answers, expected, strict=True)
                      if answer.get("ids") != other.ids]
            total += count
        tell("tokens", total, wrong)
        self.assertFalse(wrong)


class Conversations:
    """Random ones: every role, calls with arguments of every kind, reasoning, parts of content, tools."""
    TEXTS = ["Hello!", "", "  two\n\nlines \n", "<|im_end|>", "</think>\n\nx", "<think>a</think>b", "日本語 {{ x }} {% if %}",
             "\u2028\x07'\"\\", "<tool_call>", "é😀", "[INST]", "0", "None", "a" * 50]

    def __init__(self, seed):
        self.source = random.Random(seed)

    def text(self):
        return "".join(self.source.choice(self.TEXTS) for _ in range(self.source.choice((1, 1, 1, 2, 3))))

    def value(self, depth=2):
        kinds = [self.text, lambda: self.source.randint(-10**6, 10**6), lambda: self.source.choice((0.5, -1.25, 3.0, 1e-7, 1e22)),
                 lambda: self.source.choice((True, False, None))]
        if depth:
            kinds += [lambda: [self.value(depth - 1) for _ in range(self.source.randint(0, 3))], lambda: self.object(depth - 1)]
        return self.source.choice(kinds)()

    def object(self, depth):
        names = self.source.sample(["city", "days", "naïve", "a b", "items", "x", "quo\"te"], self.source.randint(0, 3))
        return {name: self.value(depth) for name in names}

    def tool(self):
        name = self.source.choice(("weather", "search", "run_code"))
        kinds = [{"type": "string", "description": self.text()}, {"type": "integer"}, {"type": "string", "enum": ["a", "b"]},
                 {"type": "array", "items": {"type": "number"}}, {"type": "object", "properties": {"x": {"type": "boolean"}}}]
        properties = {key: self.source.choice(kinds) for key in self.source.sample(["city", "days", "x"], self.source.randint(0, 3))}
        return {"type": "function", "function": {"name": name, "description": self.text(), "parameters": {
            "type": "object", "properties": properties, "required": list(properties)[:1]}}}

    def assistant(self):
        message = {"role": "assistant", "content": self.text()}
        if self.source.random() < 0.3:
            # Transformers gives it to templates under both names.
            message["reasoning_content"] = message["thinking"] = self.text()
        if self.source.random() < 0.4:
            message["tool_calls"] = [{"type": "function", "id": f"call_{i}", "function": {
                "name": self.source.choice(("weather", "search")), "arguments": self.object(2)}}
                for i in range(self.source.randint(1, 2))]
            if self.source.random() < 0.3:
                message["content"] = self.source.choice((None, ""))
        return message

    def next(self):
        messages = [{"role": "system", "content": self.text()}] if self.source.random() < 0.4 else []
        for _ in range(self.source.randint(1, 3)):
            content = self.text()
            if self.source.random() < 0.1:
                content = [{"type": "text", "text": self.text()} for _ in range(self.source.randint(0, 2))]
            messages.append({"role": "user", "content": content})
            if self.source.random() < 0.7:
                messages.append(self.assistant())
                for call in messages[-1].get("tool_calls", []):
                    if self.source.random() < 0.9:
                        messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"],
                                         "content": self.text()})
        if self.source.random() < 0.05:
            self.source.shuffle(messages)
        tools = [self.tool() for _ in range(self.source.randint(1, 2))] if self.source.random() < 0.4 else None
        arguments = {"add_generation_prompt": self.source.random() < 0.5, "bos_token": "<s>", "eos_token": "</s>"}
        if self.source.random() < 0.3:
            arguments["enable_thinking"] = self.source.random() < 0.5
        return {"messages": messages, "tools": tools, "kwargs": arguments}


class RandomConversations(unittest.TestCase):
    def test_random_conversations(self):
        """What both refuse counts as agreement; the words of a refusal are not compared. A template may change its own
        lists, which transformers' sandbox forbids: Kimi K2's published template does."""
        class StandingClock(datetime.datetime):
            """As `sluice debug template` has it."""
            @classmethod
            def now(cls, tz=None):
                return cls(2025, 7, 15, 14, 30, 5)

        def rendered(source, line):
            line = copy.deepcopy(line)
            try:
                texts, _ = chat_template_utils.render_jinja_template(
                    [line["messages"]], tools=line["tools"], chat_template=source, **line["kwargs"])
                return texts[0]
            except Exception:  # noqa: BLE001  a template's refusal, or of what it does with a value
                return None

        wrong, total, refused = [], 0, 0
        with mock.patch.object(chat_template_utils, "datetime", StandingClock), \
                mock.patch.object(chat_template_utils, "ImmutableSandboxedEnvironment", SandboxedEnvironment):
            for path in sorted(TEMPLATES.glob("*.jinja")):
                made = Conversations(f"{path.name} {SEED}")
                source = path.read_text(encoding="utf-8")
                for count in pieces(5000):
                    lines = [made.next() for _ in range(count)]
                    answers = support.filtered("template", [line | {"template": str(path.with_suffix(""))} for line in lines])
                    for line, answer in zip(lines, answers, strict=True):
                        expected = rendered(source, line)
                        refused += expected is None
                        if answer.get("text") != expected:
                            wrong.append((path.name, line, answer, expected))
                    total += count
        print(f"{refused} conversations are refused by both", flush=True)
        tell("conversations", total, wrong)
        self.assertFalse(wrong)


if __name__ == "__main__":
    support.main("random")
