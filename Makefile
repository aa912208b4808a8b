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
export MILLRACE_UCX_LIBRARY := $(CURDIR)/.tools/ucx/lib/libucp.so.0
export MILLRACE_NVRTC := $(CURDIR)/.tools/nvrtc/lib

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Lazy binding: go-nvml needs the dynamic linker to look up each function of NVML at its first call.
# If it looked up all of them at the start, as some compilers arrange by default, the program would
# not start on a machine without a driver.
LAZY    := -extldflags=-Wl,-z,lazy
export GOFLAGS := $(strip $(GOFLAGS) -ldflags=$(LAZY))
LDFLAGS := $(LAZY) -X github.com/millrace/millrace/internal/version.version=$(VERSION)
BIN     := bin/millrace
TOOLS   := .tools/bin
GOTOOL  := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w'
PY      := .venv/bin/python
PYRIGHT := 1.1.407

# The command that `make run` runs after the build.
RUN_MAIN ?= $(PY) examples/digits.py --progress

# Parameters of the targets under "Testing".
SEED     ?= 1
SEEDS    ?= 200
SECONDS  ?= 30
MINUTES  ?= 10
FUZZTIME ?= 5s
PKG      ?= ./...

##@ Everyday

.PHONY: help
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build, start a cluster on this machine, run the main job on real data; ends with "ok"
	$(RUN_MAIN)

.PHONY: build
build: $(BIN) .venv/.stamp python-cuda .tools/ucx/.stamp ## Build bin/millrace and .venv with the Python client, and fetch UCX; on a GPU machine CuPy as well

.PHONY: check
check: gen-check lint lint-proto vet unit py-quick ## Run the everyday subset of test; a few minutes

.PHONY: test
test: bootstrap-cc gen-check lint lint-proto build build-nocgo race asan sim-seeds fuzz-corpus py e2e gpu ## Run everything that CI runs; on a GPU machine also the tests on its GPUs
	@echo "make test: ok"

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint $(TOOLS)/buf .venv/.stamp ## Format Go, protos and Python
	$(TOOLS)/golangci-lint fmt
	$(TOOLS)/buf format -w proto
	.venv/bin/ruff format -q clients/python examples tools
	.venv/bin/ruff check -q --fix --select I clients/python examples tools

.PHONY: clean
clean: ## Remove the results of builds; tools and environments stay (git clean -xfd removes them too)
	rm -rf bin out .tools/gen

##@ Building

# Always runs, because the go command itself finds out what is out of date. Without a C compiler the
# program can neither use GPUs nor load UCX, and says so.
.PHONY: $(BIN)
$(BIN): bootstrap
	CGO_ENABLED=$$(command -v "$${CC:-gcc}" >/dev/null && echo 1 || echo 0) go build -trimpath -buildvcs=false -ldflags='$(LDFLAGS)' -o $@ ./cmd/millrace

.PHONY: build-nocgo
build-nocgo: bootstrap ## Check that everything builds without cgo
	CGO_ENABLED=0 go build ./...
	cd tools && CGO_ENABLED=0 go vet ./... && CGO_ENABLED=0 go test ./...

.PHONY: gen
gen: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/protoprep .tools/venv-gen/.stamp ## Generate the Go and Python code and the public .proto files from proto/, and docs/ops.md
	tools/gen

.PHONY: gen-check
gen-check: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc $(TOOLS)/protoprep .tools/venv-gen/.stamp ## Fail if the generated files are out of date
	tools/gen --check

.PHONY: api-image
api-image: gen ## Write proto/api.binpb, with which lint-proto compares: for a release, and before the first tag
	tools/api-image

##@ Testing

.PHONY: lint
lint: $(TOOLS)/golangci-lint .venv/.stamp ## Run golangci-lint and ruff
	$(TOOLS)/golangci-lint run ./...
	.venv/bin/ruff check -q clients/python examples tools
	.venv/bin/ruff format -q --check clients/python examples tools

.PHONY: lint-proto
lint-proto: $(TOOLS)/buf $(TOOLS)/protoprep ## Run buf lint, and compare the public API with its image, proto/api.binpb
	tools/lint-proto

.PHONY: vet
vet: bootstrap
	go vet -tags invariants ./...

.PHONY: unit
unit: bootstrap $(BIN) .tools/ucx/.stamp .tools/nvrtc/.stamp ## Run the Go tests without the race detector: PKG=./...
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -tags invariants -short $$(go list $(PKG) | grep -vE '/test/(e2e|chaos|netlab|faults)')

.PHONY: race
race: bootstrap-cc $(BIN) .tools/ucx/.stamp .tools/nvrtc/.stamp ## Run the Go tests with the race detector: PKG=./...
	MILLRACE_BIN=$(CURDIR)/$(BIN) go test -race -tags invariants -timeout 20m $$(go list $(PKG) | grep -v /test/)

