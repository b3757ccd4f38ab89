#!/usr/bin/python3
"""What ./dev package made, tried where nothing else is: roots of Debian that hold a C library alone, a bare Debian 12, an
image's own root. As root; needs Debian's archive.

usage: package_test.py FOLDER     (./dev test --package; FOLDER: build/release/packages)

Prints `skipped: TEST: WHY` for what cannot be tried here.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
FOLDER = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
ROOTS = TREE / "build/package-roots"


def one(pattern: str) -> Path:
    (found,) = FOLDER.glob(pattern)
    return found


def run(*words, check=True, **options) -> subprocess.CompletedProcess:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                          timeout=600, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done


def inside(root: Path, *words, user: str = "", own_network: bool = False) -> list[str]:
    """The words of a command in a root of its own, with /proc and /dev, and with the processes that it starts alone, which end
    with it."""
    for name in ("proc", "dev"):
        (root / name).mkdir(exist_ok=True)
    chroot = ["chroot", *([f"--userspec={user}"] if user else []), str(root), *map(str, words)]
    up = "ip link set lo up && " if own_network else ""
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", *(["--net"] if own_network else []),
            f"--mount-proc={root}/proc", "sh", "-c", f'mount --rbind /dev {root}/dev && {up}exec "$@"', "sh", *chroot]


def sysroot(suite: str, architecture: str, *packages: str) -> Path:
    """A root with these packages unpacked, kept for the next time."""
    root = ROOTS / f"{suite}-{architecture}"
    run(TREE / "tools/sysroot.sh", suite, architecture, root, *packages)
    return root


class Mirror:
    """A hub on this machine with one model: m/tale, the bundled one."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        repository = Path(self.folder.name, "files/m/tale")
        repository.mkdir(parents=True)
        (repository / "tale-Q4_K_M.gguf").symlink_to(TREE / "models/fairy-tales.gguf")
        self.process = subprocess.Popen([sys.executable, TREE / "tests/hub/mirror.py", self.folder.name], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.endpoint = f"http://127.0.0.1:{self.process.stdout.readline().split()[0]}"

    def close(self):
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()


def packages_with_cuda() -> Path:
    """The folder of the packages with CUDA; where none were made, of some with a library that stands in and says so."""
    folder = FOLDER.parent / "packages-cuda"
    if not list(folder.glob("*.deb")):
        if shutil.which("g++") is None:
            raise unittest.SkipTest("no packages with CUDA (./dev package LIBRARY), and no g++ to stand in for a library")
        with tempfile.TemporaryDirectory() as made:
            library = Path(made, "library.so")
            run("g++", "-shared", "-fPIC", "-o", library, TREE / "tests/package/stand_in.cc")
            run(TREE / "tools/package.sh", FOLDER.parent, library)
        unittest.addModuleCleanup(shutil.rmtree, folder)
    return folder


class Files(unittest.TestCase):
    def check(self, folder: Path) -> None:
        run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=folder)
        named = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
        self.assertEqual(named, {path.name for path in folder.iterdir()} - {"SHA256SUMS"})
        lists = list(folder.glob("*.spdx.json"))
        self.assertTrue(lists)
        for path in lists:
            document = json.loads(path.read_text())
            self.assertEqual(document["spdxVersion"], "SPDX-2.3")
            names = {package["name"] for package in document["packages"]}
            self.assertLess({"libboost-dev", "libcli11-dev", "nlohmann-json3-dev", "preact", "fairy-tales.gguf"}, names)
            self.assertTrue(names & {"libcurl4", "curl"}, names)
            ids = [package["SPDXID"] for package in document["packages"]]
            self.assertEqual(len(ids), len(set(ids)))
            for relation in document["relationships"]:
                self.assertLessEqual({relation["spdxElementId"], relation["relatedSpdxElement"]}, {*ids, "SPDXRef-DOCUMENT"})

    def check_digests(self, document: Path, root: Path) -> None:
        """What a list says of our own files is true of those that were delivered."""
        own = [package for package in json.loads(document.read_text())["packages"] if "checksums" in package]
        self.assertGreaterEqual(len(own), 2)
        for package in own:
            files = [path for path in root.rglob(package["packageFileName"]) if path.is_file()]
            self.assertIn(package["checksums"][0]["checksumValue"], [hashlib.sha256(path.read_bytes()).hexdigest() for path in files])

    def test_sums_and_lists_are_of_these_files(self):
        self.check(FOLDER)
        with tempfile.TemporaryDirectory() as root:
            run("dpkg-deb", "--extract", one("*.deb"), f"{root}/package")
            self.check_digests(one("*-amd64.spdx.json"), Path(root, "package"))
            run("tar", "-C", root, "-xzf", one("*-linux-x86_64.tar.gz"))
            self.check_digests(one("*-x86_64.spdx.json"), next(Path(root).glob("*-x86_64")))

    def test_sums_and_lists_with_cuda(self):
        folder = packages_with_cuda()
        self.check(folder)
        with tempfile.TemporaryDirectory() as root:
            run("dpkg-deb", "--extract", next(folder.glob("*.deb")), root)
            (document,) = folder.glob("*.spdx.json")
            self.check_digests(document, Path(root))
            names = {package["name"] for package in json.loads(document.read_text())["packages"]}
            self.assertLess({"libsluice_cuda.so", "cudart_static"}, names)

    def test_the_same_bytes_once_more(self):
        before = (FOLDER / "SHA256SUMS").read_bytes()
        with tempfile.TemporaryDirectory() as kept:
            for path in FOLDER.iterdir():
                shutil.copy2(path, kept)
            run(TREE / "tools/package.sh", FOLDER.parent)
            different = [name for name in sorted(os.listdir(kept)) if Path(kept, name).read_bytes() != (FOLDER / name).read_bytes()]
        self.assertEqual(different, [])
        self.assertEqual((FOLDER / "SHA256SUMS").read_bytes(), before)


