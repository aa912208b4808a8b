# `make help` lists the targets. Nothing needs to be installed by hand: tools/bootstrap installs Go
# and Python, and the targets under "Tools" put all other tools, with pinned versions, into .tools
# and .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.tools/go/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Python compiles a module when it is first imported. pip would compile all 9,500 modules of each
# environment, most of which are never imported: about 40 s of processor time. 0 stands for
# --no-compile, because pip stores the value of its option "compile".
export PIP_NO_COMPILE := 0
# Container images often set this. Then each process of the tests and each executor would compile
# dask, pandas and all else that it imports again. Empty means: write the compiled modules down.
export PYTHONDONTWRITEBYTECODE :=
export MILLRACE_UCX_LIBRARY := $(CURDIR)/.tools/ucx/lib/libucp.so.0
export MILLRACE_NVRTC := $(CURDIR)/.tools/nvrtc/lib

# Lazy binding: go-nvml needs the dynamic linker to look up each function of NVML at its first call.
# If it looked up all of them at the start, as some compilers arrange by default, the program would
# not start on a machine without a driver.
# -w: no debug information, which takes a third of the time of the linker. Traces of stacks and
# profiles do not need it; for a debugger, link with `go build`.
LINK    := -w -extldflags=-Wl,-z,lazy
# All builds have the same flags, so that they share the build cache. `go test` does not vet: lint
# runs the same analyzers, and more.
FLAGS   := -trimpath -buildvcs=false -vet=off '-ldflags=$(LINK)'
export GOFLAGS := $(strip $(if $(findstring $(FLAGS),$(GOFLAGS)),$(GOFLAGS),$(GOFLAGS) $(FLAGS)))
# The version of a release. Other builds have none: a binary that contained its commit would differ
# after each commit, and all tests that run it would run again.
VERSION ?=
STAMP   := -X github.com/millrace/millrace/internal/version.version=
LDFLAGS := $(LINK) $(if $(VERSION),$(STAMP)$(VERSION))
# Whether there is a C compiler.
CGO     := CGO_ENABLED=$$(command -v "$${CC:-gcc}" >/dev/null && echo 1 || echo 0)
BIN     := bin/millrace
TOOLS   := .tools/bin
GOTOOL  := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w'
PY      := .venv/bin/python
PIP     := tools/uv pip install -q
PYRIGHT := 1.1.407
RUN_PYRIGHT := .tools/pyright/node_modules/.bin/pyright -p clients/python --pythonpath $(PY)
# The tools that tools/gen runs.
GENERATORS := $(addprefix $(TOOLS)/,buf protoc-gen-go protoc-gen-go-grpc protoprep) \
  .tools/venv-gen/.stamp
# The libraries that Go tests load. OpenBLAS is in .venv.
LIBRARIES := .tools/ucx/.stamp .tools/nvrtc/.stamp .venv/.stamp
# The machines: packages without goroutines, as internal/purity checks. The race detector can find
# nothing in them, and makes them ten times slower. So it is with internal/purity itself.
MACHINES = $$(grep -rlE --include='*.go' '^// Package [a-z]+ is a Machine' \
  server worker transfer memory internal | xargs -n1 dirname | sed 's,^,./,') ./internal/purity
