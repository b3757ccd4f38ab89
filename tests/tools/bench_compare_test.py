#!/usr/bin/env python3
"""The comparison of benchmarks with records: losses, gains, noise, first figures, nonsense."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_compare.py"


def record(speed: float, deviation: float = 0.1, test: str = "tg128", prompt: int = 0, ubatch: int = 512) -> dict:
    return {"n_prompt": prompt, "n_batch": 2048, "n_ubatch": ubatch,
            "device": "A CPU(R) 9, avx2, 2 threads, kernels 1", "model_type": "m 1B Q4_0", "model_size": 5.6e8, "test": test,
            "avg_ts": speed, "stddev_ts": deviation, "share_of_limit": 0.5, "peak_bytes_per_second": 1e10,
            "build_commit": "abc", "test_time": "2026-01-01T00:00:00Z"}


class BenchCompare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_tool(self, records, *flags):
        return subprocess.run([sys.executable, TOOL, *flags, self.folder.name], input=json.dumps(records), text=True,
                              capture_output=True)

    def saved(self):
        return json.loads((Path(self.folder.name) / "a-cpu-9-avx2-2-threads.json").read_text())

    def test_first_figures_are_records(self):
        done = self.run_tool([record(100)], "--save")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no record yet", done.stdout)
        self.assertEqual(self.saved()["m 1B Q4_0 0.56 GB, tg128"]["avg_ts"], 100)

    def test_a_loss_beyond_five_percent_is_pointed_at(self):
        self.run_tool([record(100)], "--save")
        self.assertEqual(self.run_tool([record(96)]).returncode, 0)
        lost = self.run_tool([record(94)])
        self.assertEqual(lost.returncode, 3)
        self.assertIn("-6.0 % of the record 100.00 LOSS", lost.stdout)

    def test_noise_is_no_loss(self):
        self.run_tool([record(100)], "--save")
        self.assertEqual(self.run_tool([record(94, deviation=5)]).returncode, 0)

    def test_only_better_figures_replace_a_record(self):
        self.run_tool([record(100)], "--save")
        self.run_tool([record(90)], "--save")
        self.assertEqual(self.saved()["m 1B Q4_0 0.56 GB, tg128"]["avg_ts"], 100)
        self.run_tool([record(110)], "--save")
        self.assertEqual(self.saved()["m 1B Q4_0 0.56 GB, tg128"]["avg_ts"], 110)

    def test_newer_kernels_are_compared_with_older_ones(self):
        self.run_tool([record(100)], "--save")
        newer = self.run_tool([{**record(90), "device": "A CPU(R) 9, avx2, 2 threads, kernels 2"}])
        self.assertEqual(newer.returncode, 3)

    def test_without_save_nothing_is_written(self):
        self.run_tool([record(100)])
        self.assertEqual(list(Path(self.folder.name).iterdir()), [])

    def test_prompts_in_larger_steps_are_other_tests(self):
        def prompt(speed, ubatch):
            return record(speed, test="pp1024", prompt=1024, ubatch=ubatch)
        self.run_tool([prompt(100, 2048)], "--save")
        smaller = self.run_tool([prompt(80, 512)], "--save")
        self.assertEqual(smaller.returncode, 0, smaller.stdout)
        self.assertEqual(self.run_tool([prompt(80, 1024)]).returncode, 3)
        self.assertEqual(sorted(self.saved()), ["m 1B Q4_0 0.56 GB, pp1024", "m 1B Q4_0 0.56 GB, pp1024 by 512"])

    def test_several_benches_may_follow_one_another(self):
        arrays = json.dumps([record(100)]) + "\n" + json.dumps([record(50, test="tg32")], indent=2) + "\n"
        done = subprocess.run([sys.executable, TOOL, "--save", self.folder.name], input=arrays, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.saved()), 2)

    def test_nonsense_is_an_error(self):
        self.assertEqual(self.run_tool([{"a": 1}]).returncode, 1)
        self.assertEqual(subprocess.run([sys.executable, TOOL], capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