# The packages with our own C code. Leak detection is off, because LeakSanitizer misreads Go's
# memory; the tests count leaks themselves. The tests TestEvery… are left out, because they compile
# kernels for minutes.
.PHONY: asan
asan: bootstrap-cc .tools/ucx/.stamp .tools/nvrtc/.stamp ## Test the packages with C code under the address sanitizer
	ASAN_OPTIONS=detect_leaks=0 go test -asan -tags invariants -skip '^TestEvery|Figures$$' ./memory/cuda ./transfer/ucx ./transfer/ipc ./worker/topology/nvml ./worker/device/cuda

.PHONY: sim
sim: bootstrap ## Simulate one seed twice and compare the hashes of the traces: SEED=n
	go test -tags invariants -count=1 -v -run 'TestSeed$$' ./test/sim -sim.seed=$(SEED)

.PHONY: sim-seeds
sim-seeds: bootstrap ## Simulate many seeds: SEEDS=n
	go test -tags invariants -count=1 -timeout 20m -run 'TestSeeds$$' ./test/sim -sim.seeds=$(SEEDS)

.PHONY: e2e
e2e: build bootstrap-net $(TOOLS)/grpcurl .tools/ucx-other/.stamp .tools/nvrtc/.stamp ## Test real processes: grpcurl, both clients on one cluster, one chaos graph, partitioned networks
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  GRPCURL=$(CURDIR)/$(TOOLS)/grpcurl go test -count=1 -timeout 40m ./test/e2e/... ./test/chaos/... ./test/netlab/... ./test/faults/... ./test/gpu/...

.PHONY: rdma
rdma: build bootstrap-rdma ## Test RDMA on two emulated hosts with Soft-RoCE: the transfer suite, and a cluster with kills; about 5 minutes
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
	go test -tags invariants -run '^Fuzz' $$(grep -rl --include='*_test.go' --exclude-dir='.*' '^func Fuzz' * | xargs -n1 dirname | sort -u | sed 's,^,./,')

.PHONY: chaos
chaos: build ## Kill and stop workers and executors under load: SECONDS=n SEED=n
	MILLRACE_BIN=$(CURDIR)/$(BIN) MILLRACE_PYTHON=$(CURDIR)/$(PY) \
	  go test -count=1 -v -timeout 60m ./test/chaos -chaos.seconds=$(SECONDS) -chaos.seed=$(SEED)

.PHONY: soak
soak: bootstrap ## Simulate seeds for some time: MINUTES=n
	go test -tags invariants -count=1 -timeout 0 -run 'TestSoak$$' -v ./test/sim -sim.minutes=$(MINUTES)

.PHONY: gpu
gpu: build bootstrap-cc ## Run the tests that need real GPUs, if this machine has any
	tools/gpu-test

.PHONY: gpu-bundle
gpu-bundle: bootstrap-cc .tools/ucx/.stamp ## Pack the GPU tests for another machine into build/gpu; there: bash build/gpu/run.sh
	tools/gpu-bundle

.PHONY: cubins
cubins: bootstrap-cc .tools/nvrtc/.stamp ## Compile the built-in kernels, after a change of their source
	tools/cubins

.PHONY: torch-pool
torch-pool: bootstrap ## Compile the C part of the Python executor, after a change of its source
	tools/torch-pool

##@ Python

.PHONY: py
py: build $(BIN) .tools/pyright/.stamp ## Run pyright, and pytest on the oldest and the newest Python of this machine
	PATH="$(CURDIR)/.venv/bin:$$PATH" .tools/pyright/node_modules/.bin/pyright -p clients/python --pythonpath $(PY)
	tools/pytest-all

.PHONY: py-quick
py-quick: build
	MILLRACE_BIN=$(CURDIR)/$(BIN) $(PY) -m pytest -q -x clients/python

##@ Measuring

.PHONY: bench
bench: build ## Measure the figures of docs/performance.md: tasks, graph shapes, latency, memory
	tools/bench

.PHONY: bench-peers
bench-peers: build .venv-peers/.stamp ## Measure Dask on this machine as well, and print ratios
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
	.tools/venv-gen/bin/pip install -q --no-deps -r $<
	@touch $@

.venv/.stamp: tools/python-dev.lock clients/python/pyproject.toml | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv
	.venv/bin/pip install -q -r tools/python-dev.lock
	.venv/bin/pip install -q -c tools/python-dev.lock -e 'clients/python[test]'
	@touch $@

# Always runs, because a GPU or its driver may have been added.
.PHONY: python-cuda
python-cuda: .venv/.stamp
	@tools/python-cuda

.venv-peers/.stamp: tools/python-peers.lock | bootstrap
	"$$(<.tools/python.path)" -m venv --clear .venv-peers
	.venv-peers/bin/pip install -q -r $<
	@touch $@

# Uses the npm of python-dev.lock, so that Node need not be installed.
.tools/pyright/.stamp: Makefile .venv/.stamp
	mkdir -p .tools/pyright
	PATH="$(CURDIR)/.venv/bin:$$PATH" npm install --silent --no-fund --no-audit --prefix .tools/pyright pyright@$(PYRIGHT)
	@touch $@

.PHONY: lock
lock: .venv/.stamp ## Resolve tools/python-*.in again
	tools/lock
