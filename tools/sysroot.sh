#!/usr/bin/env bash
# A folder with Debian packages of any release and architecture unpacked, to compile and link against: what a cross
# build takes its libraries from, and an older C library. Needs no root, changes nothing of this machine's packages; what
# is fetched is checked with Debian's keys.
#
# usage: tools/sysroot.sh SUITE ARCHITECTURE FOLDER PACKAGE...
#   PACKAGE  a name, or a file (with a slash in it); what they depend on comes with them
#   SUITE  bookworm, bullseye, ...; MIRROR in the environment names another archive than deb.debian.org
# The folder's var/lib/dpkg tells dpkg-shlibdeps (DPKG_ADMINDIR) which package a library is of.
set -euo pipefail

(($# >= 4)) || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
suite=$1 architecture=$2 folder=$3
shift 3
stamp=$folder/.made
wanted="$suite $architecture $*"
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then exit 0; fi

say() { echo "sysroot: $*" >&2; }
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -f $keys ]] || { say "$keys is missing: apt-get install debian-archive-keyring"; exit 1; }
rm -rf -- "$folder"
mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd -P)
apt=$folder/apt info=$folder/var/lib/dpkg/info
mkdir -p -- "$apt"/{state/lists/partial,cache/archives/partial} "$info"
echo "deb [signed-by=$keys] ${MIRROR:-http://deb.debian.org/debian} $suite main" >"$apt/sources.list"
: >"$apt/status"
own=(-o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o "Dir::State=$apt/state"
  -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache" -o "Dir::Etc::SourceList=$apt/sources.list"
  -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User=
  -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false)
say "$suite $architecture: $*"
{ apt-get "${own[@]}" update && apt-get "${own[@]}" install -y --no-install-recommends --download-only "$@"; } \
  </dev/null >"$apt/log" 2>&1 || { tail -n 15 "$apt/log" >&2; say "apt-get failed"; exit 1; }

own_files=()
for package; do if [[ -f $package ]]; then own_files+=("$package"); fi; done
for package in "$apt"/cache/archives/*.deb "${own_files[@]}"; do
  dpkg-deb --extract "$package" "$folder"
  dpkg-deb --control "$package" "$apt/control"
  name=$(sed -n 's/^Package: //p' "$apt/control/control")
  if grep -qx 'Multi-Arch: same' "$apt/control/control"; then name+=:$architecture; fi
  for file in symbols shlibs; do
    if [[ -f $apt/control/$file ]]; then cp -- "$apt/control/$file" "$info/$name.$file"; fi
  done
  dpkg-deb --fsys-tarfile "$package" | tar -t | sed 's|^\./|/|; s|/$||; s|^$|/.|' >"$info/$name.list"
  sed '/^Package: /a Status: install ok installed' "$apt/control/control" >>"$folder/var/lib/dpkg/status"
  echo >>"$folder/var/lib/dpkg/status"
  rm -rf -- "$apt/control"
done
echo "$architecture" >"$folder/var/lib/dpkg/arch"
echo 1 >"$info/format"
# Where all is below /usr, base-files has these.
for name in bin sbin lib lib64; do
  if [[ ! -e $folder/$name && -d $folder/usr/$name ]]; then ln -s -- "usr/$name" "$folder/$name"; fi
done
# Links to places in a root lead into this folder.
find "$folder" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -srfT -- "$folder$(readlink -- "$link")" "$link"
done
rm -rf -- "$apt"
echo "$wanted" >"$stamp"
