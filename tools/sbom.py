#!/usr/bin/env python3
"""A bill of materials (SPDX 2.3, JSON) of the program as it is delivered: its own files, and the works of others whose code
they hold or load: Debian packages, what the web page is made of, CUDA's runtime.

usage: sbom.py PROGRAM NAME VERSION [PACKAGE[=VERSION]...] > FILE
  PROGRAM  in bin of what is delivered, stripped; libsluice_cuda.so beside it and share/sluice/models are read, too
  PACKAGE  is in the program (archives that it was linked with); with its version, where it is not installed here
Of a program for another machine, DPKG_ADMINDIR names the root that it was linked against (tools/sysroot.sh).
"""

import datetime
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
HEADERS = ["libcli11-dev", "nlohmann-json3-dev", "libboost-dev", "libvulkan-dev"]  # compiled in
ADMIN = os.environ.get("DPKG_ADMINDIR", "/var/lib/dpkg")
ROOT = ADMIN.removesuffix("/var/lib/dpkg")
UNSAID = {"downloadLocation": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False}
OTHERS = {**UNSAID, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION"}


def output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def identity(name: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def package_of(library: str) -> str | None:
    """The Debian package of a library by its name; a merged /usr has files at two places."""
    for folder in sorted(glob.glob(f"{ROOT}/usr/lib/*-linux-gnu") + glob.glob(f"{ROOT}/lib/*-linux-gnu")):
        if not os.path.exists(f"{folder}/{library}"):
            continue
        inside = f"{folder.removeprefix(ROOT)}/{library}"
        for path in (inside, inside.removeprefix("/usr"), "/usr" + inside):
            found = subprocess.run(["dpkg-query", "--admindir", ADMIN, "-S", path], capture_output=True, text=True)
            if found.returncode == 0:
                return found.stdout.split(":")[0]
    return None


def of_debian(package: str) -> dict:
    name, _, version = package.partition("=")
    source = name
    if not version:
        said = output("dpkg-query", "--admindir", ADMIN, "-W", "-f", "${Version}|${source:Package}\n", name)
        version, source = said.splitlines()[0].split("|")
    return {
        "SPDXID": identity(name), "name": name, "versionInfo": version, "supplier": "Organization: Debian",
        "sourceInfo": f"source package {source}", **OTHERS,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": f"pkg:deb/debian/{name}@{version}"}],
    }


def of_npm(name: str, version: str) -> dict:
    return {
        "SPDXID": identity("npm-" + name), "name": name, "versionInfo": version, **OTHERS,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": f"pkg:npm/{name.replace('@', '%40')}@{version}"}],
    }


def own(spdx_id: str, name: str, version: str, file: Path) -> dict:
    return {"SPDXID": spdx_id, "name": name, "versionInfo": version, "packageFileName": file.name, **UNSAID,
            "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
            "checksums": [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(file.read_bytes()).hexdigest()}]}


def libraries_of(file: Path) -> list[str]:
    needed = re.findall(r"\(NEEDED\).*\[(\S+)\]", output("readelf", "-dW", str(file)))
    return sorted({package for library in needed if (package := package_of(library))})


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    program, name, version, *archives = sys.argv[1:]
    program = Path(program)
    page = json.loads((TREE / "webui/package.json").read_text(encoding="utf-8"))["dependencies"]
    packages, relations = [own("SPDXRef-Sluice", name, version, program)], []

    def add(package: dict, relation: str, of: str = "SPDXRef-Sluice") -> None:
        if package["SPDXID"] not in {known["SPDXID"] for known in packages}:
            packages.append(package)
        relations.append({"spdxElementId": of, "relationshipType": relation, "relatedSpdxElement": package["SPDXID"]})

    relations.append({"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Sluice"})
    for library in libraries_of(program):
        add(of_debian(library), "DYNAMIC_LINK")
    for package in HEADERS + archives:
        add(of_debian(package), "STATIC_LINK")
    for package, its_version in sorted(page.items()):
        add(of_npm(package, its_version), "STATIC_LINK")
    for model in sorted((program.parent.parent / "share/sluice/models").glob("*.gguf")):
        add(own(identity(model.name), model.name, version, model), "CONTAINS")
    backend = program.parent / "libsluice_cuda.so"
    if backend.exists():
        add(own("SPDXRef-CUDA-backend", backend.name, version, backend), "CONTAINS")
        for library in libraries_of(backend):
            add(of_debian(library), "DYNAMIC_LINK", "SPDXRef-CUDA-backend")
        runtime = {"SPDXID": "SPDXRef-cudart", "name": "cudart_static", "supplier": "Organization: NVIDIA", **OTHERS}
        add(runtime, "STATIC_LINK", "SPDXRef-CUDA-backend")

    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", program.stat().st_mtime)), datetime.timezone.utc)
    digest = packages[0]["checksums"][0]["checksumValue"]
    json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
               "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{digest}",
               "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: sluice-sbom"]},
               "packages": packages, "relationships": relations}, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
