"""Number formats and metadata as the package gguf reads them: random blocks of every format become small models, whose
logits are those of a plain forward pass over what the package decodes; and what `sluice inspect` shows is what is there.
"""
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

import gguf
import numpy as np

import llama
import made_models
import support

sys.path.insert(0, str(support.ROOT / "tests/quant"))
import dequantize  # noqa: E402

SEED = int(os.environ.get("SLUICE_SEED", "20261127"))
# Where the halves of a block's scales (and lesser minima) lie, in bytes.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
          "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [], "MXFP4": [], "NVFP4": []}
TIMES = float(os.environ.get("SLUICE_CASES", "1"))


def random_blocks(kind, count, source, scale=None):
    """Random bits; scales are any finite halves, or up to `scale`."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = source.integers(0, 256, (count, size), np.uint8)
    for at in SCALES.get(kind.name, []):
        if scale is None:
            halves = source.integers(0, 1 << 16, count).astype("<u2")
            halves[(halves & 0x7C00) == 0x7C00] ^= 0x4000
        else:
            halves = source.uniform(-scale, scale, count).astype("<f2")
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(count, 2)
    if scale is not None and kind.name == "IQ1_M":  # a half in the upper four bits of four words
        half = source.uniform(-scale, scale, count).astype("<f2").view("<u2")
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | ((half >> 4 * i & 15) << 4).astype(np.uint8)
    if scale is not None and kind.name == "MXFP4":  # an exponent a block
        blocks[:, 0] = source.integers(119, 123, count)
    if scale is not None and kind.name == "NVFP4":  # a small float every 16 numbers
        blocks[:, :4] = source.integers(1, 24, (count, 4))
    return blocks


class Formats(unittest.TestCase):
    def test_oracle_decodes_as_gguf(self):
        """The tree's own oracle, which the engine's tests of formats go by, is right: 100,000 blocks of each
        (SLUICE_CASES times as many)."""
        count = int(100000 * TIMES)
        print(f"{len(SCALES)} formats, {count} blocks of each, seed {SEED}", flush=True)
        for name in SCALES:
            with self.subTest(name):
                kind = gguf.GGMLQuantizationType[name]
                blocks = random_blocks(kind, count, np.random.default_rng(SEED))
                with np.errstate(over="ignore", invalid="ignore"):
                    theirs = gguf.dequantize(blocks, kind).astype(np.float64)
                    ours = dequantize.decode(name, blocks.reshape(-1)).reshape(theirs.shape).astype(np.float64)
                finite = np.isfinite(theirs) & np.isfinite(ours)
                self.assertGreater(finite.mean(), 0.95)
                # Theirs is rounded at every operation; of a scale and a minimum a difference may be left.
                largest = np.abs(np.where(finite, theirs, 0)).max(1, keepdims=True)
                error = np.abs(np.where(finite, theirs - ours, 0))
                self.assertLess((error / np.maximum(largest, 1e-30)).max(), 1e-6)

    def test_models_of_every_format(self):
        tokens = [*b"Sluice reads numbers of every format."]
        for name in [*SCALES, "BF16", "F16", "F32"]:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                kind, source = gguf.GGMLQuantizationType[name], np.random.default_rng(SEED)
                length, size = gguf.GGML_QUANT_SIZES[kind]

                def blocks(rows, columns):
                    if name in ("F32", "F16", "BF16"):
                        numbers = source.normal(0, 0.05, (rows, columns)).astype(np.float32)
                        return gguf.quantize(numbers, kind) if name == "BF16" else numbers.astype(name.replace("F", "float").lower())
                    # Blocks of 256 have scales of scales.
                    made = random_blocks(kind, rows * columns // length, source, scale=0.001 if length < 256 else 0.0001)
                    return made.reshape(rows, columns // length * size)

                path = Path(folder) / "made.gguf"
                made_models.of_blocks(path, kind, blocks, SEED)
                (Path(folder) / "tokens.json").write_text(json.dumps({"tokens": tokens}))
                # The reference is float32 throughout; the CPU's cache is of halves, and its activations have eight bits
                # where weights are of blocks.
                for backend, cache, limit in (("ref", np.float32, 1e-5),
                                              ("cpu", np.float16, 0.03 if length > 1 else 1e-4)):
                    expected = llama.Llama(path, cache).run(tokens)
                    out = Path(folder) / backend
                    support.sluice("logits", "-m", path, "--tokens", Path(folder) / "tokens.json", "-o", out, "--backend", backend)
                    actual = np.fromfile(out, np.float32).reshape(expected.shape)
                    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
                    print(f"{name} on {backend}: relative error {error:.1e}")
                    self.assertLess(error, limit)

    def test_metadata(self):
        path = support.smollm2()
        shown = json.loads(support.sluice("inspect", "-m", path, "--json"))
        reader = gguf.GGUFReader(path)
        keys = {item["key"] for item in shown["metadata"]} if isinstance(shown["metadata"], list) else set(shown["metadata"])
        self.assertEqual(keys, {name for name in reader.fields if not name.startswith("GGUF.")})
        self.assertEqual({(t["name"], t["type"]) for t in shown["tensors"]},
                         {(t.name, t.tensor_type.name) for t in reader.tensors})


if __name__ == "__main__":
    support.main("formats")
