#!/usr/bin/env python3
"""Runs test suites one after another and closes with one line, `N passed, N failed`.

    tools/run_tests.py [--keep-going] SUITE...

    style     what tools/tidy.py and tools/check_layers.py find                       (seconds)
    format    clang-format                                                            (seconds)
    unit      release build, all unit tests; the forecast on ../shared/traces where they are
    headers   every header compiles alone
    parity    our graphs against libllama on the real models
    e2e       the real program, over HTTP
    conformance  the quick ones of the outside suites in tests/conformance (minutes)
    dev       unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
    tsan      unit tests of what has threads under ThreadSanitizer
    lint      clang-tidy, on what changed since it was last clean
    fuzz      each fuzz target for SLUICE_FUZZ_SECONDS (5); in CI for 20,000 inputs

Stops after the first suite that fails, unless told to keep going. `make test` does the set-up that
the suites need. With CI in the environment warnings are errors in the release build as well.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
# What has threads. The runner's kernels run on ggml's thread pool, which is built without
# ThreadSanitizer: it would report the pool's own synchronisation.
TSAN_TARGETS = r"^(base|device|net|gateway)_test$"
# What runs under AddressSanitizer: all but the graphs, since ggml is built without it.
DEV_TARGETS = (r"^((base|memory|engine|scheduling|transfer|cluster|simulation|simulate|device|net"
               r"|gateway|model)_test|dst)$")
# More end-to-end tests than this fail for a reason: they are not tried again.
SECOND_TRIES = 3
PARITY_TESTS = r"^model_parity_test$"


class Tally:
    """Passed and failed of one suite or of all."""

    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def __add__(self, other):
        return Tally(self.passed + other.passed, self.failed + other.failed,
                     self.skipped + other.skipped)

    def __str__(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


PASSED, FAILED = Tally(passed=1), Tally(failed=1)
failures = []  # names of what failed, for the last lines of a long log


class BuildFailed(Exception):
    pass


def say(text):
    print(text, flush=True)


def run(*command, env=None):
    """Runs a command with its output shown; True when it succeeded."""
    words = [str(word) for word in command]
    say("$ " + " ".join(words).replace(f"{ROOT}/", ""))
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **(env or {})}, check=False,
                          stdin=subprocess.DEVNULL).returncode == 0


def check(*command):
    if run(*command):
        return PASSED
    failures.append(" ".join(str(word) for word in command[:2]).replace(f"{ROOT}/", ""))
    return FAILED


def junit_tally(file):
    """Sums the outermost counters of a JUnit file, which ctest and pytest both write."""
    root = xml.etree.ElementTree.parse(file).getroot()
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    total = Tally()
    for suite in suites:
        def count(name, suite=suite):
            return int(suite.get(name) or 0)
        failed = count("failures") + count("errors")
        skipped = count("skipped") + count("disabled")
        total += Tally(count("tests") - failed - skipped, failed, skipped)
    failures.extend(case.get("name") for case in root.iter("testcase")
                    if case.find("failure") is not None or case.find("error") is not None)
    return total


def with_junit(make_command, env=None):
    """Runs the command that writes a JUnit file to the path it is given; failing counts always."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        succeeded = run(*make_command(report), env=env)
        if not report.exists():
            return FAILED
        total = junit_tally(report)
        if total.passed + total.failed == 0:
            say("no test was run")
            return FAILED
        return total if succeeded or total.failed else total + FAILED


# --- building


def fixed_addresses():
    """ThreadSanitizer of g++ 12 cannot start where the kernel spreads addresses widely."""
    command = ["setarch", "--addr-no-randomize"]
    works = shutil.which(command[0]) and subprocess.run(
        [*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


def build(preset, pattern=None, options=(), prefix=()):
    """Configures and builds a preset: the targets that match the pattern, or everything."""
    if not run("cmake", "--preset", preset, *options):
        raise BuildFailed(f"preset {preset} does not configure")
    folder = BUILD / preset
    targets = []
    if pattern:
        listing = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], text=True,
                                 capture_output=True, check=True).stdout
        names = re.findall(r"^([\w-]+): phony$", listing, re.M)
        targets = sorted(name for name in set(names) if re.search(pattern, name))
        if not targets:
            raise BuildFailed(f"preset {preset} has no target that matches {pattern}")
    if not run(*prefix, "cmake", "--build", folder, *(["--target", *targets] if targets else [])):
        raise BuildFailed(f"preset {preset} does not build")
    return targets


def ctest(preset, *selection, prefix=(), env=None):
    jobs = os.cpu_count() or 2
    return with_junit(lambda report: [
        *prefix, "ctest", "--test-dir", BUILD / preset, "--output-on-failure", "--no-tests=error",
        "-j", jobs, *selection, "--output-junit", report],
        env={"SLUICE_TEST_MODELS": str(ROOT / "models"), **llama_source(), **(env or {})})


def llama_source():
    """The source that was built: its vocabularies and templates are conformance data."""
    current = BUILD / "deps" / "current"
    return {"SLUICE_LLAMA_SOURCE": current.read_text().splitlines()[0]} if current.exists() else {}


