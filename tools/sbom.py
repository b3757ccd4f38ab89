#!/usr/bin/env python3
"""A bill of materials (SPDX 2.3, JSON) of the program: the Debian packages whose code it holds or loads.

usage: sbom.py BINARY NAME VERSION [PACKAGE[=VERSION]...] > FILE
  PACKAGE  is in the program too (archives that it was linked with); with its version, where it is not installed here
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

HEADERS = ["libcli11-dev", "nlohmann-json3-dev", "libboost-dev"]  # compiled in
ADMIN = os.environ.get("DPKG_ADMINDIR", "/var/lib/dpkg")
ROOT = ADMIN.removesuffix("/var/lib/dpkg")


def output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


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


def entry(package: str) -> dict:
    name, _, version = package.partition("=")
    source = name
    if not version:
        said = output("dpkg-query", "--admindir", ADMIN, "-W", "-f", "${Version}|${source:Package}\n", name)
        version, source = said.splitlines()[0].split("|")
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
        "name": name, "versionInfo": version, "supplier": "Organization: Debian", "sourceInfo": f"source package {source}",
        "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION", "filesAnalyzed": False,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": f"pkg:deb/debian/{name}@{version}"}],
    }


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    binary, name, version, *archives = sys.argv[1:]
    digest = hashlib.sha256(Path(binary).read_bytes()).hexdigest()
    needed = re.findall(r"\(NEEDED\).*\[(\S+)\]", output("readelf", "-dW", binary))
    loaded = sorted({package for library in needed if (package := package_of(library))})
    when = int(os.environ.get("SOURCE_DATE_EPOCH", Path(binary).stat().st_mtime))
    inside = HEADERS + archives
    packages = [entry(package) for package in loaded + inside]
    own = {"SPDXID": "SPDXRef-Sluice", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
           "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
           "filesAnalyzed": False, "checksums": [{"algorithm": "SHA256", "checksumValue": digest}]}
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Sluice"}]
    for package in packages:
        relations.append({"spdxElementId": "SPDXRef-Sluice",
                          "relationshipType": "DYNAMIC_LINK" if package["name"] in loaded else "STATIC_LINK",
                          "relatedSpdxElement": package["SPDXID"]})
    json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
               "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{digest}",
               "creationInfo": {"created": datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                                "creators": ["Tool: sluice-sbom"]},
               "packages": [own, *packages], "relationships": relations}, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
