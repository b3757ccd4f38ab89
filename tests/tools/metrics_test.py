#!/usr/bin/python3
"""/metrics as Prometheus reads it, under this server's names and vLLM's, against what requests were told.

usage: metrics_test.py BINARY    BINARY: sluice. prometheus_client's parser reads it, too, where it is installed
"""

import json
import re
import sys
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402

BINARY = sys.argv.pop(1)
NAME = 'ta"les\\of'  # the model's: what has to be escaped in a label
SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(text):
    """Prometheus' text format 0.0.4, strictly: {(name, labels): value}."""
    samples, types = {}, {}
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name not in types, f"{name}: its type is there twice"
            types[name] = kind
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        family = name if name in types else re.sub("_(bucket|sum|count)$", "", name)
        assert family == name or types[family] == "histogram", name
        assert types[family] != "counter" or name.endswith("_total"), name
        unescaped = {key: re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text) for key, text in LABEL.findall(labels or "")}
        key = (name, frozenset(unescaped.items()))
        assert key not in samples, line
        samples[key] = float(value)
    for family in (name for name, kind in types.items() if kind == "histogram"):
        buckets, counts = {}, {}
        for (name, labels), value in samples.items():
            if name == family + "_bucket":
                bound = float(dict(labels)["le"])
                buckets.setdefault(frozenset(x for x in labels if x[0] != "le"), []).append((bound, value))
            if name == family + "_count":
                counts[labels] = value
        assert set(buckets) == set(counts)
        for labels, list_of in buckets.items():
            values = [value for _, value in sorted(list_of)]
            assert values == sorted(values) and values[-1] == counts[labels] and max(list_of)[0] == float("inf"), family
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return samples
    theirs = {(one.name, frozenset(one.labels.items())): one.value for family in text_string_to_metric_families(text) for one in family.samples}
    assert theirs == samples
    return samples


class Metrics(unittest.TestCase):
    def serve(self, *flags):
        server = Server(BINARY, ["-t", "1", "-c", "512", "--cache-tokens", "2048", "--parallel", "2", "--log", "off", *flags])
        server.__enter__()
        self.addCleanup(server.__exit__)
        self.address = server.address

    def get(self, path="/metrics", headers=None):
        with urllib.request.urlopen(urllib.request.Request(self.address + path, headers=headers or {}), timeout=60) as reply:
            return reply.read().decode()

    def ask(self, prompt, tokens, **more):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        request = urllib.request.Request(self.address + "/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def test_vllm_names(self):
        self.serve("--alias", NAME)
        labels = {"engine": "0", "model_name": NAME}

        def value(name, **more):
            return samples[f"vllm:{name}", frozenset({**labels, **more}.items())]

        samples = parse(self.get())
        self.assertEqual(value("time_to_first_token_seconds_count"), 0)
        self.assertEqual(value("cache_config_info", block_size="64", num_gpu_blocks="32"), 1)
        self.assertFalse([name for name, _ in samples if "lora" in name])
        usages = [self.ask([5 + i] * 150, 10)["usage"] for i in (0, 0, 1)]
        usages.append(self.ask([9] * 10, 40, stop=["e"])["usage"])
        usages.append(self.ask("the king and the queen, " * 12, 60)["usage"])
        samples = parse(self.get())
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        self.assertGreaterEqual(cached, 128)
        self.assertEqual([usage["prompt_tokens"] for usage in usages[:4]], [150, 150, 150, 10])
        for name, expected in {
            "num_requests_running": 0,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0,
            "prompt_tokens_total": sum(usage["prompt_tokens"] for usage in usages),
            "prefix_cache_queries_total": sum(usage["prompt_tokens"] for usage in usages),
            "prefix_cache_hits_total": cached,
            "generation_tokens_total": sum(usage["completion_tokens"] for usage in usages),
            "time_to_first_token_seconds_count": 5,
            "e2e_request_latency_seconds_count": 5,
            "request_queue_time_seconds_count": 5,
        }.items():
            self.assertEqual(value(name), expected, name)
        details = [usage["completion_tokens_details"] for usage in usages]
        accepted, rejected = (sum(each[f"{kind}_prediction_tokens"] for each in details) for kind in ("accepted", "rejected"))
        self.assertGreater(accepted, 0, "of a text that repeats itself")
        self.assertEqual(value("spec_decode_num_accepted_tokens_total"), accepted)
        self.assertEqual(value("spec_decode_num_draft_tokens_total"), accepted + rejected)
        between = sum(usage["completion_tokens"] - 1 for usage in usages)
        self.assertEqual(value("inter_token_latency_seconds_count"), between)
        self.assertEqual(value("time_per_output_token_seconds_count"), between)
        self.assertGreaterEqual(value("e2e_request_latency_seconds_sum"), value("time_to_first_token_seconds_sum"))
        ended = {reason: value("request_success_total", finished_reason=reason) for reason in ("stop", "length", "abort", "error")}
        self.assertEqual((ended["stop"] + ended["length"], ended["abort"], ended["error"]), (5, 0, 0))
        self.assertEqual(samples["sluice_requests_total", frozenset()], 5)
        self.assertEqual(samples["sluice_time_to_first_token_seconds_count", frozenset()], 5)

        # While more run than there are places.
        askers = [threading.Thread(target=self.ask, args=([20 + i] * 100, 400)) for i in range(3)]
        for asker in askers:
            asker.start()
        seen = []
        while any(asker.is_alive() for asker in askers):
            samples = parse(self.get())
            seen.append((value("num_requests_running"), value("num_requests_waiting"), value("kv_cache_usage_perc")))
            time.sleep(0.005)
        self.assertIn((2, 1), [(running, waiting) for running, waiting, _ in seen])
        self.assertTrue(all(0 <= usage <= 1 for _, _, usage in seen))
        self.assertTrue(any(usage >= 4 / 32 for running, _, usage in seen if running == 2))

    def test_names_are_chosen(self):
        self.serve("--metrics-names", "sluice")
        self.assertFalse([name for name, _ in parse(self.get()) if not name.startswith("sluice_")])
        self.serve("--metrics-names", "vllm")
        self.assertFalse([name for name, _ in parse(self.get()) if not name.startswith("vllm:")])

    def test_keys(self):
        self.serve("--api-key", "secret")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get()
        self.assertEqual(refused.exception.code, 401)
        refused.exception.close()
        self.assertTrue(parse(self.get(headers={"Authorization": "Bearer secret"})))
        self.serve("--api-key", "secret", "--metrics-without-key")
        self.assertTrue(parse(self.get()))
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get("/slots")
        refused.exception.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
