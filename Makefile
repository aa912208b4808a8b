# `make help` lists the targets. Nothing needs to be installed by hand: tools/bootstrap and the pinned tools below
# bring what is missing, into .tools and .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.tools/go/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export MILLRACE_UCX_LIBRARY := $(CURDIR)/.tools/ucx/lib/libucp.so.0
export MILLRACE_NVRTC := $(CURDIR)/.tools/nvrtc/lib

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# go-nvml leaves it to the dynamic linker to find the functions of NVML, each at its first call. A compiler that binds all
# of them at the start makes a program that does not start where there is no driver.
LAZY    := -extldflags=-Wl,-z,lazy
export GOFLAGS := $(strip $(GOFLAGS) -ldflags=$(LAZY))
LDFLAGS := $(LAZY) -X github.com/millrace/millrace/internal/version.version=$(VERSION)
BIN     := bin/millrace
TOOLS   := .tools/bin
GOTOOL  := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w'
PY      := .venv/bin/python
PYRIGHT := 1.1.407

# What `make run` runs once everything is built.
RUN_MAIN ?= $(PY) examples/digits.py --progress

# Knobs of the testing targets.
SEED     ?= 1
SEEDS    ?= 200
SECONDS  ?= 30
MINUTES  ?= 10
FUZZTIME ?= 5s
PKG      ?= ./...

##@ Everyday

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build, start a cluster on this machine, run the main job on real data; ends with "ok"
	$(RUN_MAIN)

.PHONY: build
build: $(BIN) .venv/.stamp python-cuda .tools/ucx/.stamp ## bin/millrace, .venv where `import millrace` works, and UCX beside them; on a GPU machine CuPy as well

.PHONY: check
check: gen-check lint vet unit py-quick ## The everyday subset of test; a few minutes

.PHONY: test
test: bootstrap-cc gen-check lint lint-proto build build-nocgo race asan sim-seeds fuzz-corpus py e2e gpu ## Everything that CI runs; on a GPU machine on its GPUs, too
	@echo "make test: ok"

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint $(TOOLS)/buf .venv/.stamp ## Format Go, protos and Python
	$(TOOLS)/golangci-lint fmt
	$(TOOLS)/buf format -w proto
	.venv/bin/ruff format -q clients/python examples tools
	.venv/bin/ruff check -q --fix --select I clients/python examples tools

.PHONY: clean
clean: ## Remove what was built; tools and environments stay (git clean -xfd removes them too)
	rm -rf bin out .tools/gen

##@ Building

# Always asked: the go command knows better than make what is out of date. Without a C compiler the program can do all but
# use GPUs and load UCX, and says so.
.PHONY: $(BIN)
$(BIN): bootstrap
	CGO_ENABLED=$$(command -v "$${CC:-gcc}" >/dev/null && echo 1 || echo 0) go build -trimpath -buildvcs=false -ldflags='$(LDFLAGS)' -o $@ ./cmd/millrace

.PHONY: build-nocgo
build-nocgo: bootstrap ## Everything builds without cgo
	CGO_ENABLED=0 go build ./...
	cd tools && CGO_ENABLED=0 go vet ./... && CGO_ENABLED=0 go test ./...

.PHONY: gen
gen: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/protoprep .tools/venv-gen/.stamp ## Generate Go and Python code, and the public .proto files, from proto/
	tools/gen

.PHONY: gen-check
gen-check: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/protoprep .tools/venv-gen/.stamp ## Fail if generated code is not what proto/ gives
	tools/gen --check

##@ Testing

.PHONY: lint
lint: $(TOOLS)/golangci-lint .venv/.stamp ## golangci-lint, ruff
	$(TOOLS)/golangci-lint run ./...
	.venv/bin/ruff check -q clients/python examples tools
	.venv/bin/ruff format -q --check clients/python examples tools

.PHONY: lint-proto
lint-proto: $(TOOLS)/buf $(TOOLS)/protoprep ## buf lint, and buf breaking against the last tag
	tools/lint-proto