class Archive(unittest.TestCase):
    """The archive in roots that hold a C library and nothing else."""

    def tried(self, suite: str, version: str) -> None:
        root = sysroot(suite, "amd64", "libc6")
        self.assertFalse(list(root.glob("usr/lib/*/libstdc++*")))
        for old in root.glob("opt/*"):
            shutil.rmtree(old)
        (root / "opt").mkdir(exist_ok=True)
        with tarfile.open(one("*-linux-x86_64.tar.gz")) as archive:
            top = archive.getnames()[0].split("/")[0]
            archive.extractall(root / "opt")
        program = f"/opt/{top}/bin/sluice"
        self.assertIn(version, run("strings", "-a", next(root.glob("lib/x86_64-linux-gnu/libc.so.6"))).stdout)
        self.assertIn("0.2.0", run(*inside(root, program, "--version"), env=CLEAN).stdout)
        tale = run(*inside(root, program, "run", "-n", 30, "-s", 2), env=CLEAN).stdout
        self.assertTrue(tale.startswith("Once upon a time"), tale)
        wrong = run(*inside(root, program, "run", "--nonsense"), env=CLEAN, check=False)  # an exception from end to end
        self.assertEqual((wrong.returncode, wrong.stdout), (2, ""), wrong.stderr)
        self.assertIn("--nonsense", wrong.stderr)
        mirror = Mirror()
        self.addCleanup(mirror.close)
        hub = {**CLEAN, "HF_ENDPOINT": mirror.endpoint, "HF_HOME": "/opt/hub"}
        run(*inside(root, program, "pull", "m/tale"), env=hub)
        tale = run(*inside(root, program, "run", "-hf", "m/tale", "-n", 30, "-s", 2), env=hub).stdout
        self.assertTrue(tale.startswith("Once upon a time"), tale)

    def test_debian_11(self):
        self.tried("bullseye", "GNU C Library (Debian GLIBC 2.31")

    def test_debian_12(self):
        self.tried("bookworm", "GNU C Library (Debian GLIBC 2.36")

    def test_debian_13(self):
        self.tried("trixie", "GNU C Library (Debian GLIBC 2.41")


