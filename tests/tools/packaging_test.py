#!/usr/bin/python3
"""The systemd unit and the container's script: what they promise. Needs no container and no systemd that runs.

usage: packaging_test.py [BINARY]    BINARY: sluice, which is started as the unit says
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request

TREE = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = TREE / "packaging"
BINARY = sys.argv.pop(1) if len(sys.argv) > 1 else None


class Notice(unittest.TestCase):
    """NOTICE names what the program holds of others, and is installed with it."""

    def test_names_what_is_compiled_in(self):
        root = PACKAGING.parent
        notice = (root / "NOTICE").read_text(encoding="utf-8").lower()
        page = json.loads((root / "webui/package.json").read_text(encoding="utf-8"))["dependencies"]
        for name in (*page, "CLI11", "nlohmann", "Boost"):
            self.assertIn(name.lower(), notice)
        libraries = {"libfmt": "{fmt}", "libcli11": "CLI11", "nlohmann-json3": "nlohmann", "libpcre2": "PCRE2", "libedit": "libedit",
                     "libboost": "Boost", "libssl": "OpenSSL", "zlib1g": "zlib", "libzstd": "Zstandard", "libbrotli": "Brotli",
                     "libcurl4-openssl": "curl", "libvulkan": "Vulkan-Headers"}
        build = re.search(r'\[build\]="([^"]*)"', (root / "dev").read_text(encoding="utf-8"))[1]
        for package in build.split():
            if package.endswith("-dev"):
                self.assertIn(libraries[package.removesuffix("-dev")].lower(), notice, package)

    def test_names_what_the_archive_is_linked_with(self):
        holds = {"ssl": "OpenSSL", "crypto": "OpenSSL", "z": "zlib", "zstd": "Zstandard", "brotlidec": "Brotli", "brotlicommon": "Brotli",
                 "pcre2-8": "PCRE2", "edit": "libedit", "tinfo": "ncurses", "bsd": "libbsd"}
        packages = {"crypto": "libssl", "z": "zlib1g", "brotlidec": "libbrotli", "brotlicommon": "libbrotli", "pcre2-8": "libpcre2",
                    "tinfo": "libncurses"}
        notice = (TREE / "NOTICE").read_text(encoding="utf-8")
        listed = re.search(r"tools/sbom.py\".*?>", (TREE / "tools/package.sh").read_text(encoding="utf-8"), re.S)[0]
        archives = re.search(r"set\(portable_archives ([^)]*)\)", (TREE / "cmake/portable.cmake").read_text(encoding="utf-8"))[1].split()
        self.assertIn("crypto", archives)
        for archive in archives:
            self.assertIn(holds[archive], notice, archive)
            self.assertIn(f" {packages.get(archive, 'lib' + archive)}-dev", listed, archive)

    def test_has_the_licences_that_it_names(self):
        """Works are named in lines of two columns; a licence's text stands under its name, or in LICENSE."""
        notice = (PACKAGING.parent / "NOTICE").read_text(encoding="utf-8")
        texts = set(re.findall(r"^--- (\S+) -+$", notice, re.M)) | {"Apache-2.0"}
        named = re.findall(r"^ {2,4}\S.*?  +((?:MIT|BSD|BSL|Zlib|curl|X11|ISC|Apache)[^\s,]*(?:, [^\s,]+)*) ", notice, re.M)
        self.assertGreater(len(named), 15)
        for licences in named:
            for licence in licences.split(", "):
                self.assertIn(licence.replace("BSD-2-Clause", "BSD-3-Clause"), texts)

    def test_is_installed(self):
        self.assertRegex((PACKAGING.parent / "CMakeLists.txt").read_text(encoding="utf-8"),
                         r"install\(FILES LICENSE NOTICE README.md DESTINATION \$\{CMAKE_INSTALL_DOCDIR\}\)")