# The packages of numerical code. The race detector makes their loops ten times slower, and looks
# only at what several processors do: the tests that RACED_NUMERIC names.
NUMERIC := ./worker/ops/...
# The packages that move bytes by C code, with fakes of devices. Under the race detector, which does
# not see C, they take 10 minutes of processor time. The benchmarks measure other processes, which
# it does not see either.
DEVICES := ./transfer/ucx ./transfer/pinned ./worker/device/cuda ./bench
# The tests that send as much as one message may have, of SENDERS. The race detector makes copies of
# bytes slow, and the smaller tests of the same code meet the same goroutines.
SENDERS := ./server ./server/rpc ./worker ./worker/executor ./transfer/grpcpath
LARGE := ^Test(ManySmallInputsAndLargeArguments|InputsBeyondAMessageAreFetchedInPlaceOfSentAlong|ASnapshotOfManyFailedTasksComesInParts|LongErrorsReachTheClient|LongErrorsAreCut|ArgumentsBeyondAMessageAreRefused|ListsAndWatchesOfDatasetsLeaveKeysAndValuesOut|ListedPagesEndAtTheirSize|TasksWithManyLongInputsAreListed|ExecutorThatTakesNoSplitRuns|HeadersOfResultsAreBounded|OutboundMessagesAreSplitBySize|MessagesToAnExecutorAreWithinTheLimit|SlowSourcesKeepNoBuffers|SlowReadersKeepNoBuffers|SmallObjectsAreCopiedTogether|PartsMakeTheWhole)$$
RACED_NUMERIC := (Cumsum|Drawing|Order|Helpers|Factors|Transforms).*Processors|Folds.*/bool
# The tests that run clusters of processes.
PROCESSES := ./test/e2e/... ./test/chaos/... ./test/netlab/... ./test/faults/... \
  ./test/soak/... ./test/gpu/...

# The command that `make run` runs after the build.
RUN_MAIN ?= $(PY) examples/digits.py --progress

# Parameters of the targets under "Testing". With SHORT= tests run at full size, as in test-long.
# PARALLEL is the number of Go packages, and of processes of pytest, that are tested at the same
# time. It exceeds the number of processors, because many tests wait.
SHORT    ?= -short
PARALLEL ?= $(shell n=$$(nproc); echo $$((n > 3 ? n : 3)))
# A process of pytest runs whole files: all tests of a file use one cluster, whose executors have
# imported what the file needs.
export PYTEST := -q -n $(PARALLEL) --dist loadfile
SEED     ?= 1
SEEDS    ?= 200
RESTARTS ?= true
SMALLER ?=
SECONDS  ?= 30
MINUTES  ?= 10
FUZZTIME ?= 5s
# The seconds that the Python tests of make check may take: the nearest to what changed run first.
BUDGET   ?= 90
PKG      ?= ./...
# The lanes of make test keep all processors busy: the first two compute, and the third one waits
# for a browser and for processes most of the time.
LANES := lint RACED=1; race-concurrent; machines; build-nocgo; sim-seeds | py | \
  gen-check; web-check; lint-proto; web-test; e2e
# The tests that race leaves out; empty: none.
SKIP     ?= ^$$

##@ Everyday

.PHONY: help
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build, start a cluster on this machine, run the main job on real data; ends with "ok"
	$(RUN_MAIN)

.PHONY: build
build: $(BIN) .venv/.stamp python-cuda .tools/ucx/.stamp
build: ## Build bin/millrace, and .venv with the Python client; for a release: VERSION=v1.2.3

.PHONY: check
check: ## Check before a commit, only what has changed: 3 minutes at most
	@MAKE="$(MAKE)" tools/steps check gen-check web-check lint-proto lint unit py-quick

.PHONY: test
test: ## Run everything that CI runs, and the GPU tests if there is a GPU: 20 minutes at most
	@MAKE="$(MAKE)" tools/steps test prepare "$(LANES)" gpu

.PHONY: test-long
test-long: ## Run all tests at full size, and the sanitizers, before an issue is closed
	@MAKE="$(MAKE)" tools/steps test-long prepare "race SHORT=" asan "sim-seeds SEEDS=10000" \
	  fuzz-corpus fuzz py-all polars-plans frame-merges frames-small native-ops "e2e SHORT=" "chaos SECONDS=120" \
	  "soak MINUTES=2 ELECTION=3s" upgrade jupyter prometheus gpu

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint $(TOOLS)/buf .venv/.stamp ## Format Go, protos and Python
	$(TOOLS)/golangci-lint fmt
	$(TOOLS)/buf format -w proto
	.venv/bin/ruff format -q clients/python examples tools bench
	.venv/bin/ruff check -q --fix --select I clients/python examples tools bench

.PHONY: clean
clean: ## Remove the results of builds; git clean -xfd also removes tools and environments
	rm -rf bin out .tools/gen

