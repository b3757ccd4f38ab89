"""Open WebUI, as people install it, in front of `sluice serve`: it starts, lists the model and streams a chat by its own
API, with its settings for an OpenAI-compatible server and no network.
"""
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import support

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
STARTS_IN_SECONDS = 600  # its imports and migrations take a minute on a quiet machine


def request(address, body=None, token=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + token} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=120) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def open_webui(engine, folder):
    """Open WebUI's address while it runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"DATA_DIR": folder, "HOME": folder, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "a key of this test, long enough",
                        "OPENAI_API_BASE_URL": engine + "/v1", "OPENAI_API_KEY": "none", "ENABLE_OLLAMA_API": "False",
                        "RAG_EMBEDDING_ENGINE": "openai", "OFFLINE_MODE": "true", "HF_HUB_OFFLINE": "1",
                        "SCARF_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true", "ANONYMIZED_TELEMETRY": "false"}
    program = Path(os.sys.executable).with_name("open-webui")
    with open(Path(folder) / "log", "w+", encoding="utf-8") as log:
        process = subprocess.Popen([program, "serve", "--host", "127.0.0.1", "--port", str(port)], env=env, cwd=folder,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + STARTS_IN_SECONDS
            while True:
                try:
                    request(f"http://127.0.0.1:{port}/health")
                    break
                except (urllib.error.URLError, ConnectionError):
                    if process.poll() is not None or time.monotonic() > until:
                        log.seek(0)
                        raise RuntimeError("Open WebUI did not start: " + log.read()[-3000:]) from None
                    time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


class OpenWebUi(unittest.TestCase):
    def test_open_webui_chat(self):
        with tempfile.TemporaryDirectory() as folder, \
                support.serving("-m", support.smollm2(), "-c", "4096", "--alias", MODEL) as engine, \
                open_webui(engine, folder) as address:
            print("Open WebUI " + json.loads(request(address + "/api/version"))["version"], flush=True)
            token = json.loads(request(address + "/api/v1/auths/signin", {"email": "", "password": ""}))["token"]
            models = json.loads(request(address + "/api/models", token=token))["data"]
            self.assertIn(MODEL, [model["id"] for model in models])
            chat = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
            whole = json.loads(request(address + "/api/chat/completions", chat | {"stream": False}, token))
            text = whole["choices"][0]["message"]["content"]
            self.assertIn("Paris", text)
            streamed = ""
            for line in request(address + "/api/chat/completions", chat | {"stream": True}, token).splitlines():
                if line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: ")).get("choices")
                    streamed += (choices[0]["delta"].get("content") or "") if choices else ""
            self.assertEqual(streamed, text)


if __name__ == "__main__":
    support.main("open_webui")
