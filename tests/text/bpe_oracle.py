#!/usr/bin/python3
"""Byte pair encoding by its definition: merge the pair of the lowest rank, the leftmost of several, until
no pair is left that has a rank.

    bpe_oracle.py FILE

FILE holds {"tokens": [...], "merges": ["left right", ...], "pieces": [[symbol, ...], ...]}; prints the ids
of each piece as a JSON list, one line a piece.
"""
import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    ids = {}
    for number, token in enumerate(data["tokens"]):
        ids.setdefault(token, number)
    ranks = {}
    for rank, merge in enumerate(data["merges"]):
        ranks.setdefault(tuple(merge.split(" ")), rank)
    for symbols in data["pieces"]:
        while True:
            found = [(ranks[pair], at) for at, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
            if not found:
                break
            at = min(found)[1]
            symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]
        print(json.dumps([ids[symbol] for symbol in symbols]))


if __name__ == "__main__":
    main()
