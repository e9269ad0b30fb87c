#!/bin/sh
# Waits until the client of compose.yaml has written a row through two fabricds, and
# shows how; `make cluster PROJECT=postgres` calls it:
#
#     deploy/examples/postgres/await.sh BEGAN COMPOSE…    # BEGAN: seconds since 1970
#
# COMPOSE… is the compose command with its options. It gives up after a minute.
set -eu
began=$1
shift

client=$("$@" ps -q client)
until docker logs "$client" 2>&1 | grep -q '^visit '; do
  if [ "$(($(date +%s) - began))" -ge 60 ]; then
    echo "postgres: no row after a minute; the end of the logs:" >&2
    "$@" logs --tail=20 >&2
    exit 1
  fi
  sleep 0.2
done
took=$(($(date +%s) - began))

west=$("$@" ps -q west)
docker exec "$west" /fabricd nodes
echo
docker exec "$west" /fabricd services
echo
docker exec "$west" /fabricd why
echo
docker logs "$client" 2>&1 | grep -m 1 '^visit '
echo "postgres: PostgreSQL and its client, in containers without a network, connected after $took s; make cluster-down PROJECT=postgres ends it"