.PHONY: clean-caches
clean-caches: ## Bound the caches of builds, and remove old temporary files of tests: LIMIT=6 GB
	tools/clean-caches $(LIMIT)

##@ Building

# Always runs, because the go command itself finds out what is out of date. It also touches a binary
# that is up to date, and then all tests that run the binary would run again. So it builds another
# file, and the binary is replaced only if its content changes. Without a C compiler the program can
# neither use GPUs nor load UCX, and says so.
.PHONY: $(BIN)
$(BIN): bootstrap
	$(CGO) go build -ldflags='$(LDFLAGS)' -o $@.new ./cmd/millrace
	@cmp -s $@.new $@ || { cp $@.new $@.copy && mv -f $@.copy $@; }

.PHONY: wheel
wheel: .venv/.stamp bootstrap-cc ## Make build/wheel/*.whl: the Python package with the program
	tools/wheel

.PHONY: wheel-test
wheel-test: .venv/.stamp bootstrap-cc ## Make the wheel, and try it on the oldest and newest Python
	tools/wheel --test

.PHONY: build-nocgo
build-nocgo: bootstrap ## Check that everything builds without cgo
	CGO_ENABLED=0 go build ./...
	cd tools && CGO_ENABLED=0 go vet ./... && CGO_ENABLED=0 go test ./...

.PHONY: gen
gen: $(GENERATORS) ## Generate code and public .proto files from proto/, and docs/ops.md
	tools/gen

# tools/gen reads these files and writes them.
GENERATED := proto buf.yaml buf.gen.yaml gen clients/python/src/millrace/_pb docs/ops.md tools/gen \
  tools/protoprep tools/go.mod tools/go.sum tools/python-gen.lock go.mod go.sum \
  worker/ops internal/spelling internal/text
.PHONY: gen-check
gen-check: $(GENERATORS) ## Fail if the generated files are out of date
	tools/unless-done gen-check $(GENERATED) -- tools/gen --check

.PHONY: coming-from-dask
coming-from-dask: .venv/.stamp ## Write docs/coming-from-dask.md, the table of Dask's names and ours
	.venv/bin/python tools/coming-from-dask/table.py > docs/coming-from-dask.md.new
	mv docs/coming-from-dask.md.new docs/coming-from-dask.md

.PHONY: api-image
api-image: gen ## Write proto/api.binpb, with which lint-proto compares
	tools/api-image

# The node and npm of python-dev.lock, so that Node need not be installed.
web/node_modules/.stamp: web/package-lock.json | .venv/.stamp
	cd web && PATH="$(CURDIR)/.venv/bin:$$PATH" npm ci --silent --no-fund --no-audit
	@touch $@

.PHONY: web
web: web/node_modules/.stamp ## Build the dashboard from web/ into server/web/assets
	cd web && PATH="$(CURDIR)/.venv/bin:$$PATH" npm run --silent format && \
	  PATH="$(CURDIR)/.venv/bin:$$PATH" npm run --silent build

WEB := $(addprefix web/,src test build.mjs package.json package-lock.json tsconfig.json biome.json)
.PHONY: web-check
web-check: web/node_modules/.stamp ## Check web/, and fail if server/web/assets is out of date
	PATH="$(CURDIR)/.venv/bin:$$PATH" tools/unless-done web-check $(WEB) server/web/assets -- \
	  npm run --silent --prefix web check

##@ Testing

# Compiles C quickly instead of quick C, which takes a minute of processor time for each kind of
# build. Also, files that cgo writes name the tree in which they were written. With -trimpath the
# build cache shares them among trees, and golangci-lint and go vet then look for files of a tree
# that is gone. The path of this compiler keeps the entries of trees apart.
QUICK_C := $(CGO) QUICK_CC="$${CC:-gcc}" CC="$(CURDIR)/tools/quick-cc"

