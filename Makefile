# Targets are listed by "make help". Tools are pinned in the modules under
# tools/ and built by the Go command; nothing else has to be installed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

GIT  := git -c safe.directory='*'
BUF  := go tool -modfile=tools/buf/go.mod buf
LINT := go tool -modfile=tools/lint/go.mod golangci-lint

# Name that "loadplane version" prints.
VERSION := $(or $(shell $(GIT) describe --tags --always --dirty 2>/dev/null),devel)
# Arguments of "loadplane demo" for "make run".
ARGS ?=
# Arguments of the program of "make bench"; -h lists them.
BENCH ?=
# Time for each fuzz target, as go test -fuzztime takes it.
FUZZTIME ?= 20s
# Frames that "make fuzz" mutates and sends through the push decoder.
MUTATIONS ?= 1000000
# Simulated hours of "make sim-soak".
SIM_HOURS ?= 30
# Commit that the wire definitions must stay compatible with.
AGAINST ?= HEAD^

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: build ## Start a plane with simulated engines (ARGS="--engines 8")
	@exec bin/loadplane demo $(ARGS)

.PHONY: build
build: ## Build bin/loadplane and bin/loadreporter
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/loadplane ./cmd/loadreporter

# The race detector needs a C compiler; without one the tests run without it.
RACE := $(if $(shell command -v "$$(go env CC)" 2>/dev/null),-race)

# Packages whose tests run in bubbles of synctest. Under the race detector they
# have one processor: Go runs timers of a bubble that are due at once on the
# thread that asks, in the one context that the detector has for all of them, and
# two threads at a time corrupt it (golang/go#78156, seen with Go 1.26).
BUBBLES = $(sort $(patsubst %/,%,$(dir $(shell grep -rl --include='*_test.go' '"testing/synctest"' .))))
OTHERS = $(filter-out $(BUBBLES),$(patsubst github.com/loadplane/loadplane%,.%,$(shell go list ./...)))

# At full size these are too slow under the race detector: there they do a
# part, and run once more without it.
FULL_SIZE := TestBug55RandomChangesEndOnOneDigest|TestDeltasAddUpToTheFull|TestLinesAddUpToTheSnapshot|TestRouterSpreadsRequests|TestSimulatedHour

.PHONY: test
test: ## Run all tests, under the race detector where there is a cc
	@[ -n '$(RACE)' ] || echo 'test: no C compiler, so no race detector' >&2
	@go test -timeout 20m $(RACE) $(if $(RACE),-cpu 1) $(BUBBLES)
	@go test -timeout 20m $(RACE) $(OTHERS)
	[ -z '$(RACE)' ] || go test -v -run '^($(FULL_SIZE))$$' ./api ./e2e ./e2e/soak |
		awk '/^(ok|FAIL|---)/ { print } /^--- PASS/ { n++ } END { exit n != 5 }'

# Version that the API server of test-kube tells clients.
KUBE = $(shell go -C e2e/kube list -m -f '{{.Version}}' k8s.io/kubernetes)

# An API server with etcd, in a module of its own: its first build takes minutes.
.PHONY: kube-apiserver
kube-apiserver:
	@start=$$SECONDS
	CGO_ENABLED=0 go -C e2e/kube build -trimpath -buildvcs=false -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBE)' -o ../../bin/kube-apiserver ./cmd/apiserver
	echo "test-kube: API server $(KUBE) built in $$((SECONDS - start)) s"

# What is tested runs under the race detector; the tests only look on, and share
# the packages that were compiled for the API server.
.PHONY: test-kube
test-kube: build kube-apiserver ## Run the tests of discovery on a real kube-apiserver
	@go build $(RACE) -buildvcs=false -o bin/kubelist ./e2e/kubelist
	CGO_ENABLED=0 go -C e2e/kube test -count=1 -timeout 20m -v .

.PHONY: tools
tools: ## Build what the other targets need, which takes minutes once
	@$(BUF) --version >/dev/null
	$(LINT) version >/dev/null
	for tool in protoc-gen-go protoc-gen-go-grpc protoc-gen-connect-go; do
		go tool -modfile=tools/gen/go.mod -n "$$tool" >/dev/null
	done
	$(MAKE) --no-print-directory kube-apiserver

.PHONY: test-keda
test-keda: build ## Run the tests of the scaler with KEDA's own client
	@go -C e2e/keda test $(RACE) -count=1 -v .

# The page is built from web/ and committed, so that nobody needs npm to build
# the programs.
.PHONY: web
web: ## Rebuild the page from web/
	@npm ci --prefix web --no-audit --no-fund --silent
	npm run --prefix web --silent build

