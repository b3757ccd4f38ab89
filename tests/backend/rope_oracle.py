#!/usr/bin/env python3
"""The oracle of rope at long positions: pairs of columns as complex numbers, turned in float64.

    rope_oracle.py PAIRS BASE FACTOR ORIGINAL POSITION... IN OUT

PAIRS is "neighbours" or "halves"; FACTOR 1 is plain rope, more is YaRN's over a context of ORIGINAL (beta 32 and 1).
IN holds little-endian float32 [positions, heads, 64], OUT gets float64 of the same shape.
"""
import sys

import numpy as np

DIMS = 64


def frequencies(base, factor, original):
    pair = np.arange(DIMS // 2)
    plain = base ** (-2.0 * pair / DIMS)
    turns = original * plain / (2 * np.pi)  # over the original context
    # The logarithm of turns falls linearly with the pair: where it passes 32 turns and 1.
    index = np.interp(np.log([1.0, 32.0]), np.log(turns)[::-1], pair[::-1])
    low, high = np.floor(index[1]), np.ceil(index[0])
    stretched = np.clip((pair - low) / (high - low), 0, 1)
    return plain * (1 - stretched + stretched / factor)


def main():
    pairs, base, factor, original, *positions, source, target = sys.argv[1:]
    angles = np.outer(np.array(positions, np.float64), frequencies(float(base), float(factor), float(original)))
    x = np.fromfile(source, "<f4").astype(np.float64).reshape(len(positions), -1, DIMS)
    halves = pairs == "halves"
    if halves:
        first, second = x[..., :DIMS // 2], x[..., DIMS // 2:]
    else:
        first, second = x[..., 0::2], x[..., 1::2]
    turned = (first + 1j * second) * np.exp(1j * angles)[:, None]
    both = [turned.real, turned.imag]
    np.ascontiguousarray(np.concatenate(both, -1) if halves else np.stack(both, -1)).tofile(target)


if __name__ == "__main__":
    main()
