#!/bin/sh
# Builds the Debian package of a fabricd:
#
#     deploy/debian/build.sh FABRICD DIR    # writes DIR/fabricd_VERSION_ARCH.deb
#
# FABRICD is a static binary for this machine. What is in the package: the program,
# its unit, user, kernel settings, manual pages and completion. It starts nothing: a
# node needs a configuration first (docs/systemd.md).
set -eu
cd "$(dirname "$0")/../.."

program=$1 out=$2
described=$(git describe --tags --match 'v[0-9]*' 2>/dev/null || true)
if [ -n "$described" ]; then
  version=$(echo "${described#v}" | sed 's/-/+/; s/-/./g')
else
  version=0~git$(git log -1 --format=%cd.%h --date=format:%Y%m%d 2>/dev/null || echo 0)
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
arch=$(dpkg --print-architecture)

umask 022
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' INT TERM
chmod 0755 "$root" # mktemp's is for this user alone, and a package's root is not

put() { install -D -m "$1" "$2" "$root$3"; }
put 0755 "$program" /usr/bin/fabricd
put 0644 deploy/systemd/fabricd.sysusers /usr/lib/sysusers.d/fabricd.conf
put 0644 deploy/sysctl.conf /usr/lib/sysctl.d/60-fabricd.conf
put 0644 deploy/systemd/host.yaml /usr/share/doc/fabricd/examples/host.yaml
put 0644 deploy/systemd/node.yaml /usr/share/doc/fabricd/examples/node.yaml
put 0644 deploy/debian/lintian-overrides /usr/share/lintian/overrides/fabricd
put 0644 deploy/debian/copyright /usr/share/doc/fabricd/copyright
install -d "$root/etc/fabricd" "$root/lib/systemd/system" "$root/usr/share/man/man1" \
  "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" "$root/usr/share/fish/vendor_completions.d"
sed 's|/usr/local/bin/|/usr/bin/|; s|See docs/systemd.md|See fabricd(1)|' deploy/systemd/fabricd.service >"$root/lib/systemd/system/fabricd.service"
"$program" man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
"$program" completion bash >"$root/usr/share/bash-completion/completions/fabricd"
"$program" completion zsh >"$root/usr/share/zsh/vendor-completions/_fabricd"
"$program" completion fish >"$root/usr/share/fish/vendor_completions.d/fabricd.fish"
printf 'fabricd (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the source.\n\n -- fabricd developers <fabricd@users.noreply.github.com>  %s\n' \
  "$version" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$root/usr/share/doc/fabricd/changelog.gz"

install -d "$root/DEBIAN"
for script in postinst prerm postrm; do install -m 0755 "deploy/debian/$script" "$root/DEBIAN/$script"; done
sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$(du -sk --exclude=DEBIAN "$root" | cut -f 1)/" deploy/debian/control.in >"$root/DEBIAN/control"
(cd "$root" && find usr lib -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0 -r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
mkdir -p "$out"
dpkg-deb --root-owner-group -Zxz -z1 --build "$root" "$out/fabricd_${version}_${arch}.deb" >/dev/null
echo "$out/fabricd_${version}_${arch}.deb"
