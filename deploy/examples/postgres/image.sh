#!/bin/sh
# Prints the name of an image of PostgreSQL for compose.yaml:
#
#     deploy/examples/postgres/image.sh    # as root, if it has to make one
#
# postgres:17, or $POSTGRES_IMAGE, if it is here or can be pulled, and otherwise a
# stand-in that is made of Debian's packages, from where apt takes them here.
set -eu

official=${POSTGRES_IMAGE:-postgres:17}
stand_in=fabricd-postgres:stand-in
for image in "$official" "$stand_in"; do
  if docker image inspect "$image" >/dev/null 2>&1; then
    echo "$image"
    exit
  fi
done
if timeout "${PULL_TIMEOUT:-300}" docker pull -q "$official" >/dev/null 2>&1; then
  echo "$official"
  exit
fi
echo "image.sh: $official is not here and cannot be pulled; making $stand_in of Debian's packages" >&2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
root=$work/root
"$(dirname "$0")/../../debian/bootstrap.sh" "$root" postgresql
rm -rf "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale
bin=$(cd "$root" && echo usr/lib/postgresql/*/bin)

# The parts of the official image's entry point that compose.yaml uses.
cat >"$root/usr/local/bin/entrypoint" <<'EOF'
#!/bin/sh
set -eu
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
  # shellcheck disable=SC2086 # several arguments
  initdb --username=postgres --pwfile=/tmp/password ${POSTGRES_INITDB_ARGS:-}
  rm /tmp/password
fi
exec "$@"
EOF
chmod 0755 "$root/usr/local/bin/entrypoint"
# A new volume takes over owner and mode from here.
mkdir -p "$root/var/lib/postgresql/data"
chroot "$root" chown postgres:postgres /var/lib/postgresql/data /var/run/postgresql
chmod 0700 "$root/var/lib/postgresql/data"

tar -C "$root" -cf - . | docker import \
  --change "ENV PATH=/$bin:/usr/local/bin:/usr/bin:/bin" \
  --change 'ENV PGDATA=/var/lib/postgresql/data' \
  --change 'ENTRYPOINT ["/usr/local/bin/entrypoint"]' \
  --change 'CMD ["postgres"]' \
  --change 'LABEL org.opencontainers.image.title="stand-in for postgres, made of Debian packages"' \
  --message 'deploy/examples/postgres/image.sh' \
  - "$stand_in" >/dev/null
echo "$stand_in"
