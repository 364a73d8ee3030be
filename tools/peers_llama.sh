#!/usr/bin/env bash
# Builds what sluice is measured against: llama-server, llama-quantize, llama-batched-bench and
# llama-bench, from the same pinned source at its own best settings (with OpenMP), into
# build/deps/peers/bin; and requantises the default model into the types that llama.cpp has faster
# kernels for, into build/deps/peers/models. Only benchmarks need it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

options=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=ON
  -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=ON
  -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
)
targets=(llama-server llama-quantize llama-batched-bench llama-bench)

mkdir -p "$deps/peers"
exec 9>"$deps/peers/.lock"
flock 9

source_folder=$("$python" "$root/tools/fetch.py" llama)
build="$deps/peers/$(basename "$source_folder")-$(build_key "${options[*]}")"
if [[ ! -f "$build/.complete" ]]; then
  echo "-- llama-server: building, once (about 12 CPU minutes)" >&2
  build_tree "$source_folder" "$build" options targets
fi
ln -sfn "$build/bin" "$deps/peers/bin"

model=$("$python" "$root/tools/fetch.py" model)
models="$deps/peers/models"
mkdir -p "$models"
for type in Q4_0 Q8_0; do
  name="$(basename "$model" .Q4_1.gguf).$type.gguf"
  if [[ ! -f "$models/$name" ]]; then
    echo "-- model $name: requantising" >&2
    "$build/bin/llama-quantize" --allow-requantize "$model" "$models/$name.part" "$type" >&2
    mv "$models/$name.part" "$models/$name"
  fi
done
echo "$deps/peers/bin"
