#!/usr/bin/env python3
"""The oracle of the quantisation tests: every block layout written down a second time, another way.

    dequantize.py decode TYPE IN OUT    blocks -> little-endian float32
    dequantize.py encode TYPE IN OUT    little-endian float32 -> blocks (Q8_0 and Q4_0)

The grids of IQ1, IQ2 and IQ3 are recorded facts: iq_grids.npz holds them as the Python package gguf 0.19 has them.
A layout is a table of bit positions: for each number of a block (or each scale) the bits of its code, lowest
first, counted from the block's first byte. Arithmetic is in float64, rounded once at the end.
"""
import sys
from pathlib import Path

import numpy as np

NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def gather(blocks, positions):
    """Integers [blocks, numbers] from bit positions [numbers, bits]."""
    positions = np.asarray(positions)
    bits = np.unpackbits(blocks, axis=1, bitorder="little")[:, positions].astype(np.int64)
    return (bits << np.arange(positions.shape[1])).sum(-1)


def field(byte, bit, width):
    """Bit positions of a `width`-bit field at bit `bit` of byte `byte`."""
    return [8 * byte + bit + i for i in range(width)]


def f16(blocks, byte):
    """The float16 at a byte offset: float64 [blocks, 1]."""
    return blocks[:, byte:byte + 2].copy().view("<f2").astype(np.float64)


def signed(values, bits):
    return np.where(values >= 1 << (bits - 1), values - (1 << bits), values)


