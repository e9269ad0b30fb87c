#!/bin/sh
# Makes a stand-in for the image golang:1.26 out of this machine's own Go tree,
# for machines that reach no registry, so that the Dockerfile can be built there
# as it is:
#
#     deploy/base-image.sh [TAG]     # default: fabricd-golang:GOVERSION
#
# It holds the Go tree, a shell and the few tools that a RUN line needs with
# their libraries, this machine's CA certificates, the modules of this repository,
# as a module proxy on disk that is asked first, and what this machine's compiler
# has made of them. The image is for this machine: it is never pushed.
set -eu

goroot=$(go env GOROOT)
version=$(go env GOVERSION)
tag=${1:-fabricd-golang:${version#go}}
tools='sh cat chmod cp env install ln ls mkdir mv rm test touch true uname'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
root=$work/root

# put FILE: copies a file to the same place below $root, following links.
put() {
  mkdir -p "$root$(dirname "$1")"
  [ -e "$root$1" ] || cp -L "$1" "$root$1"
}

mkdir -p "$root/tmp" "$root/root" "$root/etc" "$root/go" "$root/usr/local/share/go-modules" "$root/bin" "$root/usr/bin"
chmod 1777 "$root/tmp"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"

for tool in $tools; do
  path=$(PATH=/usr/bin:/bin command -v "$tool" || true)
  case $path in
  /*) ;;
  *) path=/usr/bin/$tool ;; # a builtin of this shell has a file too
  esac
  if [ ! -x "$path" ]; then
    echo "base-image.sh: $tool: not found on this machine" >&2
    exit 1
  fi
  cp -L "$path" "$root/bin/$tool"
  # The loader and the libraries, by the names that the loader looks for.
  ldd "$path" 2>/dev/null | sed -nE 's/.*(=> |^[[:space:]]*)(\/[^ ]+) \(.*/\2/p' | while read -r lib; do put "$lib"; done
done

# Certificates: what this machine trusts, which may be more than Debian's.
bundle=${SSL_CERT_FILE:-}
for file in "$bundle" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
  if [ -n "$file" ] && [ -r "$file" ]; then
    mkdir -p "$root/etc/ssl/certs"
    cp -L "$file" "$root/etc/ssl/certs/ca-certificates.crt"
    break
  fi
done

# copy FROM TO EXCLUDE…: copies what is in a folder.
copy() {
  from=$1 to=$2
  shift 2
  mkdir -p "$to"
  tar -C "$from" "$@" -cf - . | tar -C "$to" --no-same-owner -xf -
}
copy "$goroot" "$root/usr/local/go" \
  --exclude=./test --exclude=./api --exclude=./doc --exclude=./misc --exclude=testdata --exclude='*_test.go'
# The modules of this repository, from this machine's cache where it has them.
cache=$(go env GOMODCACHE)/cache/download
(
  cd "$(dirname "$0")/.."
  GOFLAGS=-modcacherw GOMODCACHE=$work/modules GOPROXY=file://$cache,$(go env GOPROXY) go mod download
)
copy "$work/modules/cache/download" "$root/usr/local/share/go-modules" --exclude='*.lock' --exclude=./sumdb
# What the compiler made of what the Dockerfile builds, with its flags, so that
# nothing is compiled twice on one machine. It is built first: `go list` alone makes
# nothing of a profile. The cache is keyed by content: what
# does not fit any more is not used. A name ending in -d is a file that was made,
# one ending in -a says which inputs it is of, or that there was nothing to print.
nothing=$(printf '' | sha256sum | cut -d ' ' -f 1)
(
  cd "$(dirname "$0")/.."
  export CGO_ENABLED=0
  go build -trimpath -o "$work/programs/" ./cmd/fabricd ./deploy/apps/... >&2
  go list -deps -export -trimpath -f '{{.Export}}' ./cmd/fabricd ./deploy/apps/...
) | sed -n 's|.*/\([0-9a-f]*\)-d$|\1|p' | sort -u >"$work/made"
echo "$nothing" >>"$work/made"
mkdir -p "$root/root/.cache/go-build"
(
  cd "$(go env GOCACHE)"
  {
    find . -name '*-a' -print0 | xargs -0 grep -lF -f "$work/made"
    sed 's|^\(..\)\(.*\)$|./\1/\1\2-d|' "$work/made"
  } | tar -T - -cf -
) | tar -C "$root/root/.cache/go-build" --no-same-owner -xf -

tar -C "$root" --owner=0 --group=0 -cf - . | docker import \
  --change 'ENV PATH=/go/bin:/usr/local/go/bin:/usr/bin:/bin' \
  --change "ENV GOLANG_VERSION=${version#go}" \
  --change 'ENV GOTOOLCHAIN=local' \
  --change 'ENV GOPATH=/go' \
  --change "ENV GOPROXY=file:///usr/local/share/go-modules,$(go env GOPROXY)" \
  --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt' \
  --change 'WORKDIR /go' \
  --change 'LABEL org.opencontainers.image.title="stand-in for golang, made of one machine'\''s own Go tree"' \
  --message 'deploy/base-image.sh' \
  - "$tag" >/dev/null
echo "$tag"
