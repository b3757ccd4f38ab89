#!/usr/bin/env python3
"""An OCI image of a folder, in one file, without an engine for containers: `podman load -i FILE`, `docker load -i FILE`,
`skopeo copy oci-archive:FILE ...`. The same folder gives the same bytes.

usage: oci_image.py FOLDER FILE CONFIG NAME ARCHITECTURE
  CONFIG        JSON of the image's configuration (Entrypoint, Env, User, ...)
  NAME          what it is called: sluice:0.2.0
  ARCHITECTURE  amd64, arm64
Everything is root's. SOURCE_DATE_EPOCH is the time of what is newer, and of the image.
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

TIME = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def entry(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), TIME, 0o644
    tar.addfile(info, io.BytesIO(content))


def layer_of(folder: Path) -> bytes:
    """The tar of a folder's files, in the order of their names."""
    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = min(int(info.mtime), TIME)
        return info

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=plain)
    return buffer.getvalue()


class Blobs:
    """What an image is made of, by digests."""

    def __init__(self):
        self.content: dict[str, bytes] = {}

    def add(self, content: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        self.content[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, value: dict, media_type: str) -> dict:
        return self.add(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media_type)


def main() -> int:
    if len(sys.argv) != 6:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder, file, config, name, architecture = Path(sys.argv[1]), *sys.argv[2:]
    created = datetime.datetime.fromtimestamp(TIME, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    blobs = Blobs()
    tar = layer_of(folder)
    layer = blobs.add(gzip.compress(tar, 6, mtime=0), "layer.v1.tar+gzip")
    image = blobs.add_json({
        "created": created, "architecture": architecture, "os": "linux", "config": json.loads(Path(config).read_text()),
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar).hexdigest()]},
        "history": [{"created": created, "created_by": "tools/oci_image.py"}],
    }, "config.v1+json")
    manifest = blobs.add_json({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                               "config": image, "layers": [layer]}, "manifest.v1+json")
    tag = name.rpartition(":")[2]
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"docker.io/library/{name}"}
    manifest["platform"] = {"architecture": architecture, "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:
        entry(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        entry(archive, "index.json", json.dumps(index, sort_keys=True).encode())
        for digest in sorted(blobs.content):
            entry(archive, f"blobs/sha256/{digest}", blobs.content[digest])
    return 0


if __name__ == "__main__":
    sys.exit(main())
