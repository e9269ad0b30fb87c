#!/bin/sh
# Waits until the cluster of compose.yaml is healthy, its two applications have done
# their first RMA and their connection is on a path, and shows all of it; `make
# cluster` calls it:
#
#     deploy/await.sh BEGAN COMPOSE…    # BEGAN: seconds since 1970
#
# COMPOSE… is the compose command with its options. It gives up after a minute.
set -eu
began=$1
shift

# until_true WHAT COMMAND…: repeats COMMAND until it succeeds.
until_true() {
  what=$1
  shift
  while ! "$@"; do
    if [ "$(($(date +%s) - began))" -ge 60 ]; then
      echo "cluster: $what after a minute; the end of the logs:" >&2
      $compose logs --tail=20 >&2
      exit 1
    fi
    sleep 0.2
  done
}

compose=$*
for service in host node1 node2; do
  container=$($compose ps -q "$service")
  healthy() { [ "$(docker inspect -f '{{.State.Health.Status}}' "$container")" = healthy ]; }
  until_true "$service is not healthy" healthy
done
visitor=$($compose ps -q visitor)
first_rma() { docker logs "$visitor" 2>&1 | grep -q '^round '; }
until_true "the visitor has done no RMA" first_rma
node2=$($compose ps -q node2)
on_path() { docker exec "$node2" /fabricd why | grep -q '^  path  .* TLS 1.3 between the applications'; }
until_true "the connection of the applications is not on a path" on_path
took=$(($(date +%s) - began))

host=$($compose ps -q host)
docker exec "$host" /fabricd status
echo
docker exec "$host" /fabricd nodes
echo
docker logs "$visitor" 2>&1 | grep -m 2 -E '^(connected|round)'
docker exec "$node2" /fabricd why
echo
echo "cluster: 3 nodes and 2 applications in containers without a network, healthy, past their first RMA and on a path after $took s; make cluster-down ends it"
