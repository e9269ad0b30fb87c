#!/bin/sh
# Builds the two images of the Dockerfile:
#
#     deploy/image.sh [FABRICD_TAG [APPS_TAG]]   # default: fabricd:dev fabricd-apps:dev
#
# from golang:1.26, or $GO_IMAGE, if it is here or can be pulled, and otherwise
# from the stand-in that deploy/base-image.sh makes of this machine's own Go.
set -eu
cd "$(dirname "$0")/.."

fabricd=${1:-fabricd:dev}
apps=${2:-fabricd-apps:dev}
official=${GO_IMAGE:-golang:1.26}
version=$(git describe --tags --always --dirty 2>/dev/null || echo unknown)

if ! answer=$(docker version --format '{{.Server.Version}}' 2>&1); then
  echo "image: Docker does not answer: $answer" >&2
  exit 1
fi

# The stand-in is made anew when the Go that it was made of has changed.
stand_in="fabricd-golang:$(go env GOVERSION 2>/dev/null | sed 's/^go//')"
if docker image inspect "$official" >/dev/null 2>&1; then
  base=$official
  echo "image: building from $base, which is here"
elif [ -z "${GO_IMAGE:-}" ] && docker image inspect "$stand_in" >/dev/null 2>&1; then
  base=$stand_in
  echo "image: building from the stand-in $base, which is here ('docker rmi $base' to ask a registry again)"
elif timeout "${PULL_TIMEOUT:-300}" docker pull -q "$official" >/dev/null 2>&1; then
  base=$official
  echo "image: building from $base, which was pulled"
else
  echo "image: $official is not here and cannot be pulled; making a stand-in of this machine's Go"
  base=$(deploy/base-image.sh "$stand_in")
  echo "image: building from the stand-in $base"
fi

# build TARGET TAG: the network is the machine's, so that modules are found as
# here. What go env says goes to the build stage only, which is not in the image.
build() {
  docker build -q --force-rm --network host --target "$1" -t "$2" \
    --build-arg "GO_IMAGE=$base" --build-arg "VERSION=$version" \
    --build-arg "GOPROXY=$(go env GOPROXY 2>/dev/null || true)" \
    --build-arg "GOSUMDB=$(go env GOSUMDB 2>/dev/null || true)" \
    --build-arg "GONOSUMDB=$(go env GONOSUMDB 2>/dev/null || true)" \
    --build-arg "GOPRIVATE=$(go env GOPRIVATE 2>/dev/null || true)" \
    .
}
# The log of a build is long and shown only if it fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for pair in "apps $apps" "fabricd $fabricd"; do
  # shellcheck disable=SC2086 # two words
  if ! build $pair >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 1
  fi
done

# What the tags had before is in nobody's way but the disk's. The classic builder
# also leaves the build stage behind, for the next build: one is enough.
{
  docker image ls -q --filter dangling=true --filter label=org.opencontainers.image.source=https://github.com/fabricd/fabricd
  docker image ls -q --filter dangling=true --filter label=org.fabricd.stage=build | sed 1d
} | while read -r old; do
  docker rmi "$old" >/dev/null 2>&1 || true # in use
done

for tag in "$fabricd" "$apps"; do
  size=$(docker image inspect --format '{{.Size}}' "$tag")
  echo "image: $tag is $((size / 1000000)).$((size / 100000 % 10)) MB, version $version"
done