def nibbles_of_32(at):
    """Number i: the low (i < 16) or high nibble of byte at + i % 16."""
    return [field(at + i % 16, 4 * (i // 16), 4) for i in range(32)]


def fifth_of_32(at):
    return [field(at + i // 8, i % 8, 1) for i in range(32)]


def pairs_of_256(at):
    """Two bits of each of 256 numbers: four runs of 32 share the bytes of a half."""
    return [field(at + 32 * (n // 128) + n % 32, 2 * (n % 128 // 32), 2) for n in range(256)]


def nibbles_of_256(at):
    """Runs of 32 numbers alternate between the low and the high nibbles of the same 32 bytes."""
    return [field(at + 32 * (n // 64) + n % 32, 4 * (n % 64 // 32), 4) for n in range(256)]


def beside(*layouts):
    """Several bit fields of the same numbers as one code, lowest field first."""
    return [sum((layout[n] for layout in layouts), []) for n in range(len(layouts[0]))]


def k_scales(at):
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes at `at`."""
    scales = [field(at + g, 0, 6) for g in range(4)]
    scales += [field(at + 8 + g, 0, 4) + field(at + g, 6, 2) for g in range(4)]
    minima = [field(at + 4 + g, 0, 6) for g in range(4)]
    minima += [field(at + 8 + g, 4, 4) + field(at + 4 + g, 6, 2) for g in range(4)]
    return scales, minima


def q4_0(b):
    return f16(b, 0) * (gather(b, nibbles_of_32(2)) - 8)


def q4_1(b):
    return f16(b, 0) * gather(b, nibbles_of_32(4)) + f16(b, 2)


def q5_0(b):
    return f16(b, 0) * (gather(b, beside(nibbles_of_32(6), fifth_of_32(2))) - 16)


def q5_1(b):
    return f16(b, 0) * gather(b, beside(nibbles_of_32(8), fifth_of_32(4))) + f16(b, 2)


def q8_0(b):
    return f16(b, 0) * b[:, 2:].view(np.int8)


def q2_k(b):
    scale = gather(b, [field(g, 0, 4) for g in range(16)]).repeat(16, 1)
    minimum = gather(b, [field(g, 4, 4) for g in range(16)]).repeat(16, 1)
    return f16(b, 80) * scale * gather(b, pairs_of_256(16)) - f16(b, 82) * minimum


def q3_k(b):
    third = [field(n % 32, n // 32, 1) for n in range(256)]
    scales = [field(96 + g % 8, 4 * (g // 8), 4) + field(104 + g % 4, 2 * (g // 4), 2) for g in range(16)]
    scale = (gather(b, scales) - 32).repeat(16, 1)
    return f16(b, 108) * scale * (gather(b, beside(pairs_of_256(32), third)) - 4)


def q4_k(b):
    scale, minimum = (gather(b, layout).repeat(32, 1) for layout in k_scales(4))
    return f16(b, 0) * scale * gather(b, nibbles_of_256(16)) - f16(b, 2) * minimum


def q5_k(b):
    scale, minimum = (gather(b, layout).repeat(32, 1) for layout in k_scales(4))
    fifth = [field(16 + n % 32, n // 32, 1) for n in range(256)]
    return f16(b, 0) * scale * gather(b, beside(nibbles_of_256(48), fifth)) - f16(b, 2) * minimum


def q6_k(b):
    low = [field(64 * (n // 128) + n % 64, 4 * (n % 128 // 64), 4) for n in range(256)]
    scale = signed(b[:, 192:208].astype(np.int64), 8).repeat(16, 1)
    return f16(b, 208) * scale * (gather(b, beside(low, pairs_of_256(128))) - 32)


def iq4_nl(b):
    return f16(b, 0) * NONLINEAR[gather(b, nibbles_of_32(2))]


def iq4_xs(b):
    scales = [field(4 + g // 2, 4 * (g % 2), 4) + [16 + 2 * g, 17 + 2 * g] for g in range(8)]
    codes = sum((nibbles_of_32(8 + 16 * g) for g in range(8)), [])
    return f16(b, 0) * (gather(b, scales) - 32).repeat(32, 1) * NONLINEAR[gather(b, codes)]


def e2m1(code):
    """E2M1 floats: exponent bias 1; exponent 0 holds the subnormals 0 and 0.5."""
    sign, exponent, mantissa = 1.0 - 2.0 * (code >> 3), code >> 1 & 3, code & 1
    return sign * np.where(exponent == 0, 0.5 * mantissa, (1 + 0.5 * mantissa) * 2.0 ** (exponent - 1))


def mxfp4(b):
    return e2m1(gather(b, nibbles_of_32(1))) * 2.0 ** (b[:, :1].astype(np.float64) - 127)


def grid(name):
    with np.load(Path(__file__).with_name("iq_grids.npz")) as grids:
        return grids[name].astype(np.float64)


def points(b, name, layout):
    """Numbers [blocks, 256] of the points that codes name."""
    return grid(name)[gather(b, layout)].reshape(len(b), 256)


def even_signs(b, layout):
    """-1 or 1 for each of eight numbers a field of seven bits: the eighth makes the count of -1 even."""
    bits = gather(b, layout)[..., None] >> np.arange(7) & 1
    eight = np.concatenate([bits, bits.sum(-1, keepdims=True) % 2], -1)
    return 1.0 - 2.0 * eight.reshape(len(b), 256)


def plain_signs(b, at):
    return 1.0 - 2.0 * gather(b, [field(at + n // 8, n % 8, 1) for n in range(256)])


def nibble_scales(b, at, count):
    return (2 * gather(b, [field(at + i // 2, 4 * (i % 2), 4) for i in range(count)]) + 1).repeat(256 // count, 1)


def iq2_xxs(b):
    codes = [field(2 + 8 * (k // 4) + k % 4, 0, 8) for k in range(32)]
    signs = [field(6 + 8 * (k // 4), 7 * (k % 4), 7) for k in range(32)]
    scale = (2 * gather(b, [field(6 + 8 * g, 28, 4) for g in range(8)]) + 1).repeat(32, 1)
    return f16(b, 0) * scale / 8 * points(b, "IQ2_XXS", codes) * even_signs(b, signs)


def iq2_xs(b):
    codes = [field(2 + 2 * k, 0, 9) for k in range(32)]
    signs = [field(2 + 2 * k, 9, 7) for k in range(32)]
    return f16(b, 0) * nibble_scales(b, 66, 16) / 8 * points(b, "IQ2_XS", codes) * even_signs(b, signs)


def iq2_s(b):
    codes = [field(2 + k, 0, 8) + field(66 + k // 4, 2 * (k % 4), 2) for k in range(32)]
    return f16(b, 0) * nibble_scales(b, 74, 16) / 8 * points(b, "IQ2_S", codes) * plain_signs(b, 34)


def iq3_xxs(b):
    codes = [field(2 + k, 0, 8) for k in range(64)]
    signs = [field(66 + 4 * (k // 4), 7 * (k % 4), 7) for k in range(32)]
    scale = (2 * gather(b, [field(66 + 4 * g, 28, 4) for g in range(8)]) + 1).repeat(32, 1)
    return f16(b, 0) * scale / 4 * points(b, "IQ3_XXS", codes) * even_signs(b, signs)


def iq3_s(b):
    codes = [field(2 + k, 0, 8) + field(66 + k // 8, k % 8, 1) for k in range(64)]
    return f16(b, 0) * nibble_scales(b, 106, 8) * points(b, "IQ3_S", codes) * plain_signs(b, 74)


def iq1_s(b):
    codes = [field(2 + k, 0, 8) + field(34 + 2 * (k // 4), 3 * (k % 4), 3) for k in range(32)]
    scale = (2 * gather(b, [field(34 + 2 * g, 12, 3) for g in range(8)]) + 1).repeat(32, 1)
    shift = (0.125 - 0.25 * gather(b, [field(34 + 2 * g, 15, 1) for g in range(8)])).repeat(32, 1)
    return f16(b, 0) * scale * (points(b, "IQ1_S", codes) + shift)


def iq1_m(b):
    d = gather(b, [sum((field(48 + 2 * i, 12, 4) for i in range(4)), [])]).astype("<u2").view("<f2").astype(np.float64)
    codes = [field(k, 0, 8) + field(32 + k // 2, 4 * (k % 2), 3) for k in range(32)]
    scale = (2 * gather(b, [field(48 + 2 * (i // 4), 3 * (i % 4), 3) for i in range(16)]) + 1).repeat(16, 1)
    shift = (0.125 - 0.25 * gather(b, [field(32 + k // 2, 4 * (k % 2) + 3, 1) for k in range(32)])).repeat(8, 1)
    return d * scale * (points(b, "IQ1_S", codes) + shift)


def nvfp4(b):
    code = b[:, :4].astype(np.int64)
    exponent, mantissa = code >> 3 & 15, code & 7
    scale = np.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    scale[code == 0x7F] = 0
    codes = [field(4 + 8 * (n // 16) + n % 8, 4 * (n % 16 // 8), 4) for n in range(64)]
    return scale.repeat(16, 1) * e2m1(gather(b, codes))


LAYOUTS = {"Q4_0": (18, q4_0), "Q4_1": (20, q4_1), "Q5_0": (22, q5_0), "Q5_1": (24, q5_1), "Q8_0": (34, q8_0),
           "Q2_K": (84, q2_k), "Q3_K": (110, q3_k), "Q4_K": (144, q4_k), "Q5_K": (176, q5_k), "Q6_K": (210, q6_k),
           "IQ4_NL": (18, iq4_nl), "IQ4_XS": (136, iq4_xs), "MXFP4": (17, mxfp4), "IQ2_XXS": (66, iq2_xxs),
           "IQ2_XS": (74, iq2_xs), "IQ2_S": (82, iq2_s), "IQ3_XXS": (98, iq3_xxs), "IQ3_S": (110, iq3_s),
           "IQ1_S": (50, iq1_s), "IQ1_M": (56, iq1_m), "NVFP4": (36, nvfp4)}


def decode(name, data):
    if name == "F32":
        return data.view("<f4")
    if name == "F16":
        return data.view("<f2").astype("<f4")
    if name == "BF16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4")
    size, layout = LAYOUTS[name]
    return layout(data.reshape(-1, size)).astype("<f4")


def encode_q8_0(x):
    d = np.abs(x).max(1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), d, where=d != 0, out=np.zeros_like(d))
    scaled = (x * inverse).astype(np.float64)
    codes = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled).astype(np.int8)
    return np.concatenate([d.astype("<f2").view(np.uint8), codes.view(np.uint8)], 1)


def encode_q4_0(x):
    extreme = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    d = extreme / np.float32(-8)
    inverse = np.divide(np.float32(1), d, where=d != 0, out=np.zeros_like(d))
    codes = np.minimum(15, np.trunc(x * inverse + np.float32(8.5))).astype(np.uint8)
    return np.concatenate([d.astype("<f2").view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], 1)


def main():
    action, name, source, target = sys.argv[1:]
    data = np.fromfile(source, np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        if action == "decode":
            result = decode(name, data)
        else:
            result = {"Q8_0": encode_q8_0, "Q4_0": encode_q4_0}[name](data.view("<f4").reshape(-1, 32))
    result.tofile(target)


if __name__ == "__main__":
    main()
