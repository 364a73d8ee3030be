#!/usr/bin/env bash
# Runs outside yardsticks against sluice and prints a score line each.
#
#   tests/conformance/run.sh PART...    sdk schemathesis comply llama vllm, or all
#
# Each tool lives in a virtual environment of its own under build/conformance/. Starts
# `sluice serve` itself unless SLUICE_URL names a running server (http://host:port).
#
#   SLUICE_BIN       the program            build/release/apps/sluice
#   CONFORMANCE_GGUF the model served       models/SmolLM2-135M-Instruct.Q4_1.gguf
#   SLUICE_SHARED    schema, small model    ../shared
#   LLAMA_SOURCE     llama.cpp's source     build/deps/llama-* (made by tools/llama.sh)
#   SLUICE_ARGS      more flags for `sluice serve`, such as --threads 1
#   EXAMPLES         schemathesis' examples an operation    6
#   LLAMA_TESTS      files below unit/, for the part llama
#   COMPLETION_GGUF  the base model of vLLM's completion tests   models/gemma-3-270m-q4_k_m.gguf
#   QUICK            set: what CI runs, each part as far as it must pass
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venvs="$root/build/conformance"
logs="$venvs/logs"
shared=${SLUICE_SHARED:-$root/../shared}
export SLUICE_BIN=${SLUICE_BIN:-$root/build/release/apps/sluice}
gguf=${CONFORMANCE_GGUF:-$root/models/SmolLM2-135M-Instruct.Q4_1.gguf}
python=/usr/bin/python3
[[ -x $python ]] || python=python3
mkdir -p "$logs"
server_pid=
vllm_version=0.32.0

finish() {
  if [[ -n $server_pid ]]; then kill "$server_pid" 2>/dev/null; wait "$server_pid"; fi || true
}
trap finish EXIT

# venv NAME PACKAGE...: makes it once. (set -e does not reach into a part: it is on the left of ||.)
venv() {
  local folder="$venvs/$1"
  shift
  [[ -f $folder/.complete ]] && return
  "$python" -m venv "$folder" &&
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" &&
    touch "$folder/.complete"
}

need() { [[ -e $1 ]] || { echo "$2: skipped, there is no $1"; return 1; }; }

free_port() {
  "$python" -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

own_flags=

# serve FLAG...: a server with these flags, unless the user has one or ours runs with them already.
serve() {
  if [[ -n ${SLUICE_URL:-} ]]; then
    [[ -z $server_pid || $own_flags == "$*" ]] && return
    finish
  fi
  own_flags="$*"
  local port
  port=$(free_port)
  "$SLUICE_BIN" serve "$gguf" --host 127.0.0.1 --port "$port" --context 2048 ${SLUICE_ARGS:-} "$@" \
    >"$logs/server.log" 2>&1 </dev/null &
  server_pid=$!
  SLUICE_URL=http://127.0.0.1:$port
  for _ in $(seq 600); do
    curl -sf "$SLUICE_URL/health" >/dev/null && return
    kill -0 "$server_pid" 2>/dev/null || { cat "$logs/server.log" >&2; exit 2; }
    sleep 0.1
  done
  echo "the server did not start" >&2
  exit 2
}

model_name() {
  curl -sf "$SLUICE_URL/v1/models" |
    "$python" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])'
}

part_sdk() {
  venv sdk openai==3.57.0 || return 1
  serve
  "$venvs/sdk/bin/python" "$here/sdk_smoke.py" "$SLUICE_URL/v1" "$(model_name)" ${QUICK:+--strict}
}

part_schemathesis() {
  need "$shared/conformance/openai-subset.yaml" schemathesis || return 0
  venv schemathesis schemathesis==4.32.5 || return 1
  # The schema's examples name OpenAI's models. It documents no 4xx at all, so which code an error
  # has is not checked; that an error is none of the server's, and that every 200 fits, is.
  serve --any-model-name
  local log="$logs/schemathesis.log" status=0
  (cd "$venvs" && schemathesis/bin/st run "$shared/conformance/openai-subset.yaml" \
    --url "$SLUICE_URL/v1" --max-examples "${EXAMPLES:-6}" --phases examples,fuzzing \
    --generation-deterministic --continue-on-failure --no-color \
    --exclude-checks status_code_conformance --request-timeout 120) \
    >"$log" 2>&1 || status=$?
  sed -n '/=== SUMMARY/,$p' "$log"
  [[ $status == 0 ]] || echo "see $log"
  return "$status"
}

