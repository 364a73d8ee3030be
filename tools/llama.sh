#!/usr/bin/env bash
# Builds ggml, libllama and llama-common once, for every preset, and prints two lines: the source
# folder and the build folder.
#
#   tools/llama.sh                   the pinned source (tools/pins/llama.txt)
#   tools/llama.sh --source FOLDER   a llama.cpp checkout instead (or SLUICE_LLAMA_SOURCE=FOLDER)
#
# The build folder's name carries a hash of the compiler, of what -march=native means on this
# machine and of the options: a tree that moves to another processor builds anew instead of dying
# on an illegal instruction. Progress goes to stderr.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

source_folder="${SLUICE_LLAMA_SOURCE:-}"
if [[ "${1:-}" == --source ]]; then source_folder="$2"; fi

# OpenMP, because its barriers sleep after a short spin: ggml's own pool spins for ever, and where
# other processes want the cores too a step of 20 ms then takes seconds. No OpenSSL, tools, tests or
# pages: only libraries are wanted.
options=(
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF
  -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_COMMON=ON
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF
)
targets=(ggml ggml-cpu llama llama-common)

mkdir -p "$deps"
exec 9>"$deps/.lock"
flock 9

if [[ -n "$source_folder" ]]; then
  if [[ ! -f "$source_folder/include/llama.h" ]]; then
    echo "llama.sh: $source_folder is not a llama.cpp source folder: no include/llama.h" >&2
    exit 1
  fi
  source_folder=$(cd "$source_folder" && pwd)
  name="llama-own"
else
  source_folder=$("$python" "$root/tools/fetch.py" llama)
  name=$(basename "$source_folder")
fi
build="$deps/$name-$(build_key "${source_folder#"$root"/}" "${options[*]}")"

# A checkout of the user's own may have changed: ninja knows. The pinned source has not.
if [[ ! -f "$build/.complete" || "$name" == llama-own ]]; then
  [[ -f "$build/.complete" ]] || echo "-- llama.cpp: building, once (about 8 CPU minutes)" >&2
  build_tree "$source_folder" "$build" options targets
fi

# Read by cmake, which configures anew when it changes.
current="$source_folder"$'\n'"$build"
if [[ "$(cat "$deps/current" 2>/dev/null)" != "$current" ]]; then
  printf '%s\n' "$current" >"$deps/current"
fi
printf '%s\n' "$current"
