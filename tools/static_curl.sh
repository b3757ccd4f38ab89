#!/usr/bin/env bash
# libcurl.a for the program that needs nothing but the C library: Debian's own names libraries that Debian has no archives
# of. Debian's source, patches included, with HTTP and HTTPS alone.
#
# usage: tools/static_curl.sh FOLDER     writes FOLDER/libcurl.a, with what it needs of this machine's libraries left open
set -euo pipefail

(($# == 1)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$1
if [[ -f $folder/libcurl.a ]]; then exit 0; fi
say() { echo "static_curl: $*" >&2; }
rm -rf -- "$folder"
mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd -P)
apt=$folder/apt
mkdir -p -- "$apt"/{state/lists/partial,cache/archives/partial}
: >"$apt/status"
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${MIRROR:-http://deb.debian.org/debian} bookworm main" \
  >"$apt/sources.list"
own=(-o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
  -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User= -o Acquire::Languages=none)
say "Debian's source of curl"
{ apt-get "${own[@]}" update && (cd -- "$folder" && apt-get "${own[@]}" source --download-only curl &&
  dpkg-source --no-check --extract curl_*.dsc source); } </dev/null >"$folder/log" 2>&1 ||
  { tail -n 15 "$folder/log" >&2; say "no source of curl"; exit 1; }
say "building it"
{ cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DBUILD_CURL_EXE=OFF \
  -DBUILD_TESTING=OFF -DHTTP_ONLY=ON -DCURL_USE_OPENSSL=ON -DCURL_USE_LIBSSH2=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBPSL=OFF \
  -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DUSE_NGHTTP2=OFF -DCURL_DISABLE_ALTSVC=ON -DCMAKE_C_FLAGS="-ffile-prefix-map=$folder=" \
  -DCURL_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt -DCURL_CA_PATH=none &&
  cmake --build "$folder/build" --target libcurl; } </dev/null >"$folder/log" 2>&1 ||
  { tail -n 25 "$folder/log" >&2; say "curl does not build"; exit 1; }
find "$folder/build" -name 'libcurl*.a' -exec cp {} "$folder/libcurl.a" \;
sed -n 's/^Version: //p' "$folder"/curl_*.dsc | sed -n 1p >"$folder/version"
rm -rf -- "$apt" "$folder/source" "$folder/build"
