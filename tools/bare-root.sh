#!/usr/bin/env bash
# Proves the README's promise to a newcomer: in a bare Debian 12 root (debootstrap --variant=minbase, then only git)
# a clone of this repository's HEAD tells a tale with `./dev run` and passes `./dev test`; both times are shown.
# Nothing of the host is mounted in that root, /proc and /sys included. Needs root, debootstrap and the network.
#
# usage: tools/bare-root.sh [--worktree] [--proc] [--cores N] [--mirror URL] [--verbs "run test"] [--keep] [FOLDER]
#   FOLDER      where the root goes: new or empty (default: a new one under $TMPDIR or /tmp)
#   --worktree  take the working tree as it is, without its history, instead of a clone of HEAD
#   --proc      mount /proc, as any container or machine has it
#   --cores N   run on N cores
#   --mirror    Debian's archive; the default is the one in the host's apt sources
#   --verbs     which of the two commands to run
#   --keep      leave the root there afterwards
set -euo pipefail
tree=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { echo "bare-root: $*" >&2; }
die() { say "$@"; exit 1; }

worktree='' proc='' keep='' mirror='' folder='' verbs="run test" on=()
while (($#)); do
  case $1 in
    --worktree) worktree=1 ;;
    --proc) proc=1 ;;
    --keep) keep=1 ;;
    --cores) on=(taskset -c "0-$((${2:?--cores wants a number} - 1))"); shift ;;
    --mirror) mirror=${2:?--mirror wants a URL}; shift ;;
    --verbs) verbs=${2:?--verbs wants words}; shift ;;
    -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done
((EUID == 0)) || die "only root may debootstrap and chroot"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install -y --no-install-recommends debootstrap"
if [[ -z $mirror ]]; then
  # shellcheck disable=SC2016  # apt-get fills them in
  mirror=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian bookworm main //p' | sed -n 1p)
  [[ -n $mirror ]] || die "apt's sources have no Debian bookworm (or apt-get update never ran): name a --mirror"
fi

if [[ -z $folder ]]; then
  folder=$(mktemp -d "${TMPDIR:-/tmp}/bare-root.XXXXXX")
else
  mkdir -p -- "$folder"
  [[ -z $(ls -A -- "$folder") ]] || die "$folder is not empty"
fi
folder=$(cd -- "$folder" && pwd -P)
chmod 755 -- "$folder" # a root is everyone's to read; mktemp's folder is not
logs=$(mktemp -d "${TMPDIR:-/tmp}/bare-root-logs.XXXXXX")

finish() {
  if mountpoint -q "$folder/proc"; then umount "$folder/proc"; fi
  # Never through a mount that would not go away.
  if [[ -n $keep ]]; then say "kept $folder and $logs"; else rm -rf --one-file-system -- "$folder" "$logs"; fi
}
trap finish EXIT

# An environment with nothing of the host in it but the way to the network.
clean=(env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb)
for name in http_proxy https_proxy no_proxy; do
  if [[ -n ${!name-} ]]; then clean+=("$name=${!name}"); fi
done
inside() { "${clean[@]}" "${on[@]}" chroot "$folder" "$@"; }
size() { du -sxm -- "$folder" | cut -f 1; }

say "debootstrap --variant=minbase bookworm"
debootstrap --variant=minbase bookworm "$folder" "$mirror" >"$logs/debootstrap" 2>&1 ||
  { tail -n 20 "$logs/debootstrap" >&2; die "debootstrap failed"; }
# debootstrap mounts them for a while and may leave them.
for name in proc sys; do
  if mountpoint -q "$folder/$name"; then umount "$folder/$name"; fi
done
if [[ -n $proc ]]; then mount -t proc proc "$folder/proc"; fi
# How the host reaches the archive.
apt-config dump | grep -E '^Acquire::(http|https|Retries)' >"$folder/etc/apt/apt.conf.d/90host" || true
cp /etc/resolv.conf /etc/hosts "$folder/etc/" || true

say "apt-get install git"
if ! { inside apt-get update && inside env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y --no-install-recommends git; } >"$logs/git" 2>&1; then
  tail -n 20 "$logs/git" >&2
  die "git could not be installed"
fi
bare=$(size)

if [[ -n $worktree ]]; then
  mkdir "$folder/root/sluice"
  git -C "$tree" ls-files -z --cached --others --exclude-standard | (cd "$tree" && while read -r -d '' file; do
    if [[ -e $file ]]; then printf '%s\0' "$file"; fi
  done) | tar -C "$tree" --null -T - -c | tar -C "$folder/root/sluice" --no-same-owner -x
  say "the working tree of $(git -C "$tree" rev-parse -q --verify --short HEAD || echo 'no commit yet')"
else
  git clone -q --bare -- "$tree" "$folder/srv/sluice.git"
  inside git clone -q /srv/sluice.git /root/sluice
  say "commit $(inside git -C /root/sluice log -1 --format='%h %s')"
fi

# timed NAME COMMAND...: runs it in the clone; standard output and error go to two files, the latter also here.
timed() {
  local name=$1 began=$EPOCHREALTIME code=0
  shift
  say "$*"
  { inside bash -c 'cd /root/sluice && exec "$@"' bash "$@" 2>&1 >"$logs/$name.out" </dev/null |
    tee "$logs/$name.err" >&2; } || code=$?
  seconds[$name]=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.0f", b - a }')
  if ((code)); then
    cat "$logs/$name.out"
    die "$* exited with $code after ${seconds[$name]} s"
  fi
}

declare -A seconds
if [[ $verbs == *run* ]]; then
  timed run ./dev run -n 100
  timed again ./dev run -n 100
  echo "---- standard output of ./dev run -n 100, the whole of it"
  cat "$logs/run.out"
  echo "----"
  # The tale alone: some words, no escape codes, and no line of what apt, the build or dev say.
  [[ $(wc -w <"$logs/run.out") -ge 20 ]] || die "that is no tale: $(wc -w <"$logs/run.out") words"
  if grep -nP '[\x00-\x08\x0b-\x1f\x7f]' "$logs/run.out"; then die "control characters in the tale"; fi
  if grep -nE '^(dev:|-- (The|Found|Check|Detect|Config|Generat|Build)|\[[0-9]+/|(Get|Hit|Ign):|Setting up |Unpacking |Reading )|tok(en)?s?/s' "$logs/run.out"; then
    die "standard output held more than the tale"
  fi
  grep -E 'tok(en)?s?/s' "$logs/run.err" >/dev/null || die "no tokens/s on standard error"
fi
built=$(size)
if [[ $verbs == *test* ]]; then
  timed test ./dev test
  tail -n 25 "$logs/test.out"
  tail -n 1 "$logs/test.out" | grep -qxE '[0-9]+ passed, 0 failed, [0-9]+ skipped' || die "./dev test does not close with its count"
fi

echo "bare root with git: $bare MiB; after ./dev run: $built MiB; at the end: $(size) MiB"
sed -n "s/^dev: \(build.* is up to date.*\)/dev said: \1/p" "$logs"/{run,test}.err 2>/dev/null || true
if [[ -n ${seconds[run]-} ]]; then echo "./dev run -n 100: ${seconds[run]} s, the second time ${seconds[again]} s"; fi
if [[ -n ${seconds[test]-} ]]; then echo "./dev test: ${seconds[test]} s"; fi
