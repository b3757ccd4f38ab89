"""Requests of hostile clients, by kind, for siege.py: what once stopped a server, took its memory, or others' time.

usage: siege_attacks.py ADDRESS KEYS

Sends all kinds at once, again and again, until it is ended; then prints as JSON the processor seconds that it took, and
how often each kind was answered what.
"""

import asyncio
import collections
import json
import os
import random
import signal
import sys
from urllib.parse import urlsplit

from serving import post

GRAMMARS = [
    "root ::= p\np ::= [a-z ] | [a-z ] p [a-z ]",
    "root ::= s\ns ::= [a-z ] s? s? | \"(\" s \")\"",
    "root ::= (([a-z ]{1,5} [,. ]?){1,5} \"\\n\"?){1,50}",
    "root ::= a*\na ::= b c? | [a-z]\nb ::= c a? | [a-z ]\nc ::= [a-z ] b? | [a-z] a?",
    "root ::= (r0" + "".join(f" | r{i}" for i in range(1, 200)) + ")*\n"
    + "\n".join(f"r{i} ::= [a-z ]{{1,{i + 1}}} [a-z ,.]" for i in range(200)),
]


def chat(**more):
    return json.dumps({"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 4} | more).encode()


def schema(of):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": of}})


class Attacker:
    def __init__(self, address, keys):
        where = urlsplit(address)
        self.where, self.keys = (where.hostname, where.port), keys
        self.counts, self.draw = collections.Counter(), random.Random(1)
        self.bodies = {  # path and body; made once, so that attacks take little of the machine themselves
            "grammar of many operators": ("/v1/chat/completions", chat(grammar='root ::= "a"' + "?" * 200_000)),
            "enum of many numbers": ("/v1/chat/completions", schema({"enum": list(range(300_000))})),
            "enum of one long text": ("/v1/chat/completions", schema({"enum": ["a" * 4_000_000]})),
            "oneOf of many": ("/v1/chat/completions", schema({"oneOf": [{"const": f"c{i}"} for i in range(2000)]})),
            "deep schema": ("/v1/chat/completions", b'{"messages":' + b"[" * 300_000 + b"]" * 300_000 + b"}"),
            "two names": ("/v1/chat/completions", schema(
                {"type": "object", "required": ["names"],
                 "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 2}}})),
            "pieces": ("/tokenize", json.dumps({"content": "a b " * 500_000, "with_pieces": True}).encode()),
            "long text": ("/v1/chat/completions", json.dumps(
                {"messages": [{"role": "user", "content": "the crow and the fox " * 100_000}]}).encode()),
            "many messages": ("/apply-template", json.dumps({"messages": [
                {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 20_000}).encode()),
            "many biases": ("/v1/chat/completions", chat(logit_bias=[[i % 4000, 0.001] for i in range(200_000)])),
            "biases": ("/v1/chat/completions", chat(
                n=16, ignore_eos=True, logit_bias=[[i, 0.001] for i in range(4000)])),
        }

    async def send(self, kind, data, answered=True, hold=0.0):
        """One connection: sends, reads the status, or none of it, and leaves."""
        writer = None
        try:
            reader, writer = await asyncio.open_connection(*self.where, limit=1 << 22)
            writer.write(data)
            if answered:
                await asyncio.wait_for(writer.drain(), 20)
                line = await asyncio.wait_for(reader.readline(), 60)
                self.counts[kind, line[9:12].decode("latin1") or "closed"] += 1
            else:
                await asyncio.sleep(hold)
                self.counts[kind, "left"] += 1
        except (OSError, asyncio.TimeoutError) as error:
            self.counts[kind, type(error).__name__] += 1
        finally:
            if writer:
                writer.transport.abort()

    def key(self):
        return self.draw.choice(self.keys)

    async def bodies_of(self, kind, pause):
        path, body = self.bodies[kind]
        while True:
            leave = self.draw.random() < 0.3
            await self.send(kind, post(path, body, self.key()), not leave, self.draw.random())
            await asyncio.sleep(pause)

    async def masks(self):
        while True:
            body = chat(grammar=self.draw.choice(GRAMMARS), n=16, stream=True, ignore_eos=True, max_tokens=1500,
                        temperature=1.5, top_k=0, top_p=1, min_p=0)
            await self.send("ambiguous grammar", post("/v1/chat/completions", body, self.key()), False, 4)

    async def places(self):
        body = chat(n=32, stream=True, ignore_eos=True, max_tokens=1500)
        while True:  # nobody reads these
            await self.send("many answers", post("/v1/chat/completions", body, self.key()), False, 3)
            await asyncio.sleep(1)

    async def whole_bodies(self):
        body = chat()[:-1] + b" " * 8_000_000 + b"}"
        while True:
            await asyncio.gather(*(self.send("bodies in flight", post("/v1/chat/completions", body, self.key()))
                                   for _ in range(10)))
            await asyncio.sleep(2)

    async def unfinished_bodies(self):
        head = post("/v1/chat/completions", b"x" * 60_000_000, self.key())
        while True:
            await asyncio.gather(*(self.send("unfinished bodies", head[:4_000_000], False, 3)
                                   for _ in range(10)))

    async def two_ways(self):
        chunked = b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"
        hidden = b"Transfer-Encoding: gzip\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        forms = [b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + hidden,
                 b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + chunked,
                 b"GET /v1/models HTTP/1.1\r\nHost: attacker.example\r\n\r\n"]
        while True:
            for form in forms:
                await self.send("two ways to read", form)
            await self.send("junk", self.draw.randbytes(300) + b"\r\n\r\n")
            await asyncio.sleep(0.2)

    async def all(self):
        await asyncio.gather(*(self.bodies_of(kind, 1.0) for kind in self.bodies), self.masks(), self.places(),
                             self.whole_bodies(), self.unfinished_bodies(), self.two_ways())


def main():
    attacker = Attacker(sys.argv[1], sys.argv[2].split(","))
    os.nice(5)  # on one machine: what attacks take themselves is not what is measured

    def end():
        answers = [[kind, answer, count] for (kind, answer), count in sorted(attacker.counts.items())]
        print(json.dumps([sum(os.times()[:2]), answers]), flush=True)
        os._exit(0)  # connections and all

    async def until_ended():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        print("ready", flush=True)
        await attacker.all()

    asyncio.run(until_ended())


if __name__ == "__main__":
    main()