def warnings_are_errors():
    return ["-DSLUICE_WERROR=ON"] if os.environ.get("CI") else []


# --- suites


def style():
    total = Tally()
    for tool in ("tidy.py", "check_layers.py"):
        total += check(sys.executable, f"tools/{tool}", "--self-test")
        total += check(sys.executable, f"tools/{tool}")
    return total


def format_():
    return check(sys.executable, "tools/format.py")


def unit():
    build("release", options=warnings_are_errors())
    return ctest("release", "-L", "unit|traces")


def headers():
    build("release", "^check_headers$", options=warnings_are_errors())
    return PASSED


def parity():
    build("release", PARITY_TESTS, options=warnings_are_errors())
    return ctest("release", "-L", "parity")


def e2e():
    build("release", "^sluice$", options=warnings_are_errors())
    pytest = [BUILD / "venv" / "bin" / "python", "-m", "pytest", "tests/e2e", "-v",
              "-o", f"cache_dir={BUILD / 'pytest'}"]
    first = with_junit(lambda report: [*pytest, f"--junitxml={report}"])
    if not 0 < first.failed <= SECOND_TRIES:
        return first
    say(f"\ne2e: {first.failed} failed; these once more, since real processes on a loaded machine "
        "can miss a time limit")
    second = with_junit(lambda report: [*pytest, "--last-failed", "--last-failed-no-failures=none",
                                        f"--junitxml={report}"])
    say(f"e2e: {second.passed} passed at the second try only: that is worth a look")
    return first + second + Tally(failed=-first.failed)


def conformance():
    build("release", "^sluice$", options=warnings_are_errors())
    total = Tally()
    for part in ("sdk", "comply", "llama"):
        total += check("env", "QUICK=1", "tests/conformance/run.sh", part)
    return total


def dev():
    build("dev", DEV_TARGETS)
    return ctest("dev", "-L", "unit", "-E", "_NOT_BUILT", env={
        "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1"})


def tsan():
    prefix = fixed_addresses()
    build("tsan", TSAN_TARGETS, prefix=prefix)
    return ctest("tsan", "-L", "unit", "-E", "_NOT_BUILT|^dst", prefix=prefix,
                 env={"TSAN_OPTIONS": "halt_on_error=1"})


def lint():
    if not run("cmake", "--preset", "release", *warnings_are_errors()):
        raise BuildFailed("preset release does not configure")
    return check(sys.executable, "tools/lint.py")


def fuzz():
    build("fuzz", "^fuzzers$")
    seeds = BUILD / "fuzz" / "seeds"
    python = BUILD / "venv" / "bin" / "python"
    if not run(python, "tests/fuzz/make_seeds.py", seeds / "gguf_loader"):
        raise BuildFailed("no seeds")
    seconds = int(os.environ.get("SLUICE_FUZZ_SECONDS", "5"))
    # By count in CI, from one seed: a slow machine tries as much as a fast one.
    budget = ["-seed=1", "-runs=20000"] if os.environ.get("CI") else [f"-max_total_time={seconds}"]
    total = Tally()
    for program in sorted((BUILD / "fuzz" / "tests").glob("fuzz_*")):
        name = program.name.removeprefix("fuzz_")
        found = BUILD / "fuzz" / "found" / name
        found.mkdir(parents=True, exist_ok=True)
        known = [f for f in (ROOT / "tests" / "fuzz" / "corpus" / name, seeds / name) if f.exists()]
        result = check(program, *budget, "-timeout=10", "-rss_limit_mb=2048",
                       "-print_final_stats=1", f"-artifact_prefix={found}/", found, *known)
        if result.failed:
            failures.append(f"fuzz target {name}")
        total += result
    return total if total.passed + total.failed else FAILED


SUITES = {"style": style, "format": format_, "unit": unit, "headers": headers, "parity": parity,
          "e2e": e2e,
          "conformance": conformance, "dev": dev, "tsan": tsan, "lint": lint, "fuzz": fuzz}


def run_suite(name):
    try:
        return SUITES[name]()
    except BuildFailed as error:
        say(f"{name}: {error}")
        return FAILED


def main():
    arguments = sys.argv[1:]
    keep_going = "--keep-going" in arguments
    names = [a for a in arguments if a != "--keep-going"]
    unknown = [n for n in names if n not in SUITES]
    if not names or unknown:
        sys.exit(f"unknown suites: {' '.join(unknown)}\n\n{__doc__}" if unknown else __doc__)
    total, lines, began = Tally(), [], time.monotonic()
    for number, name in enumerate(names, 1):
        say(f"\n== {name} ({number} of {len(names)}, {time.monotonic() - began:.0f} s so far)")
        start = time.monotonic()
        result = run_suite(name)
        total += result
        lines.append(f"   {name:8} {result} in {time.monotonic() - start:.0f} s")
        if result.failed and not keep_going:
            lines += [f"   {left:8} not run" for left in names[number:]]
            break
    say("\n== all suites\n" + "\n".join(lines))
    say("".join(f"   failed: {name}\n" for name in failures[:20]) + f"\n{total}")
    sys.exit(1 if total.failed else 0)


if __name__ == "__main__":
    main()
