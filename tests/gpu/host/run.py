"""Runs whole models' shapes, two layers each, through the host's side of the CUDA backend without a device
(fake_runtime.cc): run.py SLUICE LIBRARY. Nothing is computed, so what is asserted is that binding, plans, memory, launches and
the costs of steps work for prompts and for one, two and eight sequences."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

SHAPES = [("glm-4.7-flash", "q4_0"), ("glm-4.7-flash", "q4_k_m"), ("deepseek-v2-lite", "q4_k_m"), ("youtu-llm-2b", "q8_0"),
          ("qwen3-30b-a3b", "q4_k_m"), ("qwen3-8b", "q4_k_m"), ("gpt-oss-20b", "mxfp4"), ("qwen3-30b-a3b", "nvfp4"), ("glm-4.7-flash", "nvfp4"), ("qwen3.6-35b-a3b", "q4_k_m"), ("glm-4.5-air", "iq3_s"),
          ("kimi-linear-48b-a3b", "q4_k_m")]


def failure_of(command):
    """Why a bench failed, and what it said; None where it did not."""
    run = subprocess.run(command, capture_output=True, text=True)
    # Zeroes select the same experts for all rows, which bench does not take for a routing.
    refused = run.returncode == 1 and "records were refused" in run.stderr
    return (None if run.returncode == 0 or refused else f"exit code {run.returncode}: {run.stderr[-400:]}"), run.stdout + run.stderr


def held_to_sms(binary, model):
    """What goes wrong where bench is held to some of the device's SMs."""
    command = [binary, "bench", "-m", model, "-p", "64", "-n", "4", "-r", "1", "-o", "json"]
    failure, text = failure_of([*command, "--backend", "cuda", "--sms", "28"])
    if failure or "32 SMs" not in text:
        yield f"--sms 28: {failure or text[-400:]}"
    for flags, why in [(["--backend", "cuda", "--sms", "132"], "expected fewer than it has"), (["--backend", "cpu", "--sms", "8"], "needs --backend cuda")]:
        failure, text = failure_of([*command, *flags])
        if failure is None or why not in text:
            yield f"{flags} is not refused: {text[-400:]}"


def batch_invariant(binary, model):
    """What goes wrong where steps are batch-invariant, which a model on several devices refuses."""
    command = [binary, "run", "-m", model, "--backend", "cuda", "-p", "As it was, so it is. " * 8, "-n", "20", "--batch-invariant"]
    if failure := failure_of(command)[0]:
        yield failure
    failure, said = failure_of([*command, "--gpu-memory", "1G", "-t", "1"])
    if failure is None or "--batch-invariant: not where several devices share a model" not in said:
        yield f"with --gpu-memory it is not refused: {said[-400:]}"


def of_two_ranks(binary, model, memory, stream_from="0"):
    """What two ranks with layers dealt out say, by rank, and whether one failed; each GPU is held to so much memory. Without copies of
    experts: these count what was selected, and here no kernel has selected anything."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        where = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(port.getsockname()[1])}
    command = [binary, "bench", "-m", model, "-p", "512", "-n", "8", "-r", "2", "--npl", "1,2,8", "--backend", "cuda:0", "-t", "1",
               "--pipeline-parallel", "2", "--gpu-memory", str(memory), "--expert-cache", "0", "--stream-from", stream_from]
    ranks = [subprocess.Popen(command, env={**os.environ, **where, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
             for rank in range(2)]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    return said, ranks[1].returncode != 0 or (ranks[0].returncode != 0 and "records were refused" not in said[0])


def layers_of_ranks(binary):
    """What goes wrong where each of two ranks shares its layers between its GPU and the CPU: with prompts that stream and without, and
    where even that has no room."""
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../models/fairy-tales.gguf")
    said, failed = of_two_ranks(binary, model, 1 << 40)
    if failed or said[0].count("experts of 0 of ") != 2:
        yield f"two ranks with all of the memory: {said[0][-600:]}"
    for stream_from in ["0", "64", "-1"]:
        said, failed = of_two_ranks(binary, model, 14 << 20, stream_from)
        shared = re.findall(r"experts of (\d+) of (\d+) layers", said[0])
        if failed or len(shared) != 2 or any(int(some) == 0 for some, _ in shared):
            yield f"two ranks that have no room for all, --stream-from {stream_from}: {said[0][-600:]} {said[1][-300:]}"
    said, failed = of_two_ranks(binary, model, 1 << 20)
    if not failed or "rank 0" not in said[0] or "of the GPU's memory even with all routed experts in the CPU's" not in said[0]:
        yield f"two ranks with too little memory: {said[0][-600:]}"


def main(sluice, library):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        binary = os.path.join(folder, "sluice")
        shutil.copy(sluice, binary)
        shutil.copy(library, os.path.join(folder, "libsluice_cuda.so"))
        model = os.path.join(folder, "model.gguf")
        for shape, mix in SHAPES:
            layers = "4" if shape in ("qwen3.6-35b-a3b", "kimi-linear-48b-a3b") else "2"  # every fourth layer has full attention
            subprocess.run([binary, "synth", shape, model, "--mix", mix, "--layers", layers], check=True, capture_output=True)
            command = [binary, "bench", "--backend", "cuda", "-m", model, "-p", "512", "-n", "8", "-r", "2", "--npl", "1,2,8"]
            if failure := failure_of(command)[0]:
                failures.append(f"{shape} {mix}: {failure}")
            if mix == "q8_0":
                failures += held_to_sms(binary, model)
            if shape in ("deepseek-v2-lite", "qwen3.6-35b-a3b"):
                failures += [f"{shape}, batch-invariant: {failure}" for failure in batch_invariant(binary, model)]
        failures += layers_of_ranks(binary)
    print("\n".join(failures) or f"{len(SHAPES)} shapes bind, plan and launch")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
