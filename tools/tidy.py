#!/usr/bin/env python3
"""Style as a test: what a reviewer should not have to say.

    tools/tidy.py                checks this tree
    tools/tidy.py --self-test    shows that planted violations are caught

Each finding names file and line, what is wrong, and what to do instead. clang-format and clang-tidy
look after the rest.
"""

import ast
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 70
MAX_SOURCE_LINES = 600
MAX_HEADER_LINES = 150

# These run unchanged in a simulator: nothing in them may differ from run to run.
PURE = ("src/memory/", "src/engine/", "src/scheduling/", "src/cluster/", "src/simulation/")
CPP = (".cpp", ".h")
TEXT = CPP + (".py", ".sh", ".cmake", ".txt", ".md", ".js", ".css", ".html", ".json", ".yaml")
SKIPPED_FOLDERS = {".git", "build", "models", "__pycache__", ".cache", ".pytest_cache"}

BANNED_IN_PURE = [
    (r"\w*_clock::now", "reads a clock: take `now` as an argument, or a base/time.h Clock"),
    (r"\bstd::(jthread|thread|async)\b", "starts a thread: loops live in net/ and apps/"),
    (r"\bstd::(\w*mutex|condition_variable\w*|lock_guard|unique_lock|scoped_lock)\b",
     "locks: an object has one owner; values cross threads through base/inbox.h"),
    (r"\bsleep(_for|_until)?\s*\(", "sleeps: time moves only when the caller says so"),
    (r"\bs?rand\s*\(", "is not reproducible: take a base/rng.h Rng"),
    (r"\brandom_device\b", "is not reproducible: take a base/rng.h Rng"),
    (r"\b(secure_)?getenv\s*\(", "reads the environment: take an options struct"),
    (r"\b(unordered_)?(multi)?(map|set)<\s*(const\s+)?[\w:]+\s*\*",
     "keys by address, so order differs from run to run: key by an id"),
]
BANNED_ANYWHERE = [
    (r"(?<![\w.])assert\s*\(", "vanishes in release: use CHECK or DCHECK"),
    (r"\b(sprintf|vsprintf|strcpy|strcat|gets)\s*\(", "can overflow: use fmt::format"),
    (r"\b(atoi|atol|atoll|atof)\s*\(", "hides errors: use std::from_chars"),
    (r"\bstd::endl\b", "flushes: use '\\n'"),
    (r"\bNULL\b", "is an integer: use nullptr"),
    (r"^\s*using namespace std;", "takes in everything: name what you use"),
    (r"#\s*define\s+(private|protected)\b", "opens a class for a test: move the seam instead"),
]
# In pieces, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b(?!\(#\d+\))")
REGISTRY = re.compile(r"https?://[\w.-]*(py" r"pi|python" r"hosted|npm" r"js|crates\.i" r"o|"
                      r"maven|debian\.or" r"g|golang\.or" r"g|hugging" r"face)", re.I)
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(wor" r"k|far" r"m|roo" r"t|tm" r"p|home/\w+)\b")