.PHONY: check-web
check-web: ## Check the source of the page, and that the committed one is built from it
	@npm run --prefix web --silent check
	npm run --prefix web --silent test
	tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT
	npm run --prefix web --silent build -- "$$tmp"
	if ! diff -r "$$tmp" api/page/static; then
		echo 'check-web: api/page/static is not built from web/; run "make web"' >&2
		exit 1
	fi
	echo 'check-web: the page is current'

.PHONY: e2e
e2e: ## Run the tests on real processes and sockets only, uncached
	@go test $(RACE) -count=1 ./e2e/...

.PHONY: lint
lint: ## Run the linters over Go code and wire definitions
	@$(LINT) run ./...
	$(BUF) lint
	$(BUF) format --diff --exit-code

.PHONY: fmt
fmt: ## Format Go code and wire definitions
	@$(LINT) fmt
	$(BUF) format --write

.PHONY: generate
generate: ## Generate code from proto/
	@$(BUF) generate

.PHONY: check
check: check-generated check-breaking check-modules check-docs ## Check generated code, wire, modules, vet and docs
	@go vet ./...
	go -C e2e/bench vet ./...
	go -C e2e/bench test ./...
	echo 'check: all clean'

# Generates into an empty folder, so that stale, missing, edited and untracked
# files all show, with or without a commit.
.PHONY: check-generated
check-generated:
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT
	$(BUF) generate --output "$$tmp"
	mkdir "$$tmp/tree"
	find proto \( -name '*.pb.go' -o -name '*.connect.go' \) -exec cp --parents -t "$$tmp/tree" {} +
	if ! diff -ru "$$tmp/tree/proto" "$$tmp/proto"; then
		echo 'check: generated code differs from proto/*.proto; run "make generate"' >&2
		exit 1
	fi
	echo 'check: generated code is current'

.PHONY: check-breaking
check-breaking:
	@if ! $(GIT) cat-file -e '$(AGAINST):proto' 2>/dev/null; then
		echo 'check: $(AGAINST) has no proto folder; compatibility of the wire not checked'
		exit 0
	fi
	tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT
	$(GIT) archive '$(AGAINST)' proto | tar -x -C "$$tmp"
	cp buf.yaml "$$tmp"
	$(BUF) breaking --against "$$tmp"
	echo 'check: wire is compatible with $(AGAINST)'

.PHONY: check-modules
check-modules:
	@for mod in go.mod tools/*/go.mod e2e/*/go.mod; do
		go -C "$${mod%go.mod}." mod tidy -diff
		echo "check: $$mod is tidy"
	done
	go mod verify

.PHONY: check-docs
check-docs:
	@go test -count=1 ./e2e/rules

.PHONY: bench
bench: ## Measure the line next to bare gRPC servers (BENCH="-part X")
	@go -C e2e/bench build -o ../../bin/bench .
	exec bin/bench -json bin/bench.jsonl $(BENCH)

.PHONY: bench-go
bench-go: ## Run the Go benchmarks of the packages
	@files=$$($(GIT) ls-files --cached --others --exclude-standard '*_test.go')
	dirs=$$({ grep -l '^func Benchmark' $$files /dev/null || true; } | xargs -r dirname | sort -u | sed 's|^|./|')
	[ -n "$$dirs" ] || { echo 'bench-go: no benchmarks'; exit 0; }
	go test -run '^$$' -bench . -benchmem $$dirs

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME, then mutated frames
	@files=$$($(GIT) ls-files --cached --others --exclude-standard '*_test.go')
	{ grep -Ho '^func Fuzz[A-Za-z0-9_]*' $$files /dev/null || true; } | sort | while IFS=: read -r file func; do
		name=$${func#func }
		echo "fuzz: $$name in $${file%/*} for $(FUZZTIME)"
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime '$(FUZZTIME)' -fuzzminimizetime 50x "./$${file%/*}" </dev/null
	done
	LOADPLANE_MUTATIONS=$(MUTATIONS) go test -count=1 -run '^TestMutatedFrames$$' -v ./ingest/loadreport | tee /dev/stderr | grep -c '^--- PASS: TestMutatedFrames' >/dev/null

# Operations of "make model".
OPS ?= 1000000

.PHONY: model
model: ## Run the model test with a million operations (OPS=1000000)
	@LOADPLANE_MODEL_OPS=$(OPS) go test -count=1 -timeout 2h -v -run '^TestModel$$' ./e2e/model

.PHONY: defects
defects: ## Seed each defect in a copy; named tests must catch it
	@e2e/defects/run.sh

.PHONY: sim-soak
sim-soak: ## Run SIM_HOURS hours of simulated time under faults
	@LOADPLANE_SIM_HOURS='$(SIM_HOURS)' go test -count=1 -timeout 0 -run '^TestSimulatedHour$$' -v ./e2e/soak

.PHONY: hostile
hostile: ## Run the attacks on ingest at their full numbers
	@LOADPLANE_HOSTILE=full go test -count=1 -timeout 0 -v ./e2e/hostile
