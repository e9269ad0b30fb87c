# What the test of the package does in a container. $1 is the package.
dpkg -i "$1"
fabricd version
getent passwd fabricd | grep -q ':/var/lib/fabricd:/usr/sbin/nologin$'
test "$(stat -c '%U:%G %a' /var/lib/fabricd)" = 'fabricd:fabricd 700'
grep -q 'ExecStart=/usr/bin/fabricd run' /lib/systemd/system/fabricd.service
dpkg -S /usr/share/man/man1/fabricd.1.gz /usr/share/man/man1/fabricd-run.1.gz /usr/share/bash-completion/completions/fabricd >/dev/null ||
  dpkg -L fabricd | grep -q man1/fabricd-run # a slim image drops manual pages
runuser -u fabricd -- fabricd init --state-dir /var/lib/fabricd --token-file /var/lib/fabricd/join.token
# The unit's program, settings and user, without its manager.
mkdir -p /run/fabricd && chown fabricd:fabricd /run/fabricd
cp /usr/share/doc/fabricd/examples/host.yaml /etc/fabricd/fabricd.yaml
runuser -u fabricd -- fabricd run --config /etc/fabricd/fabricd.yaml 2>/tmp/log &
for i in $(seq 100); do fabricd health >/dev/null 2>&1 && break; sleep 0.1; done
fabricd health || { cat /tmp/log; exit 1; }
kill %1 2>/dev/null || kill $!
wait || true
dpkg -i "$1" # an upgrade
test -s /var/lib/fabricd/identity && test -s /etc/fabricd/fabricd.yaml
dpkg -r fabricd
! test -e /usr/bin/fabricd
dpkg -P fabricd
test -s /var/lib/fabricd/identity # a cluster cannot lose it
echo 'all is well'