def strip_cpp(text):
    """The text with comments and literals blanked, every line and column where it was."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                       r"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'", re.S)
    return token.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def is_test(name):
    beside_the_code = re.search(r"_(test|bench)[._]|/(fake|test)_\w+\.", name)
    return name.startswith("tests/") or bool(beside_the_code)


def is_pure(name):
    return name.startswith(PURE) and "_bench." not in name


# --- C++


def banned_calls(name, code):
    rules = BANNED_ANYWHERE + (BANNED_IN_PURE if is_pure(name) else [])
    for pattern, advice in rules:
        if "getenv" in pattern and is_test(name):
            continue  # tests find traces through SLUICE_TRACES
        for match in re.finditer(pattern, code, re.M):
            yield line_of(code, match.start()), f"{match.group().strip()} {advice}"


def mutable_statics(code):
    keyword = re.compile(r"^\s*(?:inline\s+)?(?:static|thread_local)\s+(?:static\s+)?(.*)$", re.M)
    for match in keyword.finditer(code):
        declared = match.group(1)
        constant = re.match(r"(inline\s+)?const(expr|init|eval)?\b", declared)
        variable = re.match(r"[\w:<>,\s*&]+?[\s*&]\w+\s*(=|;|\{|\[)", declared)
        if variable and not constant:
            yield line_of(code, match.start(1)), (
                "static mutable state is shared by every instance: make it a member of its owner")
    namespace_scope = re.compile(
        r"^(?!using|namespace|template|return|typedef|extern|static|const|class|struct|enum|union"
        r"|friend|inline const|case|goto|else|public|private)(?:inline\s+)?[\w:<>,]+(?:\s*[*&])?\s+"
        r"\w+\s*(?:=[^=;{]*|\{[^;{}]*\})?;", re.M)
    for match in namespace_scope.finditer(code):
        yield line_of(code, match.start()), (
            "a mutable global is shared by every instance: make it a member of its owner")


def unordered_names(code):
    """Names of variables and members whose type is an unordered container."""
    for match in re.finditer(r"\bunordered_(?:multi)?(?:map|set)\s*<", code):
        depth, at = 1, match.end()
        while at < len(code) and depth:
            depth += {"<": 1, ">": -1}.get(code[at], 0)
            at += 1
        declared = re.match(r"\s*&?\s*(\w+)\s*[;={(,)]", code[at:])
        if declared:
            yield declared.group(1)


def unordered_loops(code, header_code):
    names = set(unordered_names(code)) | set(unordered_names(header_code))
    for name in sorted(names):
        loop = re.compile(rf"\bfor\s*\([^;()]*:\s*(?:\w+(?:\.|->))*{name}\s*\)"
                          rf"|(?<![\w.]){name}\.c?begin\s*\(\)")
        for match in loop.finditer(code):
            yield line_of(code, match.start()), (
                f"the order of {name} differs from run to run: sort the keys, or use std::map")


CONTROL = re.compile(r"(?:^|[\s}])(?:if|for|while|switch|catch|do|else|try)\b")
NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum)\b(?![^(]*\))|=\s*$|\breturn\b")


def functions(code):
    """(first line, lines) of every outermost function body."""
    depth, inside, start, statement = 0, None, 0, 0
    for match in re.finditer(r"[;{}]", code):
        at, sign = match.start(), match.group()
        if sign == "{":
            head = code[statement:at]
            if inside is None and ")" in head and not CONTROL.search(head) \
                    and not NOT_A_FUNCTION.search(head.strip()):
                inside = depth
                start = statement + len(head) - len(head.lstrip())
            depth += 1
        elif sign == "}":
            depth -= 1
            if inside is not None and depth == inside:
                first = line_of(code, start)
                yield first, line_of(code, at) - first + 1
                inside = None
        statement = at + 1


def check_cpp(root, name, text):
    code = strip_cpp(text)
    # Macros can hold halves of braces; their bodies are no functions of ours.
    plain = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()),
                   code, flags=re.M)
    yield from banned_calls(name, code)
    if is_pure(name):
        header = root / Path(name).with_suffix(".h")
        header_code = strip_cpp(header.read_text()) if header.exists() else ""
        yield from unordered_loops(code, header_code)
        if not is_test(name):
            yield from mutable_statics(plain)
    if not is_test(name):
        for line, length in functions(plain):
            if length > MAX_FUNCTION_LINES:
                yield line, (f"function of {length} lines, at most {MAX_FUNCTION_LINES}: "
                             "give its phases names of their own")
        # An -inl.h is a source that is compiled once for every instruction set; a header with
        # gtest in it is a test's.
        is_header = name.endswith(".h") and "-inl." not in name and "<gtest/" not in text
        limit, lines = MAX_HEADER_LINES if is_header else MAX_SOURCE_LINES, text.count("\n")
        if lines > limit:
            yield limit + 1, f"file of {lines} lines, at most {limit}: it is two rooms"
    if name.endswith(".h"):
        if "-inl." not in name and not re.search(r"^#pragma once$", text, re.M):
            yield 1, "header without #pragma once"
        if not re.match(r"//|/\*", text):
            yield 1, "header does not begin with a comment that says what it is for"


# --- every text file


def check_lines(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > MAX_COLUMNS and name.endswith(CPP + (".py", ".sh", ".js", ".cmake")):
            yield number, f"line of {len(line)} columns, at most {MAX_COLUMNS}: break it"
        if line != line.rstrip() and not name.endswith(".md"):
            yield number, "white space at the end of the line: remove it"
        if UNFINISHED.search(line):
            yield number, "unfinished work without an issue: do it, or write the issue as (#N)"
        if REGISTRY.search(line):
            yield number, "names a package registry's host: name the package, clients know the host"
        if MACHINE_PATH.search(line):
            yield number, "a path of one machine: make it relative, or a temporary folder"


def check_python(name, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES and not is_test(name):
                yield node.lineno, (f"function of {length} lines, at most {MAX_FUNCTION_LINES}: "
                                    "give its phases names of their own")


# --- the tree


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(folder) / name
            if path.suffix in TEXT or name in ("Makefile", "run"):
                yield path.relative_to(root).as_posix(), path


def dead_files(root, texts):
    """Headers that nobody includes, sources that no target takes."""
    code = {name: text for name, text in texts.items()
            if name.endswith(CPP) and name.startswith(("src/", "apps/", "tests/", "bench/"))}
    included = set()
    for name, text in code.items():
        for header in re.findall(r'#\s*(?:include|define\s+HWY_TARGET_INCLUDE)\s*"([^"]+)"', text):
            included |= {f"src/{header}", f"{Path(name).parent.as_posix()}/{header}"}
    for name in code:
        if name.endswith(".h") and name not in included:
            yield name, 1, "no file includes this header: remove it"
        elif name.endswith(".cpp") and name not in included and not is_built(root, name):
            yield name, 1, "no CMakeLists.txt takes this source: remove it, or add it to a target"


def is_built(root, name):
    """Named by a CMakeLists.txt above it, or globbed by one: sluice_library and SUBDIRS do that."""
    path = root / name
    for folder in path.parents:
        lists = folder / "CMakeLists.txt"
        if lists.exists():
            text = lists.read_text()
            inside = path.relative_to(folder)
            subdir = rf"SUBDIRS[^)]*\b{inside.parts[0]}\b"
            globbed = len(inside.parts) == 1 or re.search(subdir, text)
            listed = re.search(rf"(?<![\w-]){re.escape(inside.name)}", text)
            fuzzer = f"sluice_fuzzer({inside.stem} " in text
            of_a_loop = inside.stem.endswith("_test") and "}_test.cpp" in text and re.search(
                rf"(?<!\w){inside.stem.removesuffix('_test')}(?!\w)", text)
            return bool(("sluice_library(" in text and globbed) or listed or of_a_loop or fuzzer
                        or f"{inside.parent}/*.cpp" in text)
        if folder == root:
            return False
    return False


def check(root):
    texts = {}
    for name, path in files(root):
        texts[name] = text = path.read_text(errors="replace")
        found = list(check_lines(name, text))
        if name.endswith(CPP):
            found += check_cpp(root, name, text)
        elif name.endswith(".py"):
            found += check_python(name, text)
        for line, message in sorted(found):
            yield f"{name}:{line}: {message}"
    for name, line, message in dead_files(root, texts):
        yield f"{name}:{line}: {message}"


# --- the check's own test

HEADER = "// What it is for.\n#pragma once\n"
LONG_BODY = "int f() {\n" + "  g();\n" * MAX_FUNCTION_LINES + "}\n"
UNORDERED = ("void f() {\n  std::unordered_map<int, int> m;\n  for (const auto& [k, v] : m) g(k);\n"
             "}\n")
PLANTED = [  # file, text, line of the finding, part of its message
    ("src/memory/a.cpp", "auto t = std::chrono::steady_clock::now();\n", 1, "reads a clock"),
    ("src/memory/b.cpp", "void f() { std::thread t; }\n", 1, "starts a thread"),
    ("src/engine/c.cpp", "void f() {\n  std::lock_guard l(m);\n}\n", 2, "locks"),
    ("src/engine/d.cpp", "void f() { sleep_for(x); }\n", 1, "sleeps"),
    ("src/cluster/e.cpp", "int f() { return rand(); }\n", 1, "not reproducible"),
    ("src/cluster/f.cpp", "std::random_device d;\n", 1, "not reproducible"),
    ("src/cluster/g.cpp", 'auto e = std::getenv("X");\n', 1, "reads the environment"),
    ("src/scheduling/h.cpp", "int f() {\n  static int calls = 0;\n  return ++calls;\n}\n", 2,
     "static mutable"),
    ("src/scheduling/i.cpp", "int total = 0;\n", 1, "mutable global"),
    ("src/scheduling/j.cpp", UNORDERED, 3, "differs from run to run"),
    ("src/scheduling/k.cpp", "std::map<Node*, int> f();\n", 1, "keys by address"),
    ("src/base/l.cpp", LONG_BODY, 1, f"function of {MAX_FUNCTION_LINES + 2} lines"),
    ("src/base/m.cpp", "int a;  // " + "x" * MAX_COLUMNS + "\n", 1, "columns"),
    ("src/base/n.cpp", "// line\n" * (MAX_SOURCE_LINES + 1), MAX_SOURCE_LINES + 1, "two rooms"),
    ("src/base/o.h", HEADER + "// line\n" * MAX_HEADER_LINES, MAX_HEADER_LINES + 1, "two rooms"),
    ("src/base/p.cpp", "// TO" "DO later\n", 1, "without an issue"),
    ("src/base/q.cpp", "// see https://py" "pi.org/x\n", 1, "registry"),
    ("tools/r.sh", "cd /wor" "k/x\n", 1, "path of one machine"),
    ("src/base/s.h", HEADER, 1, "no file includes"),
    ("src/base/deep/t.cpp", "int f();\n", 1, "no CMakeLists.txt takes"),
    ("src/base/u.cpp", "int f() { assert(x); }\n", 1, "vanishes in release"),
    ("src/base/v.h", "#pragma once\n", 1, "begin with a comment"),
    ("src/base/w.h", "// What it is for.\n", 1, "#pragma once"),
    ("tools/x.py", "def f():\n" + "  g()\n" * MAX_FUNCTION_LINES, 1, "function of"),
    ("src/base/y.cpp", "int a; \n", 1, "white space"),
]
FINE = [
    ("src/memory/fine.h", HEADER + "inline constexpr int kA = 1;\nstruct S {\n  int a = 0;\n};\n"),
    ("src/memory/fine.cpp",
     '#include "memory/fine.h"\n// steady_clock::now() in a comment\nstatic constexpr int kB = 2;\n'
     'static int f(int a);\nconst auto s = "std::thread";\n' + "TO" "DO(#12)\n"
     "void f() {\n  std::unordered_map<int, int> m;\n  m[1] = 2;\n  std::vector<int> v;\n"
     "  for (int x : v) g(x);\n}\n"),
    ("src/memory/fine_test.cpp", LONG_BODY + "// line\n" * MAX_SOURCE_LINES),
    ("src/net/fine.cpp", "void f() { std::thread t; }\nstatic int n = 0;\n"),
    ("src/base/fine.cpp", "void f() {\n" + "  g();\n" * (MAX_FUNCTION_LINES - 2) + "}\n"),
    ("tests/loop/CMakeLists.txt", "foreach(t IN ITEMS deep)\n  add_executable(x ${t}_test.cpp)\n"),
    ("tests/loop/deep_test.cpp", "int f();\n"),
    ("docs/fine.md", "curl http://localhost:8080/v1 and https://prometheus.io/docs\n"),
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in [p[:2] for p in PLANTED] + FINE:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        for room in ("memory", "engine", "cluster", "scheduling", "base", "net"):
            (root / "src" / room).mkdir(exist_ok=True)
            (root / "src" / room / "CMakeLists.txt").write_text(f"sluice_library({room})\n")
        found = list(check(root))
    wrong = [f"not caught: {name}:{line}: {message}" for name, _, line, message in PLANTED
             if not any(f.startswith(f"{name}:{line}: ") and message in f for f in found)]
    fine = {name for name, _ in FINE}
    return wrong + [f"false alarm: {f}" for f in found if f.split(":")[0] in fine]


def main():
    if sys.argv[1:] not in ([], ["--self-test"]):
        sys.exit(__doc__)
    problems = self_test() if sys.argv[1:] else list(check(ROOT))
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"tidy: {len(problems)} problems")
    print(f"tidy: {len(PLANTED)} planted violations caught" if sys.argv[1:] else "tidy: clean")


if __name__ == "__main__":
    main()
