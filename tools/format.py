#!/usr/bin/env python3
"""Checks with clang-format that the C++ sources are laid out as .clang-format says.

    tools/format.py          lists what is not, and fails if there is any
    tools/format.py --fix    formats in place

The version is pinned by the package clang-format-14: others break lines elsewhere.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = "clang-format-14"


def main():
    fix = sys.argv[1:] == ["--fix"]
    if sys.argv[1:] and not fix:
        sys.exit(__doc__)
    sources = sorted(str(path.relative_to(ROOT)) for top in ("src", "apps", "tests", "bench")
                     for path in (ROOT / top).rglob("*") if path.suffix in (".h", ".cpp"))
    mode = ["-i"] if fix else ["--dry-run", "--Werror", "--ferror-limit=1"]
    result = subprocess.run([TOOL, "--style=file", *mode, *sources], cwd=ROOT, check=False)
    if result.returncode != 0:
        sys.exit("format: run `make format`")
    print(f"format: {len(sources)} files {'formatted' if fix else 'as they should be'}")


if __name__ == "__main__":
    main()
