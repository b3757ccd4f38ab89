"""SmolLM2 in transformers, which reads the same GGUF file and makes float32 of it: logits, the greedy text, tokens and
conversations of both."""
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import llama
import support

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except (ImportError, OSError, ValueError) as error:  # a build for GPUs, whose libraries are not there
    print("skipped: real.transformers: torch does not load, its build for CPUs does: " + str(error).splitlines()[0])
    sys.exit(0)

TEXT = "Once upon a time, in a small village by the sea, there lived a fisherman who"


class SameFile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = support.smollm2()
        where = dict(gguf_file=Path(cls.path).name)
        cls.tokenizer = AutoTokenizer.from_pretrained(Path(cls.path).parent, **where)
        cls.model = AutoModelForCausalLM.from_pretrained(Path(cls.path).parent, **where, dtype=torch.float32).eval()
        cls.document = (support.ROOT / "docs/structured_output.md").read_text(encoding="utf-8")
        cls.ids = support.filtered("tokenize", [{"vocab": cls.path, "text": cls.document}])[0]["ids"][:96]
        cls.expected = cls.logits_of_transformers(cls.ids)

    @classmethod
    def logits_of_transformers(cls, ids):
        with torch.no_grad():
            return cls.model(torch.tensor([ids])).logits[0].numpy()

    def logits(self, backend, ids):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tokens").write_text(json.dumps({"tokens": ids}))
            support.sluice("logits", "-m", self.path, "--backend", backend, "--tokens", folder + "/tokens", "-o", folder + "/out")
            return np.fromfile(folder + "/out", np.float32).reshape(len(ids), -1)

    def test_transformers_tokens(self):
        # No digits of other scripts: what transformers makes of a GGUF file cuts none from the words before them, as
        # the model's own tokenizer does.
        text = self.document + " <|im_start|> Zażółć 日本語 \t\n\n  x"
        ids = support.filtered("tokenize", [{"vocab": self.path, "text": text}])[0]["ids"]
        self.assertEqual(ids, self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def test_transformers_logits_of_ref(self):
        actual = self.logits("ref", self.ids)
        error = np.linalg.norm(actual - self.expected) / np.linalg.norm(self.expected)
        print(f"ref: relative error {error:.2e}, KL {llama.divergence(self.expected, actual):.2e}")
        self.assertLess(error, 1e-5)

    def test_transformers_logits_of_cpu(self):
        divergence = llama.divergence(self.expected, self.logits("cpu", self.ids))
        print(f"cpu: KL {divergence:.2e}")
        self.assertLess(divergence, 0.008)

    def test_transformers_greedy_text(self):
        """200 tokens, by transformers' own generate: the reference's are the same; the CPU's are the likeliest after
        those before them but for near-ties (three times the root mean square of its error in logits)."""
        prompt = self.tokenizer.encode(TEXT)
        with torch.no_grad():
            made = self.model.generate(torch.tensor([prompt]), max_new_tokens=200, min_new_tokens=200, do_sample=False)
        expected = self.tokenizer.decode(made[0][len(prompt):])
        actual = support.sluice("run", "-m", self.path, "--backend", "ref", "-p", TEXT, "-n", 200, "--temp", 0)
        self.assertEqual(actual.removesuffix("\n"), expected.removesuffix("\n"))
        text = TEXT + support.sluice("run", "-m", self.path, "--backend", "cpu", "-p", TEXT, "-n", 200, "--temp", 0)
        ids = support.filtered("tokenize", [{"vocab": self.path, "text": text.removesuffix("\n")}])[0]["ids"]
        self.assertGreaterEqual(len(ids), len(prompt) + 190)
        rows = self.logits_of_transformers(ids)[len(prompt) - 1:-1]
        gaps = rows.max(-1) - rows[np.arange(len(rows)), ids[len(prompt):]]
        bound = 3 * float(np.sqrt(np.mean((self.logits("cpu", self.ids) - self.expected)**2)))
        print(f"cpu: {np.count_nonzero(gaps)} of {len(gaps)} tokens are not the first; the farthest is {gaps.max():.4f} below it, "
              f"at most {bound:.4f}")
        self.assertLess(gaps.max(), bound)


if __name__ == "__main__":
    support.main("transformers")
