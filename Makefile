# Two commands are all a newcomer needs: `make demo` and `make test`.
# Each sets up all it needs in .venv: nothing but Python 3.11 and make has to be there.

PYTHON ?= $(shell command -v python3 || command -v python3.13 || command -v python3.12 || command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format proto proto-check bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## Create .venv with the locked dependencies and this project

demo: $(READY) ## Show what can be tried today
	@$(BIN)/python -m examples.demo

test: $(READY) ## Run the tests
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(READY) ## Run the long fault and soak tests as well
	@$(BIN)/python -m pytest $(ARGS)

lint: $(READY) proto-check ## Format, lint, types, import directions, generated stubs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_tidy.py

format: $(READY) ## Rewrite the sources as `make lint` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

PROTOS := protocol/gen/*.proto allocator/gen/*.proto
SERVICES := protocol/gen/journal.proto protocol/gen/shard.proto
# From the root, so that generated modules import each other as `protocol.gen.…`.
PROTOC := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I .
define GENERATE
{ $(PROTOC) --python_out=$(1) --mypy_out=quiet:$(1) $(PROTOS) && \
  $(PROTOC) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $(SERVICES); }
endef

proto: $(READY) ## Regenerate the protobuf stubs under protocol/gen and allocator/gen
	@rm -f */gen/*_pb2*.py*
	@$(call GENERATE,.)

proto-check: $(READY)
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && $(call GENERATE,"$$out") && \
	for gen in protocol/gen allocator/gen; do \
		diff -r -x '*.proto' -x __init__.py -x __pycache__ $$gen "$$out/$$gen" || \
		{ echo "$$gen differs from what its .proto files generate: run 'make proto' and commit"; exit 1; }; \
	done

bench: $(READY) ## Run the benchmarks; ARGS="selector" runs those whose name has that word
	@$(BIN)/python -m tests.bench $(ARGS)

lock: ## Resolve the dependencies anew into requirements.lock (needs uv)
	uv pip compile --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet --upgrade \
		--output-file requirements.lock pyproject.toml
	@grep -v '^pygazette' requirements.lock > requirements.lock.new && mv requirements.lock.new requirements.lock

clean: ## Remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# uv where somebody has set it up, else the pip that comes with Python.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pygazette needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked dependencies into $(VENV) (a few minutes the first time)"
	@if command -v uv >/dev/null 2>&1; then \
		VIRTUAL_ENV=$(CURDIR)/$(VENV) uv pip sync --quiet --require-hashes requirements.lock && \
		VIRTUAL_ENV=$(CURDIR)/$(VENV) uv pip install --quiet --no-deps --no-build-isolation --editable . ; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . ; \
	fi
	@touch $@
