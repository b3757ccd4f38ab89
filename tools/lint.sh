#!/usr/bin/env bash
# clang-tidy on the C++ files that changed since the branch left origin/main (where there is no origin/main: since
# the commit before the last), uncommitted and new ones included; --all: on all. `./dev check` runs it with the
# release build folder configured. JOBS: how many at once.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"

# Whoever runs this trusts the tree already, so git need not refuse it for having another owner.
tree_git() { git -c safe.directory="$root" "$@"; }

all() { find src tests tools -name '*.cc' | sort; }

# A changed header is linted through its own .cc, or else through one file that includes it.
changed() {
  { tree_git diff --name-only --diff-filter=d "$1" -- src tests tools
    tree_git ls-files --others --exclude-standard -- src tests tools; } | while read -r file; do
    case $file in
      *.cc) echo "$file" ;;
      *.h)
        if [[ -f ${file%.h}.cc ]]; then
          echo "${file%.h}.cc"
        else
          grep -rlF --include='*.cc' "#include \"${file#src/}\"" src tests | sort | sed -n 1p || true
        fi ;;
    esac
  done | sort -u
}

if [[ ${1-} == --all ]]; then
  files=$(all)
elif base=$(tree_git merge-base HEAD origin/main 2>/dev/null || tree_git rev-parse -q --verify HEAD~1); then
  files=$(changed "$base")
else
  files=$(all) # no history, or a first commit: everything is new
fi

# Only what the build compiles has its flags in the database, and file by file. What it generates lies in the release
# folder.
database=build/release/lint
cmake --preset release -B build/lint -DSLUICE_UNITY=OFF -DSLUICE_TESTS=ON >/dev/null
mkdir -p "$database"
sed 's,build/lint/,build/release/,g' build/lint/compile_commands.json >"$database/compile_commands.json"
while read -r file; do
  if [[ -n $file ]] && grep -qF "$root/$file" "$database/compile_commands.json"; then echo "$file"; fi
done <<<"$files" |
  xargs -r -d '\n' -n 1 -P "${JOBS:-1}" clang-tidy --quiet -p "$database" 2>&1 |
  sed '/ warnings\{0,1\} generated\.$/d' # of those in the system's headers, which it does not show