part_comply() {
  venv comply llm-comply==0.5.0 || return 1
  serve
  local format status=0 only=() formats=(openai-chat open-responses anthropic)
  if [[ -n ${QUICK:-} ]]; then
    # Without images, and without answers that a small model has to end itself.
    formats=(openai-chat)
    only=(-f chat-tool-calling,chat-streaming-response,chat-streaming-usage,chat-error-handling)
  fi
  for format in "${formats[@]}"; do
    "$venvs/comply/bin/python" "$here/comply_greedy.py" run -u "$SLUICE_URL/v1" -k none \
      -m "$(model_name)" --format "$format" --timeout 120 --verbose "${only[@]}" \
      >"$logs/comply-$format.log" 2>&1 || status=$?
    echo "llm-comply $format: $(tail -n 3 "$logs/comply-$format.log" | tr '\n' ' ')"
  done
  return "$status"
}

part_llama() {
  local pinned
  pinned=$(ls -d "$root"/build/deps/llama-*/tools/server/tests 2>/dev/null | head -1)
  local source=${LLAMA_SOURCE:-$pinned}
  source=${source%/tools/server/tests}
  need "$source/tools/server/tests" llama || return 0
  need "$shared/models/stories260K.gguf" llama || return 0
  venv llama -r "$source/tools/server/tests/requirements.txt" pytest-timeout || return 1
  local files=${LLAMA_TESTS:-basic chat_completion completion tokenize template security metrics
    compat_oai_responses compat_anthropic ctx_shift ignore_eos tool_call}
  # Without those that draw from a seed of their own.
  [[ -n ${QUICK:-} ]] && files="basic chat_completion tokenize template security compat_anthropic"
  local plugin=(-p llama_plugin)
  [[ -n ${CONFORMANCE_EXEC_LLAMA:-} ]] && plugin=()
  local status=0
  (cd "$source/tools/server/tests" &&
    PORT=$(free_port) CONFORMANCE_MODEL="$shared/models/stories260K.gguf" \
    LLAMA_SERVER_BIN_PATH="$here/llama_wrapper.py" PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH="$here:." "$venvs/llama/bin/python" -m pytest -q "${plugin[@]}" \
    -p no:cacheprovider --timeout 120 -m "not slow" -rsf $(printf 'unit/test_%s.py ' $files)) \
    >"$logs/llama.log" 2>&1 || status=$?
  grep -E '^(FAILED|ERROR|SKIPPED)' "$logs/llama.log" | cut -c1-160 || true
  echo "llama.cpp server tests: $(tail -n 1 "$logs/llama.log")"
  return "$status"
}

# The tests lie in vLLM's source distribution only. pip unpacks that, then fails at its metadata,
# which would need torch; --no-clean keeps the folder.
vllm_tests() {
  local keep="$venvs/vllm-source"
  if [[ ! -d $keep/tests ]]; then
    local unpack="$venvs/vllm-unpack"
    mkdir -p "$unpack"
    TMPDIR="$unpack" "$venvs/vllm/bin/python" -m pip download --quiet --no-clean \
      --no-build-isolation --no-binary :all: --no-deps -d "$unpack" "vllm==$vllm_version" \
      >"$logs/vllm-download.log" 2>&1 || true
    mkdir -p "$keep"
    mv "$unpack"/pip-download-*/vllm_*/tests "$keep/" || return 1
    rm -rf "$unpack"
  fi
}

part_vllm() {
  venv vllm openai==2.14.0 httpx pytest==8.4.2 pytest-asyncio==1.2.0 pytest-timeout==2.4.0 \
    jsonschema \
    regex requests || return 1
  vllm_tests || { echo "vllm: skipped, its tests could not be had"; return 0; }
  local tests="tests/entrypoints/openai" file status=0
  # Written for a base model (opt-125m) and for a chat model, whose names some of them send.
  local base=${COMPLETION_GGUF:-$root/models/gemma-3-270m-q4_k_m.gguf}
  for file in completion/test_completion.py chat_completion/test_chat.py; do
    local log="$logs/vllm-$(basename "$file" .py).log" chat_gguf=$gguf
    [[ $file == completion/* && -e $base ]] && gguf=$base
    serve --any-model-name --model-name "$(basename "$gguf" .gguf)"
    gguf=$chat_gguf
    (cd "$venvs/vllm-source" && EXT_URL=$SLUICE_URL EXT_MODEL=$(model_name) \
      PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$here:." "$venvs/vllm/bin/python" -m pytest -q \
      -p vllm_plugin -p no:cacheprovider --confcutdir=tests/entrypoints --rootdir . \
      -o asyncio_mode=auto \
      --timeout 120 -rfE "$tests/$file") >"$log" 2>&1 || status=$?
    grep -E '^(FAILED|ERROR)' "$log" | cut -c1-200 || true
    echo "vllm $file: $(tail -n 1 "$log")"
  done
  return "$status"
}

[[ $# -gt 0 ]] || { sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 2; }
[[ $* == all ]] && set -- sdk schemathesis comply llama vllm
failed=()
for part in "$@"; do
  echo "== $part"
  "part_$part" || failed+=("$part")
done
[[ ${#failed[@]} == 0 ]] || { echo "with findings: ${failed[*]}"; exit 1; }