# With RACED=1 it looks at the build with the race detector. It compiles what it looks at, and so
# make test compiles the tests of most packages once: race-concurrent has the same build.
.PHONY: lint
lint: $(TOOLS)/golangci-lint .venv/.stamp ## Run golangci-lint and ruff
	$(QUICK_C) $(if $(RACED),GOFLAGS="-race $$GOFLAGS") \
	  $(TOOLS)/golangci-lint run --allow-serial-runners ./...
	.venv/bin/ruff check -q clients/python examples tools bench
	.venv/bin/ruff format -q --check clients/python examples tools bench

.PHONY: lint-proto
lint-proto: $(TOOLS)/buf $(TOOLS)/protoprep ## Run buf lint, and compare the API with proto/api.binpb
	tools/lint-proto

.PHONY: vet
vet: bootstrap
	$(QUICK_C) go vet -tags invariants ./...

.PHONY: unit
unit: bootstrap $(BIN) $(LIBRARIES) ## Run the Go tests without the race detector: PKG=./...
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -tags invariants $(SHORT) -p $(PARALLEL) -timeout 40m \
	  $$(go list $(PKG) | grep -vE '/test/(e2e|chaos|netlab|faults|soak)')

.PHONY: race
race: bootstrap-cc $(BIN) $(LIBRARIES) ## Run the Go tests with the race detector: PKG=./...
	$(if $(QUICK),$(QUICK_C)) MILLRACE_BIN=$(CURDIR)/$(BIN) \
	  go test -race -tags invariants $(SHORT) -p $(PARALLEL) \
	  -skip '$(SKIP)' -timeout 40m $$(go list $(PKG) | grep -v /test/)

# test-long runs all with the race detector: the numerical code, the devices and LARGE as well.
.PHONY: race-concurrent
# In reverse order, because the packages that take longest are the last ones of the alphabet: begun
# last, one of them would keep one core busy for minutes, and the other one idle.
race-concurrent: bootstrap ## Run race on packages whose goroutines meet: no machines, no numbers
	$(MAKE) race QUICK=1 SKIP='$(subst $$,$$$$,$(LARGE))' PKG="$$(go list ./... | \
	  grep -vxFf <(go list $(MACHINES) $(NUMERIC) $(DEVICES)) | tac | tr '\n' ' ')"
	$(QUICK_C) go test -race -tags invariants -short -timeout 40m -run '$(RACED_NUMERIC)' ./worker/ops

.PHONY: machines
machines: bootstrap $(BIN) $(LIBRARIES)
machines: ## Run the Go tests of machines, of numbers and of devices, without race
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -tags invariants $(SHORT) -p $(PARALLEL) -timeout 40m \
	  $(NUMERIC) $(DEVICES) $(MACHINES)
	go test -tags invariants $(SHORT) -p $(PARALLEL) -timeout 40m -run '$(LARGE)' $(SENDERS)

# The packages with our own C code. Leak detection is off, because LeakSanitizer misreads Go's
# memory; the tests count leaks themselves. The tests TestEvery… are left out, because they compile
# kernels for minutes.
.PHONY: asan
asan: bootstrap-cc $(LIBRARIES) ## Test the packages with C code under the address sanitizer
	ASAN_OPTIONS=detect_leaks=0 go test -asan -tags invariants -skip '^TestEvery|Figures$$' \
	  ./memory/cuda ./transfer/ucx ./transfer/ipc ./worker/topology/nvml ./worker/device/cuda \
	  ./worker/ops ./worker/ops/simd ./worker/ops/lapack ./internal/sharedlib

.PHONY: sim
sim: bootstrap ## Simulate one seed twice and compare the hashes of the traces: SEED=n RESTARTS=true SMALLER=reductions
	go test -tags invariants -count=1 -v -run 'TestSeed$$' ./test/sim -sim.seed=$(SEED) -sim.restarts=$(RESTARTS) \
	  -sim.smaller=$(SMALLER)

.PHONY: sim-seeds
sim-seeds: bootstrap ## Simulate many seeds, with a check of the machines once in 100 steps: SEEDS=n
	go test -count=1 -timeout 0 -run 'Test(Seeds|SharedState)$$' ./test/sim -sim.seeds=$(SEEDS) -sim.check=100 \
	  -sim.restarts=$(RESTARTS) -sim.shared=$(SEEDS)

