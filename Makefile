# The commands of this repository. `make help` lists them.
SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# The Go that go.mod asks for; one from 1.21 on fetches it itself.
GO_WANTED := $(shell sed -n 's/^go \([0-9.]*\)$$/\1/p' go.mod)
GO_FOUND  := $(shell go version 2>/dev/null | sed -n 's/^go version go\([0-9.]*\).*/\1/p')
ifneq ($(GO_WANTED),$(shell printf '%s\n' $(or $(GO_FOUND),0) $(GO_WANTED) | sort -V | head -n 1))
$(error fabricd needs Go $(GO_WANTED)$(if $(GO_FOUND), and finds $(GO_FOUND)): install it from https://go.dev/dl and put its bin directory into PATH)
endif

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
BUILD   := CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)'

# How often `make soak` runs the tests, and how often the heavy ones of them, which
# take ten seconds and more each, and those of ALONE: all of it in under an hour.
SOAK       ?= 20
SOAK_HEAVY ?= 5
HEAVY      := cmd/fabric-bench cmd/fabricd fabric fabric/fabrictest internal/test/archtest internal/lab/check \
              internal/test/conformance internal/engine internal/faults/inject internal/attach/client internal/lab/report internal/lab/sim \
              internal/transport/quic internal/transport/stream membership membership/state membership/verdict
# Tests with real processes, namespaces and containers, which `make test` runs last,
# two at a time: they wait more than they compute.
ALONE      := internal/lab/chaos internal/lab/chaos/workload internal/test/deploytest internal/test/e2e internal/test/hostile internal/test/pagetest
# What `make check` leaves to `make test` besides: it takes minutes.
SLOW       := internal/test/conformance membership/gossip internal/lab/sim fabric/fabrictest cmd/fabric-bench internal/test/e2e/appsmoke
# How many packages `make test` tests at a time.
PACKAGES   ?= 4
# How long `make fuzz-short` runs each fuzz target.
FUZZTIME ?= 10s

# The images of `make image`, and what deploy/compose.yaml is started with.
IMAGE      ?= fabricd:dev
APPS_IMAGE ?= fabricd-apps:dev
COMPOSE     = $$(docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
CLUSTER     = $(COMPOSE) -p fabricd -f deploy/compose.yaml
# An example of deploy/examples that `make cluster` starts instead: PROJECT=postgres.
PROJECT    ?=
EXAMPLE     = $(COMPOSE) -p fabricd-$(PROJECT) -f deploy/examples/$(PROJECT)/compose.yaml

.PHONY: help build demo check test lint attack apps conformance soak criteria bench bench-baselines fuzz-short deb image cluster cluster-down chaos mutants clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

build: ## build bin/fabricd and bin/fabric-bench, static
	@mkdir -p bin
	$(BUILD) -o bin/ ./cmd/...

demo: ## three daemons on loopback, two applications, one kill: every step checked (ARGS=--json)
	@mkdir -p bin
	$(BUILD) -o bin/fabricd ./cmd/fabricd
	bin/fabricd demo $(ARGS)

# What is not run with the race detector is compiled as `build` and the Dockerfile
# do it, so that it is compiled once.
PLAIN := CGO_ENABLED=0 GOFLAGS="$${GOFLAGS:-} -trimpath"

define LINT
unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l)
if [ -n "$$unformatted" ]; then printf 'not formatted (gofmt -w):\n%s\n' "$$unformatted"; exit 1; fi
export $(PLAIN)
go vet ./...
# What macOS has: embedded nodes, and clusters in tests.
GOOS=darwin GOARCH=arm64 go vet ./fabric/...
go tool -modfile=tools.mod staticcheck ./...
echo 'lint: gofmt, go vet (fabric for darwin, too) and staticcheck find nothing'
endef