class Libraries(unittest.TestCase):
    """What the program loads is named where packages and images are made."""

    @unittest.skipUnless(BINARY, "no binary was given")
    def test_the_dockerfile_installs_what_the_program_is_linked_to(self):
        system = pathlib.Path("/etc/os-release")
        if not system.exists() or "VERSION_CODENAME=bookworm" not in system.read_text() or shutil.which("dpkg-query") is None:
            self.skipTest("libraries have the names of Debian 12's packages")
        installed = re.search(r"apt-get install -y --no-install-recommends (.*?)&&", (PACKAGING / "Dockerfile").read_text(), re.S)[1]
        base = {"libc6", "libgcc-s1", "libstdc++6"}  # apt's own, in every image of Debian
        told = subprocess.run(["readelf", "--wide", "--dynamic", BINARY], text=True, capture_output=True, check=True).stdout
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", told):
            found = subprocess.run(["dpkg-query", "-S", f"*/{library}"], text=True, capture_output=True, check=False).stdout
            self.assertTrue({line.split(":")[0] for line in found.splitlines()} & (base | set(installed.split())), library)

    def test_packages_suggest_what_the_program_opens(self):
        packages = {"zmq.so.5": "libzmq5", "vulkan.so.1": "libvulkan1", "mpi.so.40": "libopenmpi3", "nccl.so.2": None}  # not Debian's
        suggested = re.search(r'PACKAGE_SUGGESTS "(.*)"', (TREE / "cmake/package.cmake").read_text(encoding="utf-8"))[1].split(", ")
        opened = set()
        for source in (TREE / "src").rglob("*.cc"):
            opened |= set(re.findall(r'"lib(\w+\.so\.\d+)"', source.read_text(encoding="utf-8")))
        self.assertEqual(opened, set(packages))
        self.assertLessEqual(set(packages.values()) - {None}, set(suggested))