.PHONY: e2e
e2e: $(TOOLS)/grpcurl .tools/ucx-other/.stamp
e2e: build bootstrap-net $(LIBRARIES) ## Test real processes: clients, chaos, partitions, faults
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  GRPCURL=$(CURDIR)/$(TOOLS)/grpcurl go test -count=1 $(SHORT) -p $(PARALLEL) -timeout 40m \
	  $(PROCESSES)

.PHONY: web-test
web-test: build bootstrap-web web/node_modules/.stamp ## Open the dashboard's pages in a browser
	MILLRACE_BIN=$(CURDIR)/$(BIN) BROWSER="$$(<.tools/browser.path)" \
	  PATH="$(CURDIR)/.venv/bin:$$PATH" npm run --silent --prefix web test

.PHONY: pictures
pictures: .venv/.stamp ## Make docs/images of the dashboard from the screenshots that web-test leaves
	.venv/bin/python web/test/pictures.py

.PHONY: jupyter
jupyter: build bootstrap-web web/node_modules/.stamp .venv-jupyter/.stamp ## Open the dashboard behind a real jupyter-server-proxy
	MILLRACE_BIN=$(CURDIR)/$(BIN) BROWSER="$$(<.tools/browser.path)" \
	  PATH="$(CURDIR)/.venv/bin:$$PATH" npm run --silent --prefix web jupyter

.PHONY: prometheus
prometheus: build bootstrap-prometheus ## Test deploy/ with a real Prometheus, which apt installs if it is missing: 30 seconds
	promtool check rules deploy/prometheus/millrace.rules.yml
	promtool test rules deploy/prometheus/millrace.test.yml
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  go test -count=1 -tags prometheus -timeout 15m ./test/prometheus

.PHONY: rdma
rdma: build bootstrap-rdma ## Test RDMA on two emulated hosts with Soft-RoCE: 10 to 20 minutes
	test/rdma/prepare
	CGO_ENABLED=0 go build -o .tools/rdma/agent ./test/rdma/agent
	go test -c -tags invariants -o .tools/rdma/ucx.test ./transfer/ucx
	CGO_ENABLED=0 go test -c -tags rdma -o .tools/rdma/rdma.test ./test/rdma
	test/rdma/all

.PHONY: fuzz
fuzz: bootstrap ## Run each fuzz target for some time: FUZZTIME=5s
	tools/fuzz $(FUZZTIME)

.PHONY: fuzz-corpus
fuzz-corpus: bootstrap ## Run each fuzz target on its corpus only
	go test -tags invariants -run '^Fuzz' $$(grep -rl --include='*_test.go' --exclude-dir='.*' \
	  '^func Fuzz' * | xargs -n1 dirname | sort -u | sed 's,^,./,')

.PHONY: chaos
chaos: build ## Kill and stop workers and executors under load: SECONDS=n SEED=n CHAOS=flags
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  go test -count=1 -v -timeout 60m ./test/chaos -chaos.seconds=$(SECONDS) -chaos.seed=$(SEED) $(CHAOS)

# The schedulers have the timeouts of production. With ELECTION=3s a busy machine will do.
ELECTION ?= 500ms
.PHONY: soak
soak: build bootstrap-net ## Make faults of three schedulers and workers under load: MINUTES=n SEED=n
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -count=1 -v -timeout 0 -run 'TestSoak$$' ./test/soak \
	  -soak.minutes=$(MINUTES) -soak.seed=$(SEED) -soak.election-timeout=$(ELECTION)

.PHONY: upgrade
upgrade: build bootstrap-net ## Replace the program of test/soak/older-version by this one, process by process, under load
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -count=1 -v -tags upgrade -timeout 60m -run 'TestUpgrade$$' ./test/soak

.PHONY: soak-sim
soak-sim: bootstrap ## Simulate seeds for some time: MINUTES=n
	go test -tags invariants -count=1 -timeout 0 -run 'TestSoak$$' -v ./test/sim \
	  -sim.minutes=$(MINUTES)