.PHONY: vet
vet: bootstrap
	go vet -tags invariants ./...

.PHONY: unit
unit: bootstrap $(BIN) .tools/ucx/.stamp .tools/nvrtc/.stamp ## Go tests without the race detector
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -tags invariants -short $$(go list $(PKG) | grep -vE '/test/(e2e|chaos|netlab|faults)')

.PHONY: race
race: bootstrap-cc $(BIN) .tools/ucx/.stamp .tools/nvrtc/.stamp ## Go tests with the race detector and invariant checks
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -race -tags invariants -timeout 20m $$(go list $(PKG) | grep -v /test/)

# C written by us, and what it shares with Go. Leaks are counted by the tests themselves: LeakSanitizer trips over Go's memory.
# TestEvery… have NVIDIA's compiler at work, for minutes.
.PHONY: asan
asan: bootstrap-cc .tools/ucx/.stamp .tools/nvrtc/.stamp ## The packages with C code under the address sanitizer
	ASAN_OPTIONS=detect_leaks=0 go test -asan -tags invariants -skip '^TestEvery|Figures$$' ./memory/cuda ./transfer/ucx ./transfer/ipc ./worker/topology/nvml ./worker/device/cuda

.PHONY: sim
sim: bootstrap ## One simulated run, twice, with equal trace hash: SEED=n
	go test -tags invariants -count=1 -v -run 'TestSeed$$' ./test/sim -sim.seed=$(SEED)

.PHONY: sim-seeds
sim-seeds: bootstrap ## Many simulated runs: SEEDS=n
	go test -tags invariants -count=1 -timeout 20m -run 'TestSeeds$$' ./test/sim -sim.seeds=$(SEEDS)

.PHONY: e2e
e2e: build bootstrap-net $(TOOLS)/grpcurl .tools/ucx-other/.stamp .tools/nvrtc/.stamp ## Real processes: grpcurl, two languages on one cluster, one chaos graph, partitioned networks
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  GRPCURL=$(CURDIR)/$(TOOLS)/grpcurl go test -count=1 -timeout 40m ./test/e2e/... ./test/chaos/... ./test/netlab/... ./test/faults/... ./test/gpu/...

.PHONY: rdma
rdma: build bootstrap-rdma ## Two emulated hosts with Soft-RoCE: the transfer suite and a cluster over rc, kills in the middle; about 5 minutes
	test/rdma/prepare
	CGO_ENABLED=0 go build -o .tools/rdma/agent ./test/rdma/agent
	go test -c -tags invariants -o .tools/rdma/ucx.test ./transfer/ucx
	CGO_ENABLED=0 go test -c -tags rdma -o .tools/rdma/rdma.test ./test/rdma
	test/rdma/all

.PHONY: fuzz
fuzz: bootstrap ## Every fuzz target for FUZZTIME (5s)
	tools/fuzz $(FUZZTIME)

.PHONY: fuzz-corpus
fuzz-corpus: bootstrap ## Every fuzz target over its corpus only
	go test -tags invariants -run '^Fuzz' $$(grep -rl --include='*_test.go' --exclude-dir='.*' '^func Fuzz' * | xargs -n1 dirname | sort -u | sed 's,^,./,')

.PHONY: chaos
chaos: build ## Kill and stop workers and executors under load, for about SECONDS=n: SEED=n
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  go test -count=1 -v -timeout 60m ./test/chaos -chaos.seconds=$(SECONDS) -chaos.seed=$(SEED)

.PHONY: soak
soak: bootstrap ## Simulated runs for as long as you like: MINUTES=n
	go test -tags invariants -count=1 -timeout 0 -run 'TestSoak$$' -v ./test/sim -sim.minutes=$(MINUTES)

.PHONY: gpu
gpu: build bootstrap-cc ## What wants real GPUs, on those of this machine; nothing where there are none
	tools/gpu-test

.PHONY: gpu-bundle
gpu-bundle: bootstrap-cc .tools/ucx/.stamp ## What a machine with GPUs runs, into build/gpu; there: bash build/gpu/run.sh
	tools/gpu-bundle

