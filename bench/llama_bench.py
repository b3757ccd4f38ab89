#!/usr/bin/env python3
"""What llama-bench does, over llama.cpp's C API as the package llama-cpp-python has it: for machines that have that package
and no llama-bench. Takes its flags -m, -p, -n, -d, -t, -r, -b, -ub, -fa, -ngl and -o json, one number each, and prints its
records. Random tokens, one warm-up, the clock around llama_decode and llama_synchronize.
"""

import argparse
import ctypes
import datetime
import json
import random
import statistics
import sys
import time

import llama_cpp as api


def decode(context, tokens: list, rows: int) -> None:
    for at in range(0, len(tokens), rows):
        part = tokens[at:at + rows]
        array = (api.llama_token * len(part))(*part)
        if api.llama_decode(context, api.llama_batch_get_one(array, len(part))) != 0:
            sys.exit("llama_decode failed")
    api.llama_synchronize(context)


def once(context, options, vocabulary: int, source: random.Random) -> int:
    """Nanoseconds of a repetition, behind its context."""
    api.llama_memory_clear(api.llama_get_memory(context), True)

    def tokens(count):
        return [source.randrange(vocabulary) for _ in range(count)]

    decode(context, tokens(options.d), options.b)
    began = time.perf_counter_ns()
    if options.p:
        decode(context, tokens(options.p), options.b)
    for _ in range(options.n):
        decode(context, tokens(1), 1)
    return time.perf_counter_ns() - began


def text_of(call, model) -> str:
    buffer = ctypes.create_string_buffer(256)
    call(model, buffer, 256)
    return buffer.value.decode()


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")), "")


def parse():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", required=True)
    parser.add_argument("-o", choices=["json"], default="json")
    for flag, standard in (("-p", 512), ("-n", 128), ("-d", 0), ("-t", 1), ("-r", 5), ("-b", 2048), ("-ub", 512), ("-fa", 0), ("-ngl", 0)):
        parser.add_argument(flag, type=int, default=standard)
    return parser.parse_args()


def main() -> int:
    options = parse()
    api.llama_backend_init()
    parameters = api.llama_model_default_params()
    parameters.n_gpu_layers = options.ngl
    model = api.llama_model_load_from_file(options.m.encode(), parameters)
    if not model:
        sys.exit(f"{options.m}: does not load")
    wanted = api.llama_context_default_params()
    wanted.n_ctx, wanted.n_batch, wanted.n_ubatch = options.d + options.p + options.n + 1, options.b, options.ub
    wanted.n_threads = wanted.n_threads_batch = options.t
    wanted.flash_attn_type = options.fa
    context = api.llama_init_from_model(model, wanted)
    if not context:
        sys.exit("no context")
    source, vocabulary = random.Random(1), api.llama_n_vocab(api.llama_model_get_vocab(model))
    once(context, argparse.Namespace(**{**vars(options), "n": min(options.n, 1)}), vocabulary, source)
    times = [once(context, options, vocabulary, source) for _ in range(options.r)]
    speeds = [1e9 * (options.p + options.n) / ns for ns in times]
    print(json.dumps([{
        "build_commit": "llama-cpp-python " + api.__version__, "build_number": None, "cpu_info": processor(), "gpu_info": "",
        "system_info": api.llama_print_system_info().decode(), "model_filename": options.m, "model_type": text_of(
            lambda m, buffer, size: api.llama_model_desc(m, buffer, size), model),
        "model_size": api.llama_model_size(model), "model_n_params": api.llama_model_n_params(model), "n_batch": options.b,
        "n_ubatch": options.ub, "n_threads": options.t, "flash_attn": options.fa, "n_prompt": options.p, "n_gen": options.n,
        "n_depth": options.d, "test_time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "avg_ns": statistics.mean(times), "avg_ts": statistics.mean(speeds), "stddev_ts": statistics.pstdev(speeds),
        "samples_ns": times, "samples_ts": speeds}], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