.PHONY: gpu
gpu: build bootstrap-cc ## Run the tests that need real GPUs, if this machine has any
	tools/gpu-test

.PHONY: gpu-bundle
gpu-bundle: bootstrap-cc .tools/ucx/.stamp ## Pack the GPU tests into build/gpu, with a run.sh
	tools/gpu-bundle

.PHONY: cubins
cubins: bootstrap-cc .tools/nvrtc/.stamp ## Compile the built-in kernels after a change
	tools/cubins

.PHONY: torch-pool
torch-pool: bootstrap ## Compile the C part of the Python executor after a change
	tools/torch-pool

# N is the number of rounds, and MINUTES the longest time of all of them. TESTS are Python test
# files, and PKG Go packages; without both, the tests of what has changed since main run.
N ?= 20
.PHONY: flake
flake: build $(LIBRARIES) ## Run the tests of what changed N=20 times beside 8 busy processes
	MILLRACE_BIN=$(CURDIR)/$(BIN) $(PY) tools/changed/flake.py --times $(N) --minutes $(MINUTES) \
	  --packages "$(filter-out ./...,$(PKG))" --tests "$(TESTS)"

##@ Python

.PHONY: py
py: build .tools/pyright/.stamp ## Run pyright and pytest without long tests; some also on the oldest Python
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(RUN_PYRIGHT)
	tools/pytest-all --smoke

.PHONY: py-all
py-all: build ## Run pytest on the oldest and the newest Python of this machine
	tools/pytest-all

.PHONY: py-quick
py-quick: build .tools/pyright/.stamp
	PATH="$(CURDIR)/.venv/bin:$$PATH" tools/unless-done pyright clients/python/src \
	  clients/python/pyproject.toml tools/python-dev.lock Makefile -- $(RUN_PYRIGHT)
	MILLRACE_BIN=$(CURDIR)/$(BIN) $(PY) tools/changed/check.py --budget $(BUDGET) \
	  --parallel $(PARALLEL) $(PYTEST) --maxfail 5

# POLARS_PLANS are the seeds: the first one, and the one behind the last.
POLARS_PLANS ?= 0 100000
.PHONY: polars-plans
polars-plans: build ## Compare random Polars queries with Polars' own engine: POLARS_PLANS="0 1000"
	POLARS_MAX_THREADS=1 $(PY) clients/python/tests/random_plans.py $(POLARS_PLANS) $$(nproc)

# FRAME_MERGES are the seeds: the first one, and the one behind the last.
FRAME_MERGES ?= 0 20000
.PHONY: frame-merges
frame-merges: build ## Compare random shuffles and merges with whole merges: FRAME_MERGES="0 1000"
	POLARS_MAX_THREADS=1 $(PY) clients/python/tests/random_merges.py $(FRAME_MERGES) $$(nproc)

# NATIVE_OPS are the seeds: the first one, and the one behind the last.
NATIVE_OPS ?= 0 100000
.PHONY: native-ops
native-ops: build ## Compare random native operations with NumPy: NATIVE_OPS="0 1000"
	MILLRACE_BIN=$(CURDIR)/$(BIN) $(PY) clients/python/tests/random_ops.py $(NATIVE_OPS)

##@ Measuring

.PHONY: bench
bench: build ## Measure the figures of docs/performance.md: tasks, graph shapes, latency, memory
	tools/bench

.PHONY: bench-peers
bench-peers: build .venv-peers/.stamp ## Measure Dask as well, print ratios; WRITE=--write: into docs
	.venv-peers/bin/python tools/peers/compare.py $(CURDIR)/.venv-peers/bin/python \
	  $(CURDIR)/$(PY) $(CURDIR)/$(BIN) $(WRITE)

# FRAMES are options of the program, such as --gigabytes 1 --programs merge --scale 0.
BENCH_FRAMES = .venv-peers/bin/python tools/peers/frames.py $(CURDIR)/.venv-peers/bin/python \
  $(CURDIR)/$(PY) $(CURDIR)/$(BIN)
