#!/usr/bin/env bash
# The tests of devices on Mesa's Vulkan device in software: `make test-vulkan`.
#
#   tools/test_vulkan.sh BUILD [gtest options]
#
# A device in software compiles each kernel for seconds: of the tiny models one or two a family are
# run, unless SLUICE_TEST_FILTER says otherwise ('Device/*' is all of them, half an hour).
# On another Vulkan device: SLUICE_TEST_DEVICE=vulkan:0 and GGML_VK_VISIBLE_DEVICES as ggml has it.
set -euo pipefail
cd "$(dirname "$0")/.."
build="$1"
shift

cmake --build "$build" --target tiny_parity_test device_runner_test model_parity_test keep_buffers
export SLUICE_BACKENDS="$build/apps/backends" SLUICE_TEST_MODELS=models
export SLUICE_TEST_PROMPTS="${SLUICE_TEST_PROMPTS:-2}"
export SLUICE_TEST_DEVICE="${SLUICE_TEST_DEVICE:-vulkan:0}"
# ggml leaves out devices that are the host's own cores, unless it is told.
export GGML_VK_VISIBLE_DEVICES="${GGML_VK_VISIBLE_DEVICES:-0}"
"$build/apps/sluice" devices

chosen=(llama llama_fused_qkv llama_rope_yarn llama_f16 llama_q4_1 llama_q4_k qwen2 qwen3 qwen3moe
        gemma3 phi3)
filter="${SLUICE_TEST_FILTER:-$(printf ':Device/*/%s' "${chosen[@]}")}"

export LD_PRELOAD="$PWD/$build/tests/libkeep_buffers.so"
"$build/tests/parity/device_runner_test" "$@"
"$build/tests/parity/tiny_parity_test" --gtest_filter="$filter" "$@"
"$build/tests/parity/model_parity_test" --gtest_filter='*Alone/*:*MixedBatches/*' "$@"
