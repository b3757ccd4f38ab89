"""Runs whole models' shapes, two layers each, through the host's side of the CUDA backend without a device
(fake_runtime.cc): run.py SLUICE LIBRARY. Nothing is computed, so what is asserted is that binding, plans, memory, launches and
the costs of steps work for prompts and for one, two and eight sequences."""
import os
import shutil
import subprocess
import sys
import tempfile

SHAPES = [("glm-4.7-flash", "q4_0"), ("glm-4.7-flash", "q4_k_m"), ("deepseek-v2-lite", "q4_k_m"), ("youtu-llm-2b", "q8_0"),
          ("qwen3-30b-a3b", "q4_k_m"), ("gpt-oss-20b", "mxfp4"), ("qwen3.6-35b-a3b", "q4_k_m"), ("glm-4.5-air", "iq3_s")]


def main(sluice, library):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        binary = os.path.join(folder, "sluice")
        shutil.copy(sluice, binary)
        shutil.copy(library, os.path.join(folder, "libsluice_cuda.so"))
        model = os.path.join(folder, "model.gguf")
        for shape, mix in SHAPES:
            layers = "4" if shape == "qwen3.6-35b-a3b" else "2"  # every fourth layer has full attention
            subprocess.run([binary, "synth", shape, model, "--mix", mix, "--layers", layers], check=True, capture_output=True)
            command = [binary, "bench", "--backend", "cuda", "-m", model, "-p", "512", "-n", "8", "-r", "2", "--npl", "1,2,8"]
            run = subprocess.run(command, capture_output=True, text=True)
            # Zeroes select the same experts for all rows, which bench does not take for a routing.
            refused = run.returncode == 1 and "records were refused" in run.stderr
            if run.returncode != 0 and not refused:
                failures.append(f"{shape} {mix}: exit code {run.returncode}: {run.stderr[-400:]}")
    print("\n".join(failures) or f"{len(SHAPES)} shapes bind, plan and launch")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
