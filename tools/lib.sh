# For the other scripts: builds llama.cpp source trees under build/deps. Sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps="$root/build/deps"
python=/usr/bin/python3
[[ -x $python ]] || python=python3
export CC="${CC:-gcc}" CXX="${CXX:-g++}"

# build_key TEXT...: changes with the text, the compiler, and what -march=native means on this
# machine.
build_key() {
  { printf '%s\n' "$@"; "$CXX" -march=native -dM -E -x c++ /dev/null; } | sha256sum | cut -c1-12
}

# build_tree SOURCE BUILD OPTIONS TARGETS: configures and builds; the last two name arrays.
# Progress goes to stderr.
build_tree() {
  local source_folder="$1" build="$2"
  local -n tree_options="$3" tree_targets="$4"
  # Paths relative to the root, and whatever the language: ccache knows the files in another clone.
  local -x CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=locale
  mkdir -p "$build"
  if ! cmake -S "$source_folder" -B "$build" -G Ninja "${tree_options[@]}" \
      >"$build/configure.log" 2>&1; then
    cat "$build/configure.log" >&2
    return 1
  fi
  ninja -C "$build" -j "${SLUICE_JOBS:-$(nproc)}" "${tree_targets[@]}" >&2
  touch "$build/.complete"
}
