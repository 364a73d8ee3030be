#!/usr/bin/env python3
"""Holds the includes against the arrows between the folders (docs/architecture.md).

    tools/check_layers.py                checks this tree
    tools/check_layers.py --self-test    shows that planted violations are caught

A folder may include itself, what its arrows point to, and what those point to in turn. Third-party
headers are allowed by folder; the pure folders get the standard library alone.
"""

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ARROWS = {
    "base": [],
    "model": ["base"],
    "model/ggml": ["model"],
    "memory": ["base"],
    "device": ["memory"],
    "scheduling": ["base"],
    "transfer": ["base"],
    "engine": ["memory", "model"],
    "cluster": ["engine", "scheduling", "transfer"],
    "net": ["cluster"],
    "gateway": ["cluster", "model"],
    "simulation": ["cluster", "engine", "memory", "transfer"],
    "apps": ["net", "gateway", "simulation", "model/ggml", "device"],
}

# First path component, or whole name, of third-party and system headers.
THIRD_PARTY = {
    "base": {"fmt", "spdlog", "tl", "pthread.h"},
    "model": {"fmt"},
    "model/ggml": {"fmt", "spdlog", "hwy", "llama.cpp", "posix"},
    "memory": {"fcntl.h", "sys/mman.h", "unistd.h"},
    "device": {"fmt", "posix"},
    "scheduling": set(),
    "transfer": {"fmt"},
    "engine": set(),
    "cluster": set(),
    "net": {"fmt", "spdlog", "prometheus", "grpcpp", "boost", "ucp", "ucs", "posix"},
    "gateway": {"fmt", "spdlog", "boost", "nlohmann", "openssl", "posix"},
    "simulation": set(),
    "apps": {"fmt", "spdlog", "CLI", "yaml-cpp", "nlohmann", "posix"},
}
TEST_PARTY = {"gtest", "gmock", "benchmark"}
LLAMA_CPP = re.compile(r"^(ggml[\w-]*|gguf|llama[\w-]*|common|chat|log|sampling|json|unicode|"
                       r"json-schema-to-grammar|peg-parser|speculative|jinja/\w+)\.h$")
POSIX = re.compile(r"^(sys/\w+|arpa/\w+|netinet/\w+|\w+)\.h$")
# tl::expected comes with base/result.h, which everybody has; naming its header is no new knowledge.
EVERYWHERE = {"tl"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def closure(folder):
    seen, todo = {folder}, [folder]
    while todo:
        for target in ARROWS[todo.pop()]:
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def folder_of(path):
    """The room that a path relative to src/ lies in: the longest known prefix."""
    parts = Path(path).parts[:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in ARROWS:
            return name
    return None


def third_party_allowed(folder, header, is_test):
    if "." not in header and "/" not in header:
        return True  # the standard library
    allowed = THIRD_PARTY[folder] | EVERYWHERE | (TEST_PARTY if is_test else set())
    if header in allowed or header.split("/")[0] in allowed:
        return True
    kind = "llama.cpp" if LLAMA_CPP.match(header) else "posix" if POSIX.match(header) else None
    return kind in allowed


def check_file(root, path):
    inside = path.relative_to(root)
    is_app = inside.parts[0] == "apps"
    folder = "apps" if is_app else folder_of(inside.relative_to("src"))
    if folder is None:
        yield f"{inside}:1: src/{inside.parts[1]} is no room of the house: see docs/architecture.md"
        return
    reach = closure(folder)
    # A header that needs gtest is a helper of tests: what is not a test would not link with it.
    is_test = path.suffix == ".h" or re.search(r"_(test|bench)(\.|_)", inside.name)
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, angled = match.groups()
        header = quoted or angled
        target = folder_of(header) if quoted else None
        if target is not None:
            if target not in reach:
                yield (f"{inside}:{number}: {folder} may not include {header}: its arrows reach "
                       f"only {', '.join(sorted(reach))}")
        elif quoted and is_app:
            continue
        elif not third_party_allowed(folder, header, is_test):
            allowed = ", ".join(sorted(THIRD_PARTY[folder])) or "the standard library alone"
            yield f"{inside}:{number}: {folder} may not use <{header}>: allowed is {allowed}"


def check(root):
    for top in ("src", "apps"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield from check_file(root, path)


PLANTED = {
    "src/memory/a.cpp": ('#include "engine/engine.h"', "memory may not include engine/engine.h"),
    "src/memory/b.cpp": ("#include <fmt/format.h>", "memory may not use <fmt/format.h>"),
    "src/engine/c.cpp": ("#include <sys/socket.h>", "engine may not use <sys/socket.h>"),
    "src/engine/d.cpp": ('#include "model/ggml/runner.h"', "engine may not include model/ggml/"),
    "src/scheduling/e.h": ('#include "memory/kv_manager.h"', "scheduling may not include memory/"),
    "src/gateway/f.cpp": ('#include "llama.h"', "gateway may not use <llama.h>"),
    "src/cluster/g.cpp": ('#include "gateway/gateway.h"', "cluster may not include gateway/"),
    "src/cluster/h.cpp": ("#include <gtest/gtest.h>", "cluster may not use <gtest/gtest.h>"),
    "src/cellar/i.cpp": ("int x();", "src/cellar is no room"),
}
FINE = {
    "src/memory/a_test.cpp": "#include <gtest/gtest.h>",
    "src/cluster/b.cpp": '#include "memory/kv_manager.h"\n#include "base/ids.h"\n#include <vector>',
    "src/gateway/c.cpp": "#include <boost/asio.hpp>\n#include <nlohmann/json.hpp>",
    "src/model/ggml/d.cpp": '#include <llama.h>\n#include "ggml.h"\n#include <hwy/highway.h>',
    "apps/e.cpp": '#include "model/ggml/runner.h"\n#include "options.h"\n#include <CLI/CLI.hpp>',
}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in [(n, t) for n, (t, _) in PLANTED.items()] + list(FINE.items()):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n")
        found = list(check(root))
    wrong = [f"not caught: {name}: {message}" for name, (_, message) in PLANTED.items()
             if not any(f.startswith(name + ":1:") and message in f for f in found)]
    wrong += [f"false alarm: {f}" for f in found if f.split(":")[0] in FINE]
    return wrong


def main():
    if sys.argv[1:] not in ([], ["--self-test"]):
        sys.exit(__doc__)
    problems = self_test() if sys.argv[1:] else list(check(ROOT))
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"check_layers: {len(problems)} problems")
    print(f"check_layers: {len(PLANTED)} planted violations caught" if sys.argv[1:] else
          "check_layers: the includes follow the arrows")


if __name__ == "__main__":
    main()