define WITHOUT
# What the machine does not have is left out, and named at the end; CI has all of it.
without=$${FABRICD_TEST_WITHOUT:-}
if [ -z "$${FABRICD_TEST_ALL:-}" ]; then
  if [[ ",$$without," != *,docker,* ]] && ! docker version >/dev/null 2>&1; then without+=,docker; fi
  if [[ ",$$without," != *,debian,* ]] && ! command -v dpkg-deb >/dev/null; then without+=,debian; fi
  if [[ ",$$without," != *,systemd,* ]] && ! command -v systemd-analyze >/dev/null; then without+=,systemd; fi
  if [[ ",$$without," != *,chromium,* ]] && ! { command -v chromium && command -v chromedriver; } >/dev/null; then without+=,chromium; fi
  if [[ ",$$without," != *,postgresql,* ]] && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then without+=,postgresql; fi
  if [[ ",$$without," != *,prometheus,* ]] && ! { command -v prometheus && command -v promtool; } >/dev/null; then without+=,prometheus; fi
fi
export FABRICD_TEST_WITHOUT=$${without#,}
endef

lint: ## gofmt, go vet, staticcheck
	@$(LINT)

check: ## in three minutes, without Docker: lint, the rules and numbers of the tree, and the quicker tests
	@$(WITHOUT)
	$(LINT)
	go test -count=1 -v -run 'Numbers|Lines' ./internal/test/archtest | sed -n 's/^ *numbers_test.go:[0-9]*: //p'
	left=$$(printf 'github.com/fabricd/fabricd/%s\n' $(ALONE) $(SLOW))
	export $(PLAIN)
	go test -vet=off -p $(PACKAGES) $$(go list ./... | grep -vxF "$$left") | awk '/^(ok |\?)/ { n++; next } { print } END { print n " packages pass" }'

test: ## lint, the rules of the tree, and every test with the race detector
	@mkdir -p out
	$(WITHOUT)
	# The images beside lint: with the tests beside them they take long.
	images=
	if [ -z "$${FABRICD_IMAGE:-}" ] && [[ ",$$without," != *,docker,* ]]; then
	  deploy/image.sh $(IMAGE) $(APPS_IMAGE) >out/image.log 2>&1 &
	  images=$$!
	fi
	set +e # not `||`: that would also go on behind what fails inside
	( set -e
	  $(LINT)
	  go test ./internal/test/archtest | tee out/test.log )
	rc=$$?
	set -e
	if [ -n "$$images" ]; then
	  if wait $$images; then export FABRICD_IMAGE=$(IMAGE) FABRICD_APPS_IMAGE=$(APPS_IMAGE); fi
	  cat out/image.log
	fi
	if [ "$$rc" != 0 ]; then exit $$rc; fi
	# What needs no race detector, or counts allocations, which it adds to, or moves
	# more memory than it has time for, beside the rest.
	{ $(PLAIN) go test -timeout 20m ./internal/lab/sim || rc=$$?
	  $(PLAIN) go test -run 'Alloc|LargeSizes' ./internal/engine ./internal/attach/client ./internal/path || rc=$$?
	  $(PLAIN) GOARCH=arm64 go build ./... || rc=$$?
	  # As on a system without shared memory and paths, on this one.
	  $(PLAIN) go test -tags portable ./fabric/embed ./fabric/fabrictest || rc=$$?
	  cd deploy/check; $(PLAIN) go test -count=1 ./... || rc=$$?; exit $$rc; } >out/plain.log 2>&1 &
	plain=$$!
	# What runs real processes against bounds of time goes last, so that neither the
	# compiler nor other tests take the processors from it. Of the others more than
	# there are processors run at a time: many of them wait. vet was run. What fails so
	# is run once more, alone: only what fails again, or has a data race, fails the run.
	raced=0
	alone=$$(printf 'github.com/fabricd/fabricd/%s\n' $(ALONE))
	# The slow ones first, so that no processor waits for the last of them.
	slow=$$(printf 'github.com/fabricd/fabricd/%s\n' $(SLOW))
	most="$$slow $$(go list ./... | grep -vxF "$$alone"$$'\n'"$$slow"$$'\n'github.com/fabricd/fabricd/internal/test/archtest)"
	go test -race -vet=off -timeout 30m -p $(PACKAGES) $$most 2>&1 | tee -a out/test.log || raced=$$?
	go test -race -vet=off -timeout 20m -run '^$$' $$alone >/dev/null || rc=$$?
	wait $$plain || rc=$$?
	cat out/plain.log
	go test -race -vet=off -timeout 30m -p 2 $$alone 2>&1 | tee -a out/test.log || raced=$$?
	if [ "$$raced" != 0 ]; then .ci/again out/test.log || rc=$$?; fi
	# By the last result of each package; what plain.log has was tested in its own way.
	awk '/^(ok |FAIL\t)/ { last[FILENAME, $$2] = $$1 } /no test files/ { none++ } /^unsteady: / { unsteady = unsteady "\n  " $$0 }
	     END { for (x in last) if (last[x] == "ok") ok++; else { fail++; split(x, of, SUBSEP); failed = failed "\n  " of[2] }
	       printf "\nsummary: %d packages pass, %d fail, %d have no tests%s%s\n", ok, fail, none, failed, unsteady }' out/test.log out/plain.log
	if [ -n "$$FABRICD_TEST_WITHOUT" ]; then echo "left out: the tests that need $${FABRICD_TEST_WITHOUT//,/ and }"; fi
	exit $$rc

attack: ## hostile members, strangers and applications against eight daemons: a timeline (ARGS=--json)
	@mkdir -p bin
	$(BUILD) -o bin/fabricd ./cmd/fabricd
	$(PLAIN) go test -c -o bin/attack.test ./internal/test/hostile
	cd internal/test/hostile
	FABRICD_ATTACK=$(if $(findstring --json,$(ARGS)),json,text) FABRICD_ATTACK_EXE=../../../bin/fabricd \
	  exec ../../../bin/attack.test -test.run '^TestAttack$$' -test.timeout 4m

apps: ## PostgreSQL, Redis, nginx, ssh, rsync, git and gRPC across two fabricds that fail: a table (Debian, root; ARGS=--json)
	@mkdir -p bin
	for tool in pgbench redis-server redis-benchmark nginx wrk curl ip setpriv sshd rsync git; do
	  command -v $$tool >/dev/null && continue
	  apt-get update -qq
	  # In runlevel 1 the packages do not start their servers.
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    postgresql redis-server redis-tools nginx-light wrk curl iproute2 util-linux openssh-server openssh-client rsync git >/dev/null
	  break
	done
	$(BUILD) -o bin/fabricd ./cmd/fabricd
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=next' -o bin/fabricd-next ./cmd/fabricd
	$(PLAIN) go test -c -o bin/appsmoke.test ./internal/test/e2e/appsmoke
	cd internal/test/e2e/appsmoke
	FABRICD_APPSMOKE=$(if $(findstring --json,$(ARGS)),json,text) FABRICD_APPSMOKE_EXE=$(CURDIR)/bin/fabricd \
	  exec $(CURDIR)/bin/appsmoke.test -test.run '^TestAppsSmoke$$' -test.timeout 8m

conformance: ## what of SCIF holds, is missing or cannot apply, per call, in every API mode
	@cd internal/test/conformance
	go test -count=1 -timeout 30m -run '^TestConformance$$' # without a package: go shows what passing tests print

soak: ## the tests SOAK times in a row, the heavy ones SOAK_HEAVY times
	@heavy=$$(printf 'github.com/fabricd/fabricd/%s\n' $(HEAVY))
	alone=$$(printf 'github.com/fabricd/fabricd/%s\n' $(ALONE))
	light=$$(go list ./... | grep -vxF "$$heavy"$$'\n'"$$alone")
	rc=0
	go test -race -count=$(SOAK) -timeout 60m $$light || rc=$$?
	go test -race -count=$(SOAK_HEAVY) -timeout 60m $$heavy || rc=$$?
	$(PLAIN) go test -count=$(SOAK_HEAVY) -timeout 60m ./internal/lab/sim || rc=$$?
	go test -race -count=$(SOAK_HEAVY) -timeout 60m -p 1 $$alone || rc=$$?
	FABRICD_E2E_LONG=1 go test -count=1 -timeout 60m ./internal/test/e2e || rc=$$?
	FABRICD_E2E_PROVIDERS=tcp go test -count=1 -timeout 60m ./internal/test/e2e || rc=$$?
	exit $$rc

criteria: build ## the criteria of reliability in full: a million changes, ten million messages, the long scenarios; hours
	@rc=0
	full() { echo "== $$*"; env "$${@:3}" go test -count=1 -timeout 0 -v -run "^$$2\$$" $$1 $${ARG:-} | grep -vE '^=== |^PASS' || rc=$$?; }
	full ./internal/lab/sim TestChurn SIM_CHANGES=1000000
	full ./internal/lab/sim TestHoursOfComingAndGoingLeaveNothing SIM_HOURS=24
	full ./internal/lab/sim TestZombies SIM_SEEDS=20000
	full ./internal/lab/sim TestFenceCuts SIM_SEEDS=50
	full ./internal/engine TestManyMessagesAreExactOverABadNetwork VOLUME=10000000
	full ./internal/engine TestManyTransfersAreExactOverABadNetwork VOLUME_RMA=100000000000
	full ./internal/engine TestRandomCrossings CROSSINGS=100000
	ARG=-linear=1000 full ./internal/lab/check 'Test(Port|Lease)TableIsLinearizable'
	for on in sim local; do bin/fabricd chaos suite deploy/scenarios/long --on $$on --report out/criteria/$$on || rc=$$?; done
	bin/fabricd chaos page out/criteria || rc=$$?
	exit $$rc

bench: ## what is deployed, beside bare programs, stunnel and UCX: a table, out/bench/report.json and report.html (ARGS=--quick)
	@mkdir -p bin out/bench
	$(BUILD) -o bin/ ./cmd/...
	bin/fabric-bench run --store out/bench/report.json $(ARGS)
	bin/fabric-bench page out/bench/report.json --out out/bench/report.html

bench-baselines: ## install what the benchmark compares with and runs: UCX, libfabric, stunnel, iperf3, PostgreSQL, Redis, nginx, wrk (Debian, root)
	@apt-get update -qq
	# In runlevel 1 the packages do not start their servers.
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  ucx-utils libfabric-bin stunnel4 iperf3 postgresql redis-server redis-tools nginx-light wrk curl iproute2 util-linux openssh-server openssh-client rsync git >/dev/null
	for tool in ucx_perftest fi_pingpong stunnel iperf3 pgbench redis-benchmark nginx wrk curl ip; do command -v $$tool; done

fuzz-short: ## every fuzz target for FUZZTIME
	@grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -r -n1 dirname | sort -u | while read -r dir; do
	  sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' $$dir/*_test.go | while read -r target; do
	    echo "== $$dir $$target"
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$dir
	  done
	done

deb: ## build the Debian package, out/fabricd_VERSION_ARCH.deb (Debian)
	@mkdir -p bin out
	$(BUILD) -o bin/fabricd ./cmd/fabricd
	deploy/debian/build.sh bin/fabricd out

image: ## build the container images, fabricd:dev and fabricd-apps:dev, with their version as another tag
	@deploy/image.sh $(IMAGE) $(APPS_IMAGE)
	for image in $(IMAGE) $(APPS_IMAGE); do docker tag "$$image" "$${image%:*}:$(VERSION)"; done

cluster cluster-down: export FABRICD_IMAGE = $(IMAGE)
cluster cluster-down: export FABRICD_APPS_IMAGE = $(APPS_IMAGE)

cluster: image ## three nodes and two applications in containers, up to their first RMA (PROJECT=postgres: PostgreSQL and a client of it)
	@if [ -n "$(PROJECT)" ]; then
	  export POSTGRES_IMAGE=$$(deploy/examples/postgres/image.sh)
	  began=$$(date +%s)
	  $(EXAMPLE) up -d --no-build
	  exec deploy/examples/$(PROJECT)/await.sh "$$began" $(EXAMPLE)
	fi
	began=$$(date +%s)
	$(CLUSTER) up -d --no-build
	deploy/await.sh "$$began" $(CLUSTER)

cluster-down: ## end what `make cluster` started, with its volumes
	@$(if $(PROJECT),$(EXAMPLE),$(CLUSTER)) down -v --timeout 5

# Which labs `make chaos` uses, how many schedules of hostile members and how many of
# restored state directories it gives to the machines that decide about membership, how many simulated runs it makes at least, and how
# many real ones at most at a time; if that is empty, 6, and 4 in containers. Where 2,000
# simulated runs take more than 120 seconds, workloads have half of their rates in real
# labs: so slow a machine has too much to do with all. What carries the data outside of
# simulations, as of `fabricd run --providers`; if that is empty, what nodes choose. What
# each lab saw is in out/chaos.
CHAOS_LABS      ?= sim local netns compose
CHAOS_HOSTILE   ?= 20000
CHAOS_COPIES    ?= 10000
CHAOS_RUNS      ?= 2000
CHAOS_PARALLEL  ?=
CHAOS_PROVIDERS ?=

chaos: image ## every scenario in every lab: simulated with many seeds, processes, namespaces (root), containers
	@mkdir -p bin out/chaos
	$(BUILD) -o bin/fabricd ./cmd/fabricd
	rc=0
	echo "== hostile members"
	VERDICT_HOSTILE=$(CHAOS_HOSTILE) go test -count=1 -timeout 60m -v -run '^TestHostileSchedules$$' ./membership/verdict >out/chaos/hostile.log 2>&1 || rc=$$?
	sed -n 's/^.*\(hostile schedules: \)/\1/p' out/chaos/hostile.log | tail -n 1
	if [ "$$rc" != 0 ]; then cat out/chaos/hostile.log; fi
	echo "== restored state directories"
	copies=0
	VERDICT_SEEDS=$(CHAOS_COPIES) go test -count=1 -timeout 60m -v -run '^TestNoLifeIsGrantedTwice$$' ./membership/verdict >out/chaos/copies.log 2>&1 || copies=$$?
	sed -n 's/^.*: \(.* schedules of copies\)/\1/p' out/chaos/copies.log | tail -n 1
	if [ "$$copies" != 0 ]; then cat out/chaos/copies.log; rc=$$copies; fi
	echo "== clusters of 100 and 200 nodes, with and without a host"
	SIM_SCALE=all $(PLAIN) go test -count=1 -timeout 60m -v -run '^TestScale$$' ./internal/lab/sim >out/chaos/scale.log 2>&1 || { rc=$$?; cat out/chaos/scale.log; }
	eased=100
	for lab in $(CHAOS_LABS); do
	  echo "== $$lab"
	  total=0
	  began=$$(date +%s)
	  if [ "$$lab" = sim ]; then total=$(CHAOS_RUNS); fi
	  parallel=6
	  if [ "$$lab" = compose ]; then parallel=4; fi
	  load=100
	  if [ "$$lab" != sim ]; then load=$$eased; fi
	  providers='$(CHAOS_PROVIDERS)'
	  if [ "$$lab" = sim ]; then providers=; fi
	  bin/fabricd chaos suite deploy/scenarios deploy/scenarios/fast --on "$$lab" --total "$$total" --parallel "$(or $(CHAOS_PARALLEL),$$parallel)" \
	    --load "$$load" $${providers:+--providers "$$providers"} --image $(IMAGE) --report "out/chaos/$$lab" 2>"out/chaos/$$lab.log" || rc=$$?
	  if [ "$$rc" != 0 ]; then tail -n 1 "out/chaos/$$lab.log"; fi
	  if [ "$$lab" = sim ]; then
	    took=$$(( ($$(date +%s) - began) * 2000 / $(CHAOS_RUNS) )) # of 2000 runs
	    if [ "$$took" -gt 120 ]; then eased=50; fi
	  fi
	done
	bin/fabricd chaos scale --report out/chaos/scale
	bin/fabricd chaos page out/chaos
	echo "$$((SECONDS / 60)) min $$((SECONDS % 60)) s in all"
	exit $$rc

mutants: ## break the engine in some fifty ways, one at a time: a check has to find each
	@cd internal/lab/sim/mutants
	MUTANTS=all go test -count=1 -run Caught -timeout 100m -v $(ARGS)

clean: ## remove what the targets above made
	rm -rf bin out
