#!/usr/bin/env python3
"""clang-tidy on what changed since it last found nothing there.

    tools/lint.py             every source of src/ and apps/ but tests and benchmarks
    tools/lint.py FILE...     these

A source counts as changed when its text did, or that of a header of ours which it includes,
directly or not, or .clang-tidy, or clang-tidy itself: build/lint/ remembers. Needs a configured
release build. A file costs 5 to 20 seconds of processor time, mostly for the headers of others.
"""

import hashlib
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLEAN = ROOT / "build" / "lint"
CLANG_TIDY = "clang-tidy-16"
# Asio 1.74 knows the coroutines of clang's experimental library only, unless it is told.
EXTRA = [f"--extra-arg=-DBOOST_ASIO_HAS_{name}=1" for name in ("CO_AWAIT", "STD_COROUTINE")]
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def sources():
    return sorted(path for top in ("src", "apps") for path in (ROOT / top).rglob("*.cpp")
                  if not re.search(r"_(test|bench)\.cpp$", path.name))


@lru_cache(maxsize=None)
def includes(path):
    """Headers of ours that a file names."""
    found = (base / name for name in INCLUDE.findall(path.read_text())
             for base in (ROOT / "src", path.parent))
    return [header.resolve() for header in found if header.is_file()]


def key(path, common):
    """Changes with everything that the file's findings can depend on, but for others' headers."""
    seen, left = set(), [path]
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            left += includes(file)
    digest = hashlib.sha256(common)
    for file in sorted(seen):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def lint(path, common):
    """True where nothing was found."""
    stamp = CLEAN / key(path, common)
    if stamp.exists():
        return True
    name, start = path.relative_to(ROOT), time.monotonic()
    result = subprocess.run([CLANG_TIDY, "-p", "build/release", "--quiet", *EXTRA, name], cwd=ROOT,
                            capture_output=True, text=True, check=False)
    clean = result.returncode == 0
    if clean:
        stamp.touch()
    told = "" if clean else f"\n{result.stdout or result.stderr}"
    print(f"lint: {name}, {time.monotonic() - start:.0f} s{told}", flush=True)
    return clean


def main():
    paths = [Path(name).resolve() for name in sys.argv[1:]] or sources()
    CLEAN.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        clean = list(pool.map(lambda path: lint(path, common), paths))
    print(f"lint: {sum(clean)} of {len(clean)} files clean")
    sys.exit(0 if all(clean) else 1)


if __name__ == "__main__":
    main()
