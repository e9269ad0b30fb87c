#!/bin/sh
# Makes the image of a minimal Debian in which the package is tested, on machines that
# reach no registry of images:
#
#     deploy/debian/base-image.sh [TAG]     # default: fabricd-debian:bookworm
set -eu

tag=${1:-fabricd-debian:bookworm}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' INT TERM
"$(dirname "$0")/bootstrap.sh" "$root"
tar -C "$root" -cf - . | docker import --message deploy/debian/base-image.sh - "$tag" >/dev/null
echo "$tag"
