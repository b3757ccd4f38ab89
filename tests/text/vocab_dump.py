#!/usr/bin/python3
"""Prints the vocabulary of a GGUF file (version 3) as one JSON object: pre, tokens, types, and
merges or scores where it has them.

Reads the metadata from its description in the GGUF specification, apart from the engine's own reader.
"""
import json
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def scalar(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        length = self.scalar("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, count = self.scalar("I"), self.scalar("Q")
            return [self.value(kind) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def main():
    with open(sys.argv[1], "rb") as file:
        reader = Reader(file.read())
    assert reader.data[:4] == b"GGUF"
    reader.at = 4
    assert reader.scalar("I") == 3
    reader.scalar("Q")
    keys = {}
    for _ in range(reader.scalar("Q")):
        key = reader.string()
        keys[key] = reader.value(reader.scalar("I"))
    model = "tokenizer.ggml."
    print(json.dumps({"pre": keys[model + "pre"], "tokens": keys[model + "tokens"],
                      "types": keys[model + "token_type"], "merges": keys.get(model + "merges", []),
                      "scores": keys.get(model + "scores", [])}))


if __name__ == "__main__":
    main()
