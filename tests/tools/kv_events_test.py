#!/usr/bin/python3
"""serve --kv-events as a router hears it: whoever follows the events foretells how much of a prompt is cached.

usage: kv_events_test.py BINARY    BINARY: sluice. Needs python3-zmq and libzmq5
"""

import json
import random
import struct
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from pathlib import Path

try:
    import zmq
except ImportError:
    print("skipped: kv_events: there is no python3-zmq")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from serving import Server  # noqa: E402  (its folder has to be in the path)

BINARY = sys.argv.pop(1)
BLOCK = 64
FLAGS = ["-t", "1", "-c", "512", "--cache-tokens", "1024", "--parallel", "4", "--log", "off"]


def unpack(data):
    """msgpack, by its specification."""
    value, rest = unpack_from(memoryview(data))
    assert not rest, "bytes behind the value"
    return value


def unpack_from(data):
    kind, rest = data[0], data[1:]

    def sized(form):
        size = struct.calcsize(form)
        return struct.unpack(form, rest[:size])[0], rest[size:]

    def text(length, at):
        return bytes(at[:length]).decode(), at[length:]

    def items(count, at):
        out = []
        for _ in range(count):
            value, at = unpack_from(at)
            out.append(value)
        return out, at

    def pairs(count, at):
        flat, at = items(2 * count, at)
        return dict(zip(flat[::2], flat[1::2])), at

    if kind <= 0x7F:
        return kind, rest
    if kind <= 0x8F:
        return pairs(kind & 15, rest)
    if kind <= 0x9F:
        return items(kind & 15, rest)
    if kind <= 0xBF:
        return text(kind & 31, rest)
    if kind >= 0xE0:
        return kind - 256, rest
    if kind == 0xC0:
        return None, rest
    numbers = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if kind in numbers:
        return sized(numbers[kind])
    lengths = {0xD9: (">B", text), 0xDA: (">H", text), 0xDB: (">I", text), 0xDC: (">H", items), 0xDD: (">I", items), 0xDE: (">H", pairs)}
    form, read = lengths[kind]
    count, at = sized(form)
    return read(count, at)


class Router:
    """The tree of blocks, as the events tell it."""

    def __init__(self):
        self.blocks = {}  # hash: (parent, tokens)
        self.index = {}  # (parent, tokens): hash
        self.stored = self.removed = self.cleared = 0

    def hear(self, payload):
        seconds, events, rank = unpack(payload)
        assert abs(seconds - time.time()) < 600 and rank == 0
        for event in events:
            getattr(self, event[0])(*event[1:])

    def BlockStored(self, hashes, parent, tokens, size, lora, medium, lora_name):
        assert (size, lora, medium, lora_name) == (BLOCK, None, "GPU", None)
        assert len(tokens) == BLOCK * len(hashes)
        for i, block in enumerate(hashes):
            assert parent is None or parent in self.blocks, "its parent is not known"
            assert block not in self.blocks
            key = (parent, tuple(tokens[BLOCK * i : BLOCK * (i + 1)]))
            assert key not in self.index, "there twice"
            self.blocks[block], self.index[key] = key, block
            parent = block
            self.stored += 1

    def BlockRemoved(self, hashes, medium):
        assert medium == "GPU"
        for block in hashes:
            assert all(parent != block for parent, _ in self.blocks.values()), "a block is behind it"
            del self.index[self.blocks.pop(block)]
            self.removed += 1

    def AllBlocksCleared(self):
        self.blocks.clear()
        self.index.clear()
        self.cleared += 1

    def cached(self, prompt):
        """Tokens of the prompt that are in whole blocks; the last token is computed in any case."""
        at, count = None, 0
        while BLOCK * (count + 1) < len(prompt):
            at = self.index.get((at, tuple(prompt[BLOCK * count : BLOCK * (count + 1)])))
            if at is None:
                break
            count += 1
        return BLOCK * count


