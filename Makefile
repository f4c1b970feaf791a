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
# Time for each fuzz target, as go test -fuzztime takes it.
FUZZTIME ?= 20s
# Frames that "make fuzz" mutates and sends through the push decoder.
MUTATIONS ?= 1000000
# Commit that the wire definitions must stay compatible with.
AGAINST ?= HEAD^

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: build ## Start a plane with simulated engines (ARGS="--engines 8")
	@exec bin/loadplane demo $(ARGS)

.PHONY: build
build: ## Build bin/loadplane
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)' -o bin/loadplane ./cmd/loadplane

# The race detector needs a C compiler; without one the tests run without it.
RACE := $(if $(shell command -v "$$(go env CC)" 2>/dev/null),-race)

.PHONY: test
test: ## Run all tests, with the race detector where there is a C compiler
	@[ -n '$(RACE)' ] || echo 'test: no C compiler, so no race detector' >&2
	go test $(RACE) ./...

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
	@for mod in go.mod tools/*/go.mod; do
		go -C "$${mod%go.mod}." mod tidy -diff
		echo "check: $$mod is tidy"
	done
	go mod verify

.PHONY: check-docs
check-docs:
	@go test -count=1 ./e2e/rules

.PHONY: bench
bench: ## Run the benchmarks
	@files=$$($(GIT) ls-files --cached --others --exclude-standard '*_test.go')
	dirs=$$({ grep -l '^func Benchmark' $$files /dev/null || true; } | xargs -r dirname | sort -u | sed 's|^|./|')
	[ -n "$$dirs" ] || { echo 'bench: no benchmarks'; exit 0; }
	go test -run '^$$' -bench . -benchmem $$dirs

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME, then mutated frames
	@files=$$($(GIT) ls-files --cached --others --exclude-standard '*_test.go')
	{ grep -Ho '^func Fuzz[A-Za-z0-9_]*' $$files /dev/null || true; } | sort | while IFS=: read -r file func; do
		name=$${func#func }
		echo "fuzz: $$name in $${file%/*} for $(FUZZTIME)"
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime '$(FUZZTIME)' "./$${file%/*}" </dev/null
	done
	LOADPLANE_MUTATIONS=$(MUTATIONS) go test -count=1 -run '^TestMutatedFrames$$' -v ./ingest/push | tee /dev/stderr | grep -c '^--- PASS: TestMutatedFrames' >/dev/null
