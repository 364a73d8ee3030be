# sluice, for people: each goal does all the set-up that it needs, shows what it does, and costs
# next to nothing when it is done already. `make help` lists the goals.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PORT   ?= 8080
MODEL  ?=
ARGS   ?=
PREFIX ?= /usr/local
SUITES ?= style format unit e2e
ALL_SUITES := style format unit headers dev fuzz parity e2e conformance
SLUICE_LLAMA_SOURCE ?=

PYTHON := $(firstword $(wildcard /usr/bin/python3) python3)
BUILD  := build/release
SLUICE := $(BUILD)/apps/sluice
DEFAULT_MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
PARITY_MODEL  := models/gemma-3-270m-q4_k_m.gguf
PEERS  := build/deps/peers
TEST_PYTHON   := build/venv/.complete

# ccache then knows a file again when the same tree lies elsewhere.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := locale
export SLUICE_LLAMA_SOURCE

.PHONY: help
help:
	@sed -nE 's/^## ?//p' $(firstword $(MAKEFILE_LIST))

## sluice: goals
##
##   make serve            set up, build, obtain the default model, and serve it
##       PORT=8080         the port
##       MODEL=FILE.gguf   another model
##       ARGS="..."        more options of `sluice serve`, such as --instances 2
##   make test             set up and run the tests
##       SUITES="..."      some of: style format unit headers parity e2e conformance dev tsan
##                         lint fuzz
##   make test-all         what CI runs: style format unit headers dev fuzz parity e2e conformance
##   make build            set up and build build/release/apps/sluice
##   make vulkan           build ggml's Vulkan backend beside the program, which loads it by itself
##   make test-vulkan      that, and the tests of devices on Mesa's device in software
##   make install          build and install under PREFIX=/usr/local
##   make bench            micro-benchmarks
##   make bench-admission  memory policies side by side, without compute (bench/admission)
##   make bench-handoff    moving KV between processes, beside memcpy and a plain socket
##   make bench-peers      side by side with llama-server, built from the same pinned source
##   make bench-gateway    what HTTP costs: the gateway beside routers and llama-server's own
##   make bench-soak       a cluster under load while its parts are killed, frozen, cut off, for 15 minutes
##   make bench-memory-pressure   memory policies side by side on the real server, short of memory
##   make format           format the C++ sources in place
##   make models           the default model;  make models-test: and the one of the parity tests
##   make setup            only the Debian packages that the build needs
##   make clean            remove what was built;  make distclean: downloads and models as well
##
##   SLUICE_LLAMA_SOURCE=FOLDER   a llama.cpp checkout in place of the pinned source

.PHONY: setup setup-test
setup:
	@tools/setup.sh
setup-test:
	@tools/setup.sh --test

.PHONY: llama configure build
llama: | setup
	@tools/llama.sh >/dev/null

# A goal of its own rather than a file: cmake itself knows when it has to configure again, this
# only starts it, or tells it of another llama.cpp source.
configure: | llama
	@if [[ ! -f $(BUILD)/build.ninja || -n "$$SLUICE_LLAMA_SOURCE" ]]; then \
	  echo "-- sluice: configuring" >&2; \
	  cmake --preset release -DSLUICE_LLAMA_SOURCE="$$SLUICE_LLAMA_SOURCE"; \
	fi

build: | configure
	@cmake --build $(BUILD) --target sluice

.PHONY: models models-test
models: $(DEFAULT_MODEL)
models-test: models $(PARITY_MODEL)
$(DEFAULT_MODEL): | setup
	@$(PYTHON) tools/fetch.py model >/dev/null
$(PARITY_MODEL): | setup
	@$(PYTHON) tools/fetch.py models-test >/dev/null

.PHONY: serve
serve: build $(if $(MODEL),,$(DEFAULT_MODEL))
	@exec $(SLUICE) serve "$(or $(MODEL),$(DEFAULT_MODEL))" --port $(PORT) $(ARGS)

$(TEST_PYTHON): tests/requirements.txt | setup-test
	@echo "-- tests: Python packages into build/venv" >&2
	@$(PYTHON) -m venv build/venv
	@build/venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: test test-all
test: setup-test llama models-test $(TEST_PYTHON)
	@$(PYTHON) tools/run_tests.py $(SUITES)
test-all:
	@$(MAKE) test SUITES="$(ALL_SUITES)"

.PHONY: vulkan test-vulkan
vulkan: build
	@tools/setup.sh --vulkan
	@ln -sfn "$$(tools/vulkan.sh)" $(BUILD)/apps/backends
test-vulkan: vulkan setup-test models-test
	@tools/test_vulkan.sh $(BUILD) $(ARGS)

.PHONY: install
install: build
	@as_root=; probe="$(DESTDIR)$(PREFIX)"; \
	while [[ ! -e "$$probe" ]]; do probe=$$(dirname "$$probe"); done; \
	if [[ ! -w "$$probe" ]]; then \
	  echo "-- install: $$probe is not yours to write: using sudo" >&2; as_root=sudo; \
	fi; \
	$$as_root env DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"

.PHONY: bench bench-admission bench-handoff bench-memory-pressure bench-peers peers
bench: | configure
	@cmake --build $(BUILD) --target benchmarks
	@for bench in $(BUILD)/src/*/*_bench $(BUILD)/src/model/ggml/*_bench; do "$$bench" $(ARGS); done
bench-admission: | configure
	@cmake --build $(BUILD) --target admission_bench
	@$(PYTHON) bench/admission --binary $(BUILD)/bench/admission/admission_bench $(ARGS)
bench-handoff: | configure
	@cmake --build $(BUILD) --target handoff_bench
	@$(BUILD)/bench/handoff/handoff_bench $(ARGS)
bench-gateway: $(DEFAULT_MODEL) | configure
	@cmake --build $(BUILD) --target gateway_bench
	@$(PYTHON) bench/gateway --binary $(BUILD)/bench/gateway/gateway_bench $(ARGS)
bench-soak: build $(DEFAULT_MODEL) $(TEST_PYTHON)
	@build/venv/bin/python bench/soak $(ARGS)
peers: $(DEFAULT_MODEL) | setup
	@tools/peers_llama.sh
bench-peers: build peers
	@LLAMA_SERVER=$(PEERS)/bin/llama-server $(PYTHON) bench/serve_vs_llama_server \
	  $(foreach model,$(DEFAULT_MODEL) $(wildcard $(PEERS)/models/*.gguf),--model $(model)) $(ARGS)
bench-memory-pressure: build $(DEFAULT_MODEL)
	@$(PYTHON) bench/memory_pressure --sluice $(SLUICE) $(ARGS)

.PHONY: format
format: | setup-test
	@$(PYTHON) tools/format.py --fix

.PHONY: clean distclean
clean:
	@rm -rf build/release build/dev build/tsan build/fuzz
distclean: clean
	@rm -rf build models
