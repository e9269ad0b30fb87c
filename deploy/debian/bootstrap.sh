#!/bin/sh
# Makes the tree of a minimal Debian, of this machine's release and from where apt takes
# its packages here, as root:
#
#     deploy/debian/bootstrap.sh DIR [PACKAGE]
set -eu

root=$1
wait_for_apt="-o DPkg::Lock::Timeout=300"
if ! command -v debootstrap >/dev/null; then
  # shellcheck disable=SC2086 # two words
  { apt-get $wait_for_apt update -qq && apt-get $wait_for_apt install -y -qq --no-install-recommends debootstrap; } >&2
fi
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016 # apt's own format
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $suite" | head -n 1)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # nothing, or one word
if ! debootstrap --variant=minbase ${2:+--include=$2} "$suite" "$root" ${mirror:-} >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  exit 1
fi
rm -rf "$root"/var/cache/apt "$root"/var/lib/apt/lists