.PHONY: bench-frames frames-small
bench-frames: build .venv-peers/.stamp ## Measure data frames beside Dask and Polars: FRAMES=options
	$(BENCH_FRAMES) $(FRAMES)
frames-small: build .venv-peers/.stamp
	$(BENCH_FRAMES) --gigabytes 0.1 --memory 3 --limits 1 --scale 0.01

# COMPAT are options of the program, such as --one-of 20 or --tests array/tests/test_linalg.py.
# compat-distributed takes distributed's tests from a checkout, because no package has them. It goes
# on with a run that was interrupted. COMPAT_DISTRIBUTED are its options, such as --again.
DISTRIBUTED_TESTS = 2026.7.1
DISTRIBUTED_REPOSITORY = https://github.com/dask/distributed
DISTRIBUTED_CHECKOUT = out/compat/distributed-$(DISTRIBUTED_TESTS)
.PHONY: compat compat-dask compat-distributed
compat: compat-dask compat-distributed ## Run dask's and distributed's own tests, and print the shares
compat-distributed: build .venv-peers/.stamp $(DISTRIBUTED_CHECKOUT)
	$(PY) tools/compat/compare_distributed.py $(CURDIR)/$(PY) $(CURDIR)/.venv-peers/bin/python \
	  $(DISTRIBUTED_CHECKOUT)/distributed/tests --version $(DISTRIBUTED_TESTS) $(COMPAT_DISTRIBUTED)
$(DISTRIBUTED_CHECKOUT):
	git -c advice.detachedHead=false clone -q --depth 1 --branch $(DISTRIBUTED_TESTS) \
	  $(DISTRIBUTED_REPOSITORY) $@
compat-dask: build .venv-peers/.stamp .venv-compat/.stamp
	$(PY) tools/compat/compare.py $(CURDIR)/$(PY) $(CURDIR)/.venv-peers/bin/python $(COMPAT)
	.venv-compat/bin/python tools/compat/compare.py $(CURDIR)/.venv-compat/bin/python \
	  $(CURDIR)/.venv-compat/bin/python --one-of 10 $(COMPAT)

# BENCH_OPS are options of the program, such as --threads 2 --only "linear algebra".
.PHONY: bench-ops
bench-ops: build ## Measure native operations beside NumPy, and print ratios: BENCH_OPS=options
	$(PY) bench/ops.py $(BENCH_OPS)

##@ Tools

.PHONY: bootstrap bootstrap-cc bootstrap-net bootstrap-prometheus bootstrap-rdma bootstrap-web
bootstrap: ## Install Go and Python if they are missing or too old
	@tools/bootstrap
bootstrap-cc:
	@tools/bootstrap --cc
bootstrap-net:
	@tools/bootstrap --net
bootstrap-prometheus:
	@tools/bootstrap --prometheus
bootstrap-rdma:
	@tools/bootstrap --rdma
bootstrap-web:
	@tools/bootstrap --web

.PHONY: tools
tools: $(GENERATORS) $(addprefix $(TOOLS)/,golangci-lint grpcurl benchstat)
tools: ## Build all pinned tools

# The compiler comes first. Then downloads wait for the network while it works. Only one target uses
# apt, which runs once at a time.
.PHONY: prepare prepared
prepare: bootstrap-cc ## Install and build everything that the tests need
	@$(MAKE) -j6 prepared
prepared: system build $(GENERATORS) $(TOOLS)/golangci-lint $(TOOLS)/grpcurl .tools/pyright/.stamp \
  web/node_modules/.stamp $(LIBRARIES) .tools/ucx-other/.stamp pythons raced
.PHONY: system
system:
	@tools/bootstrap --net --web
# Compiles what lint RACED=1 and race-concurrent compile: all packages and their tests, without
# linking them.
.PHONY: raced
raced: bootstrap
	$(QUICK_C) go list -race -tags invariants -test -deps -export ./... >/dev/null
.PHONY: pythons
pythons: .venv/.stamp
	@tools/pytest-all --prepare