.PHONY: cubins
cubins: bootstrap-cc .tools/nvrtc/.stamp ## Compile the built-in kernels again, after a change of their source
	tools/cubins

.PHONY: torch-pool
torch-pool: bootstrap ## Compile the part of the Python executor that is in C again, after a change of its source
	tools/torch-pool

##@ Python

.PHONY: py
py: build $(BIN) .tools/pyright/.stamp ## pyright, and pytest on the oldest and the newest Python here
	PATH="$(CURDIR)/.venv/bin:$$PATH" .tools/pyright/node_modules/.bin/pyright -p clients/python --pythonpath $(PY)
	tools/pytest-all

.PHONY: py-quick
py-quick: build
	MILLRACE_BIN=$(CURDIR)/$(BIN) $(PY) -m pytest -q -x clients/python

##@ Measuring

.PHONY: bench
bench: build ## The figures of docs: tasks, graph shapes, latency, memory
	tools/bench

.PHONY: bench-peers
bench-peers: build .venv-peers/.stamp ## The same beside Dask on this machine, with ratios
	.venv-peers/bin/python tools/peers/compare.py $(CURDIR)/.venv-peers/bin/python $(CURDIR)/$(PY) $(CURDIR)/$(BIN)

##@ Tools

.PHONY: bootstrap bootstrap-cc bootstrap-net bootstrap-rdma
bootstrap: ## Install Go and Python if they are missing or too old
	@tools/bootstrap
bootstrap-cc:
	@tools/bootstrap --cc
bootstrap-net:
	@tools/bootstrap --net
bootstrap-rdma:
	@tools/bootstrap --rdma

.PHONY: tools
tools: $(addprefix $(TOOLS)/,buf protoc-gen-go protoc-gen-go-grpc protoprep golangci-lint grpcurl benchstat) ## Build all pinned tools

$(TOOLS)/buf: tools/go.mod tools/go.sum | bootstrap
	cd tools && $(GOTOOL) -o ../$@ github.com/bufbuild/buf/cmd/buf
	@touch $@
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

# UCX out of a wheel: what transfer/ucx loads in tests and beside bin/millrace.
.tools/ucx/.stamp: tools/ucx.lock tools/fetch-ucx | bootstrap
	tools/fetch-ucx

# NVIDIA's compiler library: what tests compile kernels with; no GPU is needed.
.tools/nvrtc/.stamp: tools/nvrtc.lock tools/fetch-nvrtc | bootstrap
	tools/fetch-nvrtc

.tools/ucx-other/.stamp: tools/ucx-other.lock tools/fetch-ucx | bootstrap
	tools/fetch-ucx .tools/ucx-other tools/ucx-other.lock

.tools/venv-gen/.stamp: tools/python-gen.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .tools/venv-gen
	.tools/venv-gen/bin/pip install -q --no-deps -r $<
	@touch $@

.venv/.stamp: tools/python-dev.lock clients/python/pyproject.toml | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv
	.venv/bin/pip install -q -r tools/python-dev.lock
	.venv/bin/pip install -q -c tools/python-dev.lock -e 'clients/python[test]'
	@touch $@

# Looks each time: a GPU, or its driver, may have come since.
.PHONY: python-cuda
python-cuda: .venv/.stamp
	@tools/python-cuda

.venv-peers/.stamp: tools/python-peers.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv-peers
	.venv-peers/bin/pip install -q -r $<
	@touch $@

# Through the npm that python-dev.lock brings, so that no Node need be installed.
.tools/pyright/.stamp: Makefile .venv/.stamp
	mkdir -p .tools/pyright
	PATH="$(CURDIR)/.venv/bin:$$PATH" npm install --silent --no-fund --no-audit --prefix .tools/pyright pyright@$(PYRIGHT)
	@touch $@

.PHONY: lock
lock: .venv/.stamp ## Resolve tools/python-*.in again
	tools/lock