class Hears(unittest.TestCase):
    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, linger=0)

    def serve(self, *flags):
        server = Server(BINARY, [*FLAGS, *flags])
        server.__enter__()
        self.addCleanup(server.__exit__)
        line = next(line for line in iter(server.process.stderr.readline, "") if line.startswith("  events "))
        addresses = [word.rstrip(";") for word in line.split() if word.startswith("tcp://")]
        self.address = server.address
        return addresses

    def socket(self, kind):
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, 10000)
        self.addCleanup(socket.close, linger=0)
        return socket

    def subscribe(self, address, topic=b""):
        socket = self.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, topic)
        socket.connect(address)
        return socket

    def replay(self, address, first):
        socket = self.socket(zmq.DEALER)
        socket.connect(address)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        out = []
        while True:
            empty, number, payload = socket.recv_multipart()
            self.assertEqual(empty, b"")
            if number == b"\xff" * 8:
                self.assertEqual(payload, b"")
                return out
            out.append((int.from_bytes(number, "big"), payload))

    def post(self, path, body):
        request = urllib.request.Request(self.address + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)

    def ask(self, prompt, tokens=1):
        """The cached tokens, as the server counts them."""
        usage = self.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})["usage"]
        self.assertEqual(usage["prompt_tokens"], len(prompt))
        return usage["prompt_tokens_details"]["cached_tokens"]

    def test_whoever_listens_knows_what_is_cached(self):
        events, again = self.serve("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*",
                                   "--kv-events-topic", "kv@here@tales")
        socket = self.subscribe(events, b"kv@here@")
        router, heard = Router(), {}
        # Hears from its connection on; what was before it asks for.
        while not heard:
            self.ask([9] * 70)
            try:
                topic, number, payload = socket.recv_multipart(zmq.NOBLOCK)
                self.assertEqual(topic, b"kv@here@tales")
                heard[int.from_bytes(number, "big")] = payload
            except zmq.Again:
                self.post("/cache/clear", {})
        last = max(heard)
        before = [payload for number, payload in self.replay(again, 0) if number <= last]
        self.assertEqual(len(before), last + 1)
        for payload in before:
            router.hear(payload)
        self.assertGreaterEqual(router.cleared, 1)

        def settle():
            nonlocal last
            while socket.poll(60):
                _, number, payload = socket.recv_multipart()
                last += 1
                self.assertEqual(int.from_bytes(number, "big"), last)
                router.hear(payload)
                heard[last] = payload

        dice = random.Random(1)
        words = [[dice.randrange(3, 200) for _ in range(BLOCK)] for _ in range(3)]

        def prompt():
            text = [token for _ in range(6) for token in dice.choice(words)]
            text = text[: dice.randrange(1, 400)]
            if dice.random() < 0.3:
                text[-1] = 2
            return text

        found = 0
        for turn in range(60):
            if turn % 10 == 9:  # several at once
                askers = [threading.Thread(target=self.ask, args=(prompt(), 20)) for _ in range(4)]
                for asker in askers:
                    asker.start()
                for asker in askers:
                    asker.join()
            settle()
            asked = prompt()
            foretold = router.cached(asked)
            self.assertEqual(self.ask(asked, dice.choice([1, 70])) // BLOCK * BLOCK, foretold, f"turn {turn}")
            found += foretold > 0
        self.assertGreater(found, 10)
        self.assertGreater(router.removed, 10)

        # Nobody runs: what is cleared is all.
        settle()
        cleared = router.cleared
        self.assertEqual(self.post("/cache/clear", {}), {"status": "ok"})
        settle()
        self.assertEqual((router.cleared, router.blocks), (cleared + 1, {}))
        self.assertEqual(self.ask(words[0] + [1]), 0)
        settle()
        # What makes no sense is passed over, and what was sent is there once more.
        broken = self.socket(zmq.DEALER)
        broken.connect(again)
        for parts in ([b""], [b"", b"x"], [b"", b"x" * 200], [b""] * 100, [b"", b"x" * 100000]):
            broken.send_multipart(parts)
        self.assertEqual(dict(self.replay(again, last - 5)), {number: heard[number] for number in range(last - 5, last + 1)})
        self.assertEqual(self.replay(again, last + 1), [])

    def test_maps(self):
        (events, again) = self.serve("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-layout", "maps")
        self.assertNotEqual(events, again)
        self.ask([9] * 70)
        list_of = [event for _, payload in self.replay(again, 0) for event in unpack(payload)[1]]
        self.assertEqual([event["type"] for event in list_of[:2]], ["AllBlocksCleared", "BlockStored"])
        stored = list_of[1]
        self.assertEqual((stored["token_ids"], stored["block_size"], stored["parent_block_hash"]), ([9] * 64, 64, None))

    def test_connects_where_somebody_listens(self):
        socket = self.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self.assertEqual(self.serve("--kv-events", f"tcp://127.0.0.1:{port}"), [f"tcp://127.0.0.1:{port}"])
        end = time.monotonic() + 10
        while time.monotonic() < end and not socket.poll(100):
            self.ask([random.randrange(200) for _ in range(70)])
        self.assertTrue(unpack(socket.recv_multipart()[2])[1])

    def test_an_address_that_cannot_be_is_named(self):
        socket = self.socket(zmq.PUB)
        port = socket.bind_to_random_port("tcp://*")
        for flags, message in (
            (["--kv-events", f"tcp://*:{port}"], f"--kv-events tcp://*:{port}: Address already in use"),
            (["--kv-events", "nowhere"], "--kv-events nowhere: "),
            (["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://x y"], "--kv-events-replay tcp://x y: "),
            (["--kv-events-topic", "kv"], "--kv-events-topic requires --kv-events"),
            (["--kv-events", "tcp://127.0.0.1:*", "-m", "a.gguf", "-m", "b.gguf"], "--kv-events: of one model"),
        ):
            ended = subprocess.run([BINARY, "serve", "--port", "0", *flags], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn(message, ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
