#!/usr/bin/env python3
"""A bill of materials (SPDX 2.3, JSON) of the program: the Debian packages whose code it holds or loads.

usage: sbom.py BINARY NAME VERSION > FILE
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

HEADERS = ["libcli11-dev", "nlohmann-json3-dev", "libboost-dev"]  # compiled in


def output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def package_of(library: str) -> str | None:
    """The Debian package of a file; a merged /usr has files at two places."""
    for path in (library, os.path.realpath(library), library.removeprefix("/usr"), "/usr" + library):
        found = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    return None


def entry(package: str) -> dict:
    version, source = output("dpkg-query", "-W", "-f", "${Version}|${source:Package}\n", package).splitlines()[0].split("|")
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", package),
        "name": package, "versionInfo": version, "supplier": "Organization: Debian", "sourceInfo": f"source package {source}",
        "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION", "filesAnalyzed": False,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": f"pkg:deb/debian/{package}@{version}"}],
    }


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    binary, name, version = sys.argv[1:]
    digest = hashlib.sha256(Path(binary).read_bytes()).hexdigest()
    needed = re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", binary))
    paths = dict(re.findall(r"^\s*(\S+) => (\S+)", output("ldd", binary), re.M))
    loaded = sorted({package for library in needed if (path := paths.get(library)) and (package := package_of(path))})
    when = int(os.environ.get("SOURCE_DATE_EPOCH", Path(binary).stat().st_mtime))
    packages = [entry(package) for package in loaded + HEADERS]
    own = {"SPDXID": "SPDXRef-Sluice", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
           "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
           "filesAnalyzed": False, "checksums": [{"algorithm": "SHA256", "checksumValue": digest}]}
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Sluice"}]
    for package in packages:
        relations.append({"spdxElementId": "SPDXRef-Sluice",
                          "relationshipType": "STATIC_LINK" if package["name"] in HEADERS else "DYNAMIC_LINK",
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
