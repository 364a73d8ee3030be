#!/usr/bin/env bash
# Installs the Debian packages that sluice needs and that are not there yet.
#
#   tools/setup.sh            what the build needs (tools/packages.txt)
#   tools/setup.sh --test     that, and what the tests need (tools/packages-test.txt)
#   tools/setup.sh --vulkan   that, and what the Vulkan backend needs (tools/packages-vulkan.txt)
#   tools/setup.sh --dry-run  says what is missing, installs nothing
#
# When nothing is missing it says nothing and takes milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."

lists=(tools/packages.txt)
dry_run=false
for argument in "$@"; do
  case "$argument" in
    --test) lists+=(tools/packages-test.txt) ;;
    --vulkan) lists+=(tools/packages-vulkan.txt) ;;
    --dry-run) dry_run=true ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
mapfile -t wanted < <(sed 's/#.*//' "${lists[@]}" | grep -oE '\S+')

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not Debian; see to it that the equivalents of these are installed:" >&2
  echo "  ${wanted[*]}" >&2
  exit 0
fi

installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
            sed -n 's/^installed //p' || true)
mapfile -t missing < <(comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) \
                                <(printf '%s\n' "$installed" | sort -u))
((${#missing[@]})) || exit 0

echo "-- setup: ${#missing[@]} Debian packages are missing and will be installed with apt-get:" >&2
printf '%s\n' "${missing[@]}" | paste -sd ' ' | fold -s -w 96 | sed 's/^/     /' >&2
if $dry_run; then exit 0; fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: this needs root, and there is no sudo. Have an administrator run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "-- setup: using sudo for it" >&2
  as_root=(sudo)
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 "$@" >&2
}
quiet=()
[[ -t 2 ]] || quiet=(-q)
# Fresh containers have no package lists, and old lists name versions that are gone.
apt-cache show "${missing[@]}" >/dev/null 2>&1 || apt "${quiet[@]}" update
install=("${quiet[@]}" install -y --no-install-recommends "${missing[@]}")
apt "${install[@]}" || { apt "${quiet[@]}" update && apt "${install[@]}"; }
echo "-- setup: packages installed" >&2
