#!/usr/bin/env bash
# Builds ggml's Vulkan backend once, from the pinned source of tools/llama.sh, as a library that
# the program loads where it is there, and prints the folder that holds it.
#
# It takes the packages of `tools/setup.sh --vulkan`. Nothing else needs it: the program and every
# other build are the same with and without. Interrupted, it goes on where it was. Debian's glslc
# is too old for some shaders (cooperative matrices, integer dot products, bfloat16): they are left
# out, and the kernels without them are used. Progress goes to stderr.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# libggml-base.so beside libggml-vulkan.so: ggml's own rules for loadable backends.
options=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_VULKAN=ON
  -DGGML_CPU=OFF -DGGML_NATIVE=OFF
  "-DCMAKE_INSTALL_RPATH=\$ORIGIN" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON
  "-DCMAKE_CXX_FLAGS=-w -include $deps/vulkan_compat.h"
  -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF
)
targets=(ggml-vulkan)

mkdir -p "$deps"
exec 9>"$deps/.vulkan-lock"
flock 9
cp -u "$root/tools/vulkan_compat.h" "$deps/"

source_folder=$("$python" "$root/tools/fetch.py" llama)
name=$(basename "$source_folder")
build="$deps/$name-vulkan-$(build_key "${source_folder#"$root"/}" "${options[*]/"$root"/}" \
  "$(glslc --version 2>/dev/null | head -1)")"
if [[ ! -f "$build/.complete" ]]; then
  echo "-- ggml-vulkan: building, once (about 10 CPU minutes)" >&2
  build_tree "$source_folder" "$build" options targets
fi
printf '%s\n' "$build/bin"
