#!/usr/bin/python3
"""A model hub on this machine, for tests of downloads.

usage: mirror.py FOLDER

FOLDER/files/USER/REPO/... are its repositories. It prints two ports: the hub's, and that of the host which holds
the files' contents, where it redirects to. What it does wrong is read from FOLDER/faults.json before each answer:

  cut: N          bodies end after N bytes         slow: N         bytes a second
  busy: N         429 for the next N bodies        api_status: [STATUS, CODE]
  token: T        what Authorization must hold     gated: true     401 or 403 without it
  wrong: true     a byte of each body differs      no_ranges: true bodies are always whole
  range: TEXT     Content-Range of parts           longer: N       N bytes more than the list says
  endless: true   contents redirect for ever       location: URL   where contents are, in place of the truth
  list: TEXT      the list of files, as it is      huge: N         the list has N bytes more
  commit: TEXT    the revision                     lost: true      contents answer 404

FOLDER/log gets a line a request: PORT METHOD PATH RANGE AUTHORIZATION.
"""

import hashlib
import json
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(sys.argv[1])
FILES = ROOT / "files"
LARGE = 1000  # bytes from which a file's content is kept elsewhere
COMMIT = hashlib.sha1(b"first").hexdigest()
lock = threading.Lock()
busy = {}  # of each text of faults.json, how many bodies were refused


def faults() -> dict:
    try:
        return json.loads((ROOT / "faults.json").read_text())
    except FileNotFoundError:
        return {}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.fault = faults()
        authorization = self.headers.get("Authorization", "-").replace(" ", "_")
        with lock, (ROOT / "log").open("a") as log:
            port = "hub" if self.server is hub else "contents"
            log.write(f"{port} {self.command} {self.path} {self.headers.get('Range', '-')} {authorization}\n")
        url = urllib.parse.urlparse(self.path)
        parts = [urllib.parse.unquote(part) for part in url.path.split("/") if part]
        if self.server is contents:
            return self.content(parts[0])
        if parts[:2] == ["api", "models"]:
            return self.allowed(parts[2:4]) and self.list(parts[2:4], parts[4:])
        return self.allowed(parts[:2]) and self.resolve(parts)

    def answer(self, status: int, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, **headers):
        self.answer(status, {"error": code}, X_Error_Code=code, **headers)

    def allowed(self, repository) -> bool:
        token = self.fault.get("token")
        given = self.headers.get("Authorization")
        known = token is not None and given == f"Bearer {token}"
        if not (FILES.joinpath(*repository).is_dir() and len(repository) == 2):
            self.refuse(404 if known else 401, "RepoNotFound")
            return False
        if self.fault.get("gated") and not known:
            self.refuse(403 if given else 401, "GatedRepo")
            return False
        return True

    def list(self, repository, rest):
        if "api_status" in self.fault:
            return self.refuse(*self.fault["api_status"])
        if rest != ["revision", "main"]:
            return self.refuse(404, "RevisionNotFound")
        folder = FILES.joinpath(*repository)
        siblings = []
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            size = path.stat().st_size
            entry = {"rfilename": str(path.relative_to(folder)), "size": size}
            if size >= LARGE:
                entry["lfs"] = {"sha256": sha256(path), "size": size, "pointerSize": 134}
            siblings.append(entry)
        text = self.fault.get("list") or json.dumps(
            {"id": "/".join(repository), "sha": self.fault.get("commit", COMMIT), "siblings": siblings})
        self.answer(200, (text + " " * self.fault.get("huge", 0)).encode(), Content_Type="application/json")

    def resolve(self, parts):
        if len(parts) < 5 or parts[2] != "resolve" or parts[3] not in ("main", self.fault.get("commit", COMMIT)):
            return self.refuse(404, "RevisionNotFound")
        path = FILES.joinpath(*parts[:2], *parts[4:])
        if ".." in parts or not path.is_file():
            return self.refuse(404, "EntryNotFound")
        if path.stat().st_size < LARGE:
            tag = hashlib.sha1(path.read_bytes()).hexdigest()
            return self.answer(200, path.read_bytes(), ETag=f'"{tag}"', X_Repo_Commit=COMMIT)
        where = self.fault.get("location") or f"http://127.0.0.1:{contents.server_port}/{sha256(path)}"
        self.answer(302, b"moved", Location=where, X_Repo_Commit=COMMIT, X_Linked_Size=str(path.stat().st_size),
                    X_Linked_Etag=f'"{sha256(path)}"')

    def content(self, name: str):
        fault = self.fault
        if fault.get("endless"):
            return self.answer(302, Location="/" + name + "x")
        with lock:
            key = json.dumps(fault)
            busy[key] = busy.get(key, 0) + 1
            if busy[key] <= fault.get("busy", 0):
                return self.refuse(429, "RateLimit", Retry_After="0")
        path = next((p for p in FILES.rglob("*") if p.is_file() and sha256(p) == name), None)
        if path is None or fault.get("lost"):
            return self.refuse(404, "EntryNotFound")
        body = bytearray(path.read_bytes())
        if fault.get("wrong"):
            body[len(body) // 2] ^= 1
        total = len(body)
        body += b"\0" * fault.get("longer", 0)
        asked = self.headers.get("Range")
        status, first = 200, 0
        if asked and not fault.get("no_ranges"):
            status, first = 206, int(asked.removeprefix("bytes=").split("-")[0])
            if first >= total:
                return self.answer(416)
        self.send_response(status)
        if not fault.get("longer"):
            self.send_header("Content-Length", str(total - first))
        else:
            self.close_connection = True
        if status == 206:
            self.send_header("Content-Range", fault.get("range") or f"bytes {first}-{total - 1}/{total}")
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body[first:]
        if "cut" in fault:
            body = body[: fault["cut"]]
            self.close_connection = True
        try:
            for begin in range(0, len(body), 8192):
                self.wfile.write(body[begin : begin + 8192])
                if "slow" in fault:
                    time.sleep(8192 / fault["slow"])
        except OSError:
            pass


hub = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
contents = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
for server in (hub, contents):
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(hub.server_port, contents.server_port, flush=True)
sys.stdin.read()  # until whoever started it is gone