# buf comes as a program in a Python package: to compile it takes a minute of processor time.
$(TOOLS)/buf: .tools/venv-gen/.stamp
	@mkdir -p $(TOOLS)
	@rm -f $@ && cp .tools/venv-gen/bin/buf $@
$(TOOLS)/protoc-gen-go: tools/go.mod tools/go.sum | bootstrap
	cd tools && $(GOTOOL) -o ../$@ google.golang.org/protobuf/cmd/protoc-gen-go
	@touch $@
$(TOOLS)/protoc-gen-go-grpc: tools/go.mod tools/go.sum | bootstrap
	cd tools && $(GOTOOL) -o ../$@ google.golang.org/grpc/cmd/protoc-gen-go-grpc
	@touch $@
$(TOOLS)/grpcurl: tools/go.mod tools/go.sum | bootstrap
	cd tools && $(GOTOOL) -o ../$@ github.com/fullstorydev/grpcurl/cmd/grpcurl
	@touch $@
$(TOOLS)/benchstat: tools/go.mod tools/go.sum | bootstrap
	cd tools && $(GOTOOL) -o ../$@ golang.org/x/perf/cmd/benchstat
	@touch $@
$(TOOLS)/protoprep: tools/go.mod tools/go.sum $(wildcard tools/protoprep/*.go) | bootstrap
	cd tools && $(GOTOOL) -o ../$@ ./protoprep
	@touch $@
$(TOOLS)/golangci-lint: tools/lint/go.mod tools/lint/go.sum | bootstrap
	cd tools/lint && $(GOTOOL) -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@touch $@

# UCX from a wheel. transfer/ucx loads it in tests and beside bin/millrace.
.tools/ucx/.stamp: tools/ucx.lock tools/fetch-ucx | bootstrap
	tools/fetch-ucx

# NVIDIA's compiler library, with which tests compile kernels. It needs no GPU.
.tools/nvrtc/.stamp: tools/nvrtc.lock tools/fetch-nvrtc | bootstrap
	tools/fetch-nvrtc

.tools/ucx-other/.stamp: tools/ucx-other.lock tools/fetch-ucx | bootstrap
	tools/fetch-ucx .tools/ucx-other tools/ucx-other.lock

.tools/venv-gen/.stamp: tools/python-gen.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .tools/venv-gen
	$(PIP) --python .tools/venv-gen --no-deps -r $<
	@touch $@

.venv/.stamp: tools/python-dev.lock clients/python/pyproject.toml | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv
	$(PIP) --python .venv -r tools/python-dev.lock
	$(PIP) --python .venv -c tools/python-dev.lock -e 'clients/python[test]'
	@touch $@

# Always runs, because a GPU or its driver may have been added.
.PHONY: python-cuda
python-cuda: .venv/.stamp
	@tools/python-cuda

.venv-peers/.stamp: tools/python-peers.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv-peers
	$(PIP) --python .venv-peers -r $<
	@touch $@

.venv-docs/.stamp: tools/python-docs.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv-docs
	$(PIP) --python .venv-docs -r $<
	@touch $@

.venv-jupyter/.stamp: tools/python-jupyter.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv-jupyter
	$(PIP) --compile-bytecode --python .venv-jupyter -r $<
	@touch $@

.venv-compat/.stamp: tools/python-compat.lock clients/python/pyproject.toml | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv-compat
	$(PIP) --python .venv-compat -r $<
	$(PIP) --python .venv-compat -c $< -e clients/python
	@touch $@

# Uses the npm of python-dev.lock, so that Node need not be installed.
.tools/pyright/.stamp: Makefile .venv/.stamp
	mkdir -p .tools/pyright
	PATH="$(CURDIR)/.venv/bin:$$PATH" npm install --silent --no-fund --no-audit \
	  --prefix .tools/pyright pyright@$(PYRIGHT)
	@touch $@

.PHONY: docs
docs: .venv-docs/.stamp ## Build the documentation as a site into build/site, and check its links
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet

.PHONY: lock
lock: .venv/.stamp ## Resolve tools/python-*.in again
	tools/lock
