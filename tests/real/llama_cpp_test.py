"""SmolLM2 against llama.cpp (the package llama-cpp-python) on the same file: the perplexity of a text, and how far both
are from a plain forward pass in float32. What each takes of the processor is told, and not judged: machines are not quiet.
"""
import json
import os
import resource
import time
import unittest

import numpy as np
from llama_cpp import Llama

import llama
import support

WINDOW = 256


def negative_log_likelihood(model, ids, window):
    """Mean over all tokens but each window's first."""
    nats = []
    for begin in range(0, len(ids), window):
        part = ids[begin:begin + window]
        if len(part) < 2:
            break
        model.reset()
        model.eval(part)
        rows = llama.log_softmax(np.array(model.scores[:len(part) - 1]))
        nats.append(-rows[np.arange(len(part) - 1), part[1:]])
    return float(np.concatenate(nats).mean())


def cpu_seconds(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


class SameFile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = support.smollm2()
        cls.text = support.ROOT / "docs/serving.md"
        cls.threads = len(os.sched_getaffinity(0))
        cls.model = Llama(cls.path, n_ctx=WINDOW, n_batch=WINDOW, n_threads=cls.threads, logits_all=True, verbose=False)
        text = cls.text.read_text(encoding="utf-8")
        cls.ids = support.filtered("tokenize", [{"vocab": cls.path, "text": text}])[0]["ids"][:8 * WINDOW]

    def test_tokens(self):
        text = self.text.read_bytes()
        self.assertEqual(self.model.tokenize(text, add_bos=False)[:len(self.ids)], self.ids)

    def test_perplexity(self):
        began, spent = time.monotonic(), cpu_seconds(resource.RUSAGE_SELF)
        expected = np.exp(negative_log_likelihood(self.model, self.ids, WINDOW))
        theirs = time.monotonic() - began, cpu_seconds(resource.RUSAGE_SELF) - spent
        began, spent = time.monotonic(), cpu_seconds(resource.RUSAGE_CHILDREN)
        out = json.loads(support.sluice("perplexity", "-m", self.path, "-f", self.text, "-c", WINDOW, "--windows", 8, "--json"))
        ours = time.monotonic() - began, cpu_seconds(resource.RUSAGE_CHILDREN) - spent
        actual = out["perplexity"]
        print(f"perplexity of {len(self.ids)} tokens: {actual:.4f}, llama.cpp's {expected:.4f}, ratio {actual / expected:.5f}; "
              f"{ours[0]:.1f} s and {ours[1]:.1f} s of CPU, llama.cpp {theirs[0]:.1f} and {theirs[1]:.1f} (with its Python)")
        self.assertLess(abs(actual / expected - 1), 0.005)

    def test_logits_are_as_near(self):
        """Both round activations to eight bits: neither should be much farther from float32 than the other."""
        import tempfile
        ids = self.ids[:96]
        exact = llama.Llama(self.path).run(ids)
        self.model.reset()
        self.model.eval(ids)
        theirs = llama.divergence(exact, np.array(self.model.scores[:len(ids)]))
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/tokens.json", "w") as file:
                json.dump({"tokens": ids}, file)
            support.sluice("logits", "-m", self.path, "--tokens", f"{folder}/tokens.json", "-o", f"{folder}/logits")
            ours = llama.divergence(exact, np.fromfile(f"{folder}/logits", np.float32).reshape(exact.shape))
        print(f"KL from float32: {ours:.5f}, llama.cpp's {theirs:.5f}")
        self.assertLess(ours, 1.5 * theirs)

    def test_greedy_text_is_as_near(self):
        """Of 200 tokens that each writes at temperature 0, how many float32 would have written after those before them,
        and how far the others lie below its first: near ties, which rounding decides in either program."""
        text = "Once upon a time, in a small village by the sea, there lived a fisherman who"
        prompt = self.model.tokenize(text.encode(), add_bos=False)
        exact = llama.Llama(self.path)

        def gaps(ids):
            exact.restart()
            rows = exact.run(ids)[len(prompt) - 1:-1]
            return rows.max(-1) - rows[np.arange(len(rows)), ids[len(prompt):]]

        self.model.reset()
        written = self.model.generate(prompt, top_k=1, temp=0, repeat_penalty=1)
        theirs = gaps(prompt + [next(written) for _ in range(200)])
        out = support.sluice("run", "-m", self.path, "-p", text, "-n", 200, "--temp", 0)
        ours = gaps(support.filtered("tokenize", [{"vocab": self.path, "text": text + out.removesuffix("\n")}])[0]["ids"])
        for name, gap in (("Sluice", ours), ("llama.cpp", theirs)):
            print(f"{name}: {np.count_nonzero(gap)} of {len(gap)} tokens are not float32's first; the farthest is {gap.max():.3f} below it")
        self.assertGreater(len(ours), 190)
        self.assertLess(ours.max(), 2 * theirs.max())


if __name__ == "__main__":
    support.main("llama_cpp")