class Package(unittest.TestCase):
    """The .deb in a bare Debian 12, installed, used, upgraded around, and removed."""

    @classmethod
    def setUpClass(cls):
        cls.root = ROOTS / "debian-12"
        pristine = ROOTS / "debian-12.tar"
        if not pristine.exists():
            if shutil.which("debootstrap") is None:
                raise unittest.SkipTest("no debootstrap here")
            shutil.rmtree(cls.root, ignore_errors=True)
            cls.root.parent.mkdir(parents=True, exist_ok=True)
            run("debootstrap", "--variant=minbase", "bookworm", cls.root, os.environ.get("MIRROR") or "http://deb.debian.org/debian")
            for name in ("proc", "sys"):  # debootstrap may leave them
                run("umount", cls.root / name, check=False)
            run("tar", "-C", cls.root, "--one-file-system", "-cf", pristine, ".")
        shutil.rmtree(cls.root, ignore_errors=True)
        cls.root.mkdir()
        run("tar", "-C", cls.root, "-xf", pristine)
        settings = run("apt-config", "dump").stdout
        (cls.root / "etc/apt/apt.conf.d/90host").write_text(
            "".join(line + "\n" for line in settings.splitlines() if line.startswith("Acquire::http")))
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", cls.root / "etc" / name)
        shutil.copy(one("*.deb"), cls.root / "root")
        shutil.copy(next(packages_with_cuda().glob("*.deb")), cls.root / "root")
        cls.mirror = Mirror()
        cls.addClassCleanup(cls.mirror.close)
        cls.environment = {**CLEAN, "DEBIAN_FRONTEND": "noninteractive", "HF_ENDPOINT": cls.mirror.endpoint}
        cls.inside("apt-get", "update")
        cls.inside("sh", "-c", "apt-get install -y --no-install-recommends /root/sluice-llm_*.deb")

    @classmethod
    def inside(cls, *words, check=True):
        return run(*inside(cls.root, *words), env=cls.environment, check=check)

    def test_1_install_pull_run(self):
        self.assertIn("fetching", self.inside("sluice", "pull", "m/tale:Q4_K_M").stderr)
        self.assertIn("m/tale:Q4_K_M", self.inside("sluice", "list").stdout)
        tale = self.inside("sluice", "run", "-hf", "m/tale:Q4_K_M", "-n", "30", "-s", "2").stdout
        self.assertTrue(tale.startswith("Once upon a time"), tale)
        self.assertTrue(self.inside("sluice", "run", "-n", "30", "-s", "2").stdout.startswith("Once upon a time"))  # bundled

    def test_2_what_it_brings(self):
        for path in ("usr/share/man/man1/sluice-serve.1.gz", "usr/share/bash-completion/completions/sluice", "etc/default/sluice",
                     "usr/share/zsh/vendor-completions/_sluice", "usr/share/fish/vendor_completions.d/sluice.fish",
                     "usr/lib/systemd/system/sluice.service", "usr/share/doc/sluice-llm/copyright"):
            self.assertTrue((self.root / path).is_file(), path)
        self.assertEqual(self.inside("dpkg", "--verify").stdout, "")

    def test_3_debians_own_sluice_stays_away(self):
        policy = self.inside("apt-cache", "policy", "sluice").stdout
        self.assertIn("Candidate: 0.02", policy)  # it is in the sources, and its version sorts above ours
        self.inside("dpkg", "--compare-versions", "0.02.15-1", "gt", "0.2.0")
        for verb in ("upgrade", "dist-upgrade"):
            self.inside("apt-get", "-y", verb)
            self.assertIn("sluice-llm", self.inside("dpkg-query", "-W", "-f", "${Package} ${Status}", "sluice-llm").stdout)
            self.assertIn("0.2.0", self.inside("sluice", "--version").stdout)
        self.assertIn("Remv sluice-llm", self.inside("apt-get", "-s", "install", "sluice").stdout)

    def test_4_the_sibling_takes_its_place_with_its_settings(self):
        # A systemd that runs, as far as the packages' scripts can see.
        (self.root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        enabled = self.root / "etc/systemd/system/multi-user.target.wants/sluice.service"
        enabled.parent.mkdir(parents=True, exist_ok=True)
        enabled.symlink_to("/lib/systemd/system/sluice.service")
        systemctl = self.root / "usr/bin/systemctl"
        systemctl.write_text('#!/bin/sh\necho "$*" >>/root/systemctl\ncase "$*" in *is-enabled*) test -L '
                             "/etc/systemd/system/multi-user.target.wants/sluice.service ;; esac\n")
        systemctl.chmod(0o755)
        self.addCleanup(systemctl.unlink)
        said = self.root / "root/systemctl"
        settings, fetched = self.root / "etc/default/sluice", self.root / "var/cache/private/sluice/hub/model"
        settings.write_text("MODEL=mine\n")
        fetched.parent.mkdir(parents=True)
        fetched.write_text("weights")
        for new, old in (("sluice-llm-cuda", "sluice-llm"), ("sluice-llm", "sluice-llm-cuda")):
            said.write_text("")
            self.inside("sh", "-c", f"apt-get install -y --no-install-recommends /root/{new}_*.deb")
            status = self.inside("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", "sluice-llm*").stdout.splitlines()
            self.assertIn(f"{new} installed", status)
            self.assertNotIn(f"{old} installed", status)
            self.assertRegex(said.read_text(), r"(?s)stop sluice.service.*\n--quiet is-enabled sluice.service\nrestart sluice.service\n$")
            self.inside("apt-get", "-y", "purge", old)
            self.assertEqual(settings.read_text(), "MODEL=mine\n")
            self.assertTrue(fetched.exists())
            self.assertTrue(enabled.is_symlink())
            self.assertEqual("cuda" in new, (self.root / "usr/bin/libsluice_cuda.so").exists())
            self.assertEqual("cuda" in new, (self.root / "usr/lib/systemd/system/sluice.service.d/sluice-gpu.conf").exists())
            devices = self.inside("sluice", "devices").stdout
            self.assertEqual("cuda" not in new, "this build has no CUDA backend" in devices, devices)
            self.assertIn("cpu ", devices)

    def test_5_goes_and_leaves_nothing(self):
        settings = self.root / "etc/default/sluice"
        settings.write_text("MODEL=mine\n")
        self.inside("apt-get", "-y", "remove", "sluice-llm")
        self.assertTrue(settings.exists())
        self.assertNotEqual(self.inside("sluice", "--version", check=False).returncode, 0)
        self.inside("apt-get", "-y", "purge", "sluice-llm")
        left = [path for folder in ("etc", "usr", "var/cache", "var/lib") for path in (self.root / folder).rglob("*sluice*")
                if "apt/lists" not in str(path)]
        self.assertEqual(left, [])


def unpacked(file: Path, folder: str) -> Path:
    """The root of an image, as others' tools read it."""
    run("skopeo", "copy", f"oci-archive:{file}", f"oci:{folder}/image:it")
    run("umoci", "unpack", "--image", f"{folder}/image:it", f"{folder}/bundle")
    return Path(folder, "bundle/rootfs")


class Image(unittest.TestCase):
    """The image, read by others' tools, and what it starts, in its root."""

    @classmethod
    def setUpClass(cls):
        for tool in ("skopeo", "umoci", "nsenter", "ip"):
            if shutil.which(tool) is None:
                raise unittest.SkipTest(f"no {tool} here")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.file = one("*-amd64.oci.tar")
        cls.root = unpacked(cls.file, cls.folder.name)

    def test_with_cuda_finds_its_library(self):
        with tempfile.TemporaryDirectory() as folder:
            file = next(packages_with_cuda().glob("*.oci.tar"))
            root = unpacked(file, folder)
            process = json.loads((root.parent / "config.json").read_text())["process"]
            self.assertIn("NVIDIA_VISIBLE_DEVICES=all", process["env"])  # what brings the driver in
            self.assertIn("NVIDIA_DRIVER_CAPABILITIES=compute,utility", process["env"])
            devices = run(*inside(root, "/usr/bin/sluice", "devices", user="65534:65534"), env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}).stdout
            self.assertIn("cpu ", devices)
            self.assertNotIn("this build has no CUDA backend", devices)

    def test_says_what_it_is(self):
        about = json.loads(run("skopeo", "inspect", "--config", f"oci-archive:{self.file}").stdout)
        self.assertEqual((about["architecture"], about["os"]), ("amd64", "linux"))
        self.assertEqual(about["config"]["User"], "65534:65534")
        process = json.loads((self.root.parent / "config.json").read_text())["process"]
        self.assertEqual(process["args"], ["serve-container"])
        self.assertEqual((process["user"]["uid"], process["user"]["gid"]), (65534, 65534))
        self.assertIn("BEGIN CERTIFICATE", (self.root / "etc/ssl/certs/ca-certificates.crt").read_text())
        self.assertFalse([path for path in self.root.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o6000])

    def test_starts_with_a_key_alone_and_answers(self):
        command = inside(self.root, "/usr/bin/serve-container", "-c", "256", user="65534:65534", own_network=True)
        environment = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin", "HF_HOME": "/var/lib/sluice"}
        refused = run(*command, env=environment, check=False)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("sluice: no key", refused.stderr)
        process = subprocess.Popen(command, env={**environment, "SLUICE_API_KEY": "sesame"}, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        told, child = "", ""
        try:
            for line in process.stderr:
                told += line
                if "ready at" in line:
                    break
            self.assertIn("ready at", told)
            child = run("pgrep", "-P", process.pid).stdout.split()[0]
            self.asked(child)
        finally:  # the first process of its world; what takes another user outlives its parent
            os.kill(int(child) if child else process.pid, signal.SIGKILL)
            process.communicate()

    def asked(self, child: str) -> None:
        def ask(key: str) -> subprocess.CompletedProcess:
            script = ("import sys, urllib.request as u; r = u.Request('http://127.0.0.1:8080/v1/completions', b'{\"prompt\": \"Once\", "
                      "\"max_tokens\": 4}', {'Authorization': 'Bearer ' + sys.argv[1]}); print(u.urlopen(r).read().decode())")
            return run("nsenter", "--net", "--target", child, sys.executable, "-c", script, key, check=False)

        self.assertIn("401", ask("guess").stderr)
        answer = json.loads(ask("sesame").stdout)
        self.assertEqual(answer["usage"]["completion_tokens"], 4)


class Arm64(unittest.TestCase):
    """The package for aarch64, unpacked with what it depends on, by emulation."""

    def test_runs(self):
        packages = list((TREE / "build/arm64/packages").glob("*_arm64.deb"))
        if not packages:
            self.skipTest("no package for arm64 was made (./dev package arm64)")
        if shutil.which("qemu-aarch64-static") is None:
            self.skipTest("no qemu-aarch64-static here")
        root = ROOTS / "arm64"
        shutil.rmtree(root, ignore_errors=True)
        run(TREE / "tools/sysroot.sh", "bookworm", "arm64", root, packages[0])
        self.assertIn("aarch64", run("readelf", "-h", root / "usr/bin/sluice").stdout.lower())
        libraries = f"{root}/usr/lib/aarch64-linux-gnu:{root}/lib/aarch64-linux-gnu"
        emulated = ["qemu-aarch64-static", "-L", root, "-E", f"LD_LIBRARY_PATH={libraries}", root / "usr/bin/sluice"]
        self.assertIn("0.2.0", run(*emulated, "--version").stdout)
        tale = run(*emulated, "run", "-m", TREE / "models/fairy-tales.gguf", "-n", 12, "-s", 2, "-t", 1).stdout
        self.assertTrue(tale.startswith("Once upon a time"), tale)


if __name__ == "__main__":
    if FOLDER is None:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    if os.geteuid() != 0:
        print("skipped: package: only root may chroot")
        sys.exit(0)
    began = time.monotonic()
    result = unittest.main(exit=False, verbosity=2).result
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    bad = len(result.failures) + len(result.errors)
    print(f"package: {result.testsRun - bad - len(result.skipped)} passed, {bad} failed, {len(result.skipped)} skipped, "
          f"{time.monotonic() - began:.0f} s")
    sys.exit(1 if bad else 0)