class Container(unittest.TestCase):
    """serve-container with a stand-in for sluice that tells how it was called."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        root = pathlib.Path(self.folder.name)
        stand_in = root / "sluice"
        stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n'
                            'while [ "$1" != --api-key-file ]; do shift; done\n'
                            'echo "keys: $(cat "$2")"\nstat -c "mode %a" "$2"\n'
                            'echo "variable: ${SLUICE_API_KEY-none}"\n')
        stand_in.chmod(0o755)
        self.keys = root / "keys"

    def run_script(self, *arguments, **variables):
        variables = {"PATH": f"{self.folder.name}:/usr/bin:/bin", "SLUICE_KEY_FILE": str(self.keys),
                     "TMPDIR": self.folder.name, **variables}
        return subprocess.run([PACKAGING / "serve-container", *arguments], env=variables, text=True,
                              capture_output=True, check=False)

    def test_never_opens_without_a_key(self):
        for content in (None, "", "\n", "  \n\t\n"):
            if content is not None:
                self.keys.write_text(content)
            result = self.run_script("-m", "m.gguf")
            self.assertEqual(result.returncode, 2, content)
            self.assertEqual(result.stdout, "", content)
            self.assertIn("sluice: no key", result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
        self.assertEqual(self.run_script(SLUICE_API_KEY="").returncode, 2)

    def test_takes_a_key_of_the_environment_and_passes_it_on_in_a_file(self):
        result = self.run_script("-m", "a file.gguf", SLUICE_API_KEY="se cret$x")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("keys: se cret$x\nmode 600\nvariable: none\n", result.stdout)
        self.assertEqual(result.stdout.split("\n")[:4], ["serve", "--host", "0.0.0.0", "--port"])
        self.assertIn("\n-m\na file.gguf\n", result.stdout)

    def test_takes_a_file_of_keys(self):
        self.keys.write_text("one\ntwo\n")
        result = self.run_script("-m", "m.gguf")
        self.assertIn(f"\n--api-key-file\n{self.keys}\n", result.stdout)
        self.assertIn("keys: one\ntwo\n", result.stdout)


class Unit(unittest.TestCase):
    def exposure(self, text):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "sluice.service"
            unit.write_text(text)
            told = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], text=True,
                                  capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout
        return float(told.strip().split("\n")[-1].split(":")[1].split()[0])

    def test_is_little_exposed(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("no systemd-analyze here")
        unit = (PACKAGING / "sluice.service").read_text()
        self.assertLess(self.exposure(unit), 2.5)
        drop_in = (PACKAGING / "sluice-gpu.conf").read_text()
        service, install = unit.split("[Install]")
        self.assertLess(self.exposure(service + drop_in + "[Install]" + install), 2.5)

    def test_systemd_reads_it(self):
        if shutil.which("systemd-analyze") is None or shutil.which("man") is None:
            self.skipTest("no systemd-analyze or man here")
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "sluice.service"
            text = (PACKAGING / "sluice.service").read_text()
            unit.write_text(text.replace("ExecStart=sluice", "ExecStart=/bin/true").replace("man:sluice(1)", "man:man(1)"))
            told = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], text=True, capture_output=True, check=False)
        self.assertEqual([line for line in told.stderr.splitlines() if "sluice.service" in line], [])


class Service(unittest.TestCase):
    """What the unit starts, as systemd reads it: words of variables, another user, a socket that hears how it goes."""

    def command(self, settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        unit = (PACKAGING / "sluice.service").read_text()
        variables = {}
        for line in re.findall(r"^Environment=(.*)$", unit, re.M):
            variables.update(part.split("=", 1) for part in shlex.split(line))
        variables.update(settings)
        words = []
        for word in re.search(r"^ExecStart=(.*)$", unit, re.M)[1].split():
            # $NAME is none, one or several words, as the variable has them.
            words += shlex.split(variables[word[1:]]) if word.startswith("$") else [word]
        return words, variables

    def settings_of(self, file: str) -> dict[str, str]:
        lines = [line for line in file.splitlines() if line and not line.startswith("#")]
        return {name: "".join(shlex.split(value)) for name, value in (line.split("=", 1) for line in lines)}

    def test_the_settings_that_are_installed_choose_the_installed_model(self):
        words, _ = self.command(self.settings_of((PACKAGING / "debian/sluice.default").read_text()))
        self.assertEqual(words, ["sluice", "serve", "--host", "127.0.0.1", "--port", "8080", "--drain", "60"])

    @unittest.skipUnless(BINARY, "no binary was given")
    def test_serves_a_model_of_the_hub(self):
        become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
        if subprocess.run([*become, BINARY, "--version"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no other user can run programs here")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            hub, notify = pathlib.Path(folder, "hub"), f"{folder}/notify"
            (hub / "files/m/tale").mkdir(parents=True)
            (hub / "files/m/tale/tale-Q4_K_M.gguf").symlink_to(TREE / "models/fairy-tales.gguf")
            mirror = subprocess.Popen([sys.executable, TREE / "tests/hub/mirror.py", hub], text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
            self.addCleanup(mirror.communicate)
            self.addCleanup(mirror.kill)
            endpoint = f"http://127.0.0.1:{mirror.stdout.readline().split()[0]}"
            words, variables = self.command(self.settings_of(f'MODEL="-hf m/tale:Q4_K_M"\nOPTIONS="-c 256"\nHF_ENDPOINT={endpoint}\n'))
            words[0] = BINARY
            words[words.index("--port") + 1] = "0"
            heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(heard.close)
            heard.bind(notify)
            os.chmod(notify, 0o777)
            heard.settimeout(60)
            environment = {**variables, "HF_HOME": f"{folder}/cache", "XDG_CACHE_HOME": f"{folder}/cache", "NOTIFY_SOCKET": notify,
                           "PATH": "/usr/bin:/bin"}
            with open(f"{folder}/log", "w+", encoding="utf-8") as log:
                service = subprocess.Popen([*become, *words], env=environment, stderr=log)
                try:
                    said = ""
                    while said != "READY=1":
                        said = heard.recv(256).decode()
                        self.assertIn(said, ("EXTEND_TIMEOUT_USEC=60000000", "READY=1"))
                    log.seek(0)
                    address = re.search(r"ready at (http://\S+)", log.read())[1]
                    body = b'{"prompt": "Once", "max_tokens": 4}'
                    with urllib.request.urlopen(urllib.request.Request(address + "/v1/completions", body)) as answer:
                        self.assertIn(b'"completion_tokens":4', answer.read())
                    self.assertTrue(list(pathlib.Path(folder, "cache/hub").glob("models--m--tale/snapshots/*/tale-Q4_K_M.gguf")))
                finally:
                    service.terminate()
                    self.assertEqual(service.wait(60), 0)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    sys.exit(not result.wasSuccessful())
