#!/usr/bin/env bash
# What a release is made of, out of a program that is built: a Debian package, an archive for every Linux whose C library is
# 2.31 or newer (x86-64), an image for containers, a list of what is in them (SPDX), SHA256SUMS.
#
# usage: tools/package.sh BUILD [LIBRARY]     (./dev package calls it)
#   BUILD    the folder of preset release, cuda-release or arm64
#   LIBRARY  a libsluice_cuda.so that was built before: packages with CUDA of a program without
# The same tree gives the same bytes, at SOURCE_DATE_EPOCH, or at the time of the last commit.
set -euo pipefail

(($# == 1 || $# == 2)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tree=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
build=$(cd -- "$1" && pwd -P)
out=$build/packages${2:+-cuda} work=$build/package-work
say() { echo "package: $*" >&2; }
die() { say "$@"; exit 1; }
setting() { sed -n "s/^set($1 \"\(.*\)\")\$/\1/p" "$build/CPackConfig.cmake"; }

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -c safe.directory="$tree" -C "$tree" log -1 --format=%ct 2>/dev/null || echo 1700000000)}
export LC_ALL=C TZ=UTC
umask 022
architecture=amd64 machine=x86_64 run=()
if [[ $(setting CPACK_DEBIAN_PACKAGE_ARCHITECTURE) == arm64 ]]; then
  architecture=arm64 machine=aarch64
  # The root that it was linked against runs it here, too.
  root=$tree/build/arm64-root
  run=(qemu-aarch64-static -L "$root" -E "LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu")
fi
cmake "-DSLUICE_CUDA_LIBRARY=${2:+$(realpath -- "$2")}" "$build" </dev/null >/dev/null
rm -rf -- "$out" "$work" "$build/pages"
mkdir -p -- "$out" "$work"

name=$(setting CPACK_PACKAGE_NAME) version=$(setting CPACK_PACKAGE_VERSION)

say "man pages and completions"
/usr/bin/python3 "$tree/tools/man_pages.py" "${run[@]}" "$build/bin/sluice" "$build/pages"

say "Debian package"
if [[ $architecture == arm64 ]]; then
  # dpkg-shlibdeps asks for packages of that root, by the names that its files have here.
  cp -r -- "$root/var/lib/dpkg" "$work/dpkg"
  sed -i "s|^/|$root/|" "$work"/dpkg/info/*.list
  export DPKG_ADMINDIR=$work/dpkg DEB_HOST_ARCH=arm64
fi
(cd -- "$tree" && cpack --config "$build/CPackConfig.cmake" -B "$out") </dev/null >"$work/cpack.log" 2>&1 ||
  { tail -n 20 "$work/cpack.log" >&2; die "cpack failed"; }
rm -rf -- "$out/_CPack_Packages"
deb=$(echo "$out"/*.deb)

# archive NAME: of $work/NAME, with nothing in it that another day or another user would make different.
archive() {
  tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -c "$1" |
    gzip -9n >"$out/$1.tar.gz"
}
if [[ -x $build/portable/sluice && -z ${2-} ]]; then
  say "archive"
  folder=$name-$version-linux-$machine
  cmake --install "$build" --prefix "$work/$folder" --strip >/dev/null
  strip -o "$work/$folder/bin/sluice" "$build/portable/sluice"
  if [[ -f $build/portable/libsluice_cuda.so ]]; then
    strip -o "$work/$folder/bin/libsluice_cuda.so" "$build/portable/libsluice_cuda.so"
  fi
  for file in "$work/$folder"/bin/*; do
    newest=$(objdump -T "$file" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
    [[ $(printf '%s\n' "$newest" GLIBC_2.31 | sort -V | tail -n 1) == GLIBC_2.31 ]] || die "$file needs $newest"
  done
  archive "$folder"
  # shellcheck disable=SC2046  # a list of words
  /usr/bin/python3 "$tree/tools/sbom.py" "$work/$folder/bin/sluice" "$name" "$version" \
    $(printf '%s ' libssl-dev zlib1g-dev libzstd-dev libbrotli-dev libpcre2-dev libedit-dev libncurses-dev libbsd-dev \
      libfmt-dev libstdc++-12-dev libgcc-12-dev) "curl=$(<"$tree/build/static-curl/version")" >"$out/$folder.spdx.json"
fi

say "image"
# The package with what it depends on, and the little that its script runs, as Debian's packages; no engine, and not root.
MIRROR=${MIRROR-} "$tree/tools/sysroot.sh" bookworm "$architecture" "$work/root" "$deb" dash coreutils grep ca-certificates libzmq5
rm -rf -- "$work/root/.made" "$work/root/usr/share/"{man,doc-base,info,lintian,locale,bash-completion,zsh,fish} "$work/root"/var/{cache,log}
find "$work/root/usr/share/doc" -type f ! -name copyright -delete
mkdir -p -- "$work/root"/{tmp,proc,sys,dev,run,etc/ssl/certs,usr/bin,var/lib/sluice}
chmod 1777 "$work/root/tmp" "$work/root/var/lib/sluice"
find "$work/root/usr/share/ca-certificates" -name '*.crt' | sort | xargs cat >"$work/root/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n' >"$work/root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$work/root/etc/group"
[[ -e $work/root/bin/sh ]] || ln -s dash "$work/root/bin/sh"
install -m 755 "$tree/packaging/serve-container" "$work/root/usr/bin/"
/usr/bin/python3 "$tree/tools/oci_image.py" "$work/root" "$out/$name-$version-$architecture.oci.tar" \
  "$tree/packaging/image.json" "$name:$version" "$architecture"

say "what is in them"
if [[ $architecture == arm64 ]]; then export DPKG_ADMINDIR=$root/var/lib/dpkg; fi
/usr/bin/python3 "$tree/tools/sbom.py" "$work/root/usr/bin/sluice" "$name" "$version" >"$out/$name-$version-$architecture.spdx.json"
(cd -- "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv -- "$work/SHA256SUMS" .)
rm -rf -- "$work"
say "$out:"
ls -l -- "$out" >&2
