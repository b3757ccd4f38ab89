"""What load.py, soak.py and siege.py share: a sluice serve of their own, and streams read off bare sockets with times."""

import asyncio
import json
import os
import re
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit


class Server:
    """`sluice serve` on a free port, until the with-block ends."""

    def __init__(self, binary, flags):
        self.command = [binary, "serve", "--port", "0", *flags]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            ready = re.search(r"ready at (http://\S+)", line)
            if ready:
                self.address = ready[1]
                break
        else:
            raise SystemExit("".join(self.log) + f"{self.command}: ended with {self.process.wait()}")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.log += self.process.stderr.readlines()
        self.process.stderr.close()
        self.exit_code = self.process.wait(60)

    def memory_bytes(self):
        """Physical memory of the server's own, now; 0 where there is no /proc."""
        try:
            with open(f"/proc/{self.process.pid}/smaps_rollup", encoding="ascii") as smaps:
                return sum(int(line.split()[1]) for line in smaps if line.startswith("Private_Dirty")) * 1024
        except OSError:
            return 0

    def processor_seconds(self):
        """Of all its threads so far; 0 where there is no /proc."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        except OSError:
            return 0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Stream:
    """One streamed answer: when its pieces came, and how it ended."""

    def __init__(self):
        self.began = time.monotonic()
        self.times = []  # of each chunk with text
        self.text = ""
        self.reason = None  # finish_reason, or what went wrong
        self.usage = None

    @property
    def first(self):
        return self.times[0] - self.began if self.times else None

    def gaps(self):
        return [b - a for a, b in zip(self.times, self.times[1:])]


def post(path, body, key=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    if key:
        head += f"X-Api-Key: {key}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + data


async def ask(address, body, leave_after=None, key=None):
    """Streams a chat completion. With `leave_after`, the connection is cut after so many seconds."""
    stream = Stream()
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 22)
    try:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        writer.write(post("/v1/chat/completions", body, key))
        await writer.drain()
        await asyncio.wait_for(read(reader, stream), leave_after)
    except asyncio.TimeoutError:
        stream.reason = "left"
        writer.transport.abort()
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        stream.reason = f"connection: {error!r}"
    finally:
        writer.close()
    return stream


async def read(reader, stream):
    status = (await reader.readline()).decode()
    done = False
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            done = True
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            stream.reason = "error: " + chunk["error"]["message"]
            return
        stream.usage = chunk.get("usage") or stream.usage
        for choice in chunk["choices"]:
            text = (choice["delta"].get("reasoning_content") or "") + (choice["delta"].get("content") or "")
            if text:
                stream.times.append(time.monotonic())
                stream.text += text
            stream.reason = choice["finish_reason"] or stream.reason
    if " 200 " not in status:
        stream.reason = "refused: " + status.strip()
    elif not done:
        stream.reason = f"cut off, after reason {stream.reason}"


def percentile(values, share):
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
