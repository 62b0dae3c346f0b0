# Everything happens inside this clone (.venv); the Kubernetes binaries for the tests are cached under ~/.cache/dovetail.
PYTHON ?= python3
BIN := .venv/bin
IMAGE ?= dovetail:0.1.0
# Tests are handed out to so many processes. Two of them mostly wait, for the control plane and the node, and others at
# times; each may start a plane of its own (about 1 GiB).
WORKERS ?= 5
# The quick tests wait for more than half of their time, and start nothing large.
QUICK_WORKERS ?= 4
# Containers often set it. Without bytecode each of these processes compiles all tests, with their assertions: 7 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint format docs pictures lock protos controlplane node bench image wheel krew clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/.run ## run a small cluster on this machine and show what Dovetail does with it
	@$(BIN)/dovetail demo

test: .venv/.native lint ## all tests, with those on a real kube-apiserver (first time: builds it, some minutes)
	@$(BIN)/python -m tools.controlplane build || echo "going on without the real control plane: the end of the test run says what was left out" >&2
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

quick: lint ## after each change, within two minutes: lint, and the tests that are quick and need no control plane
	$(BIN)/python -m pytest -q -n $(QUICK_WORKERS) --dist worksteal -m "not plane and not node and not slow" --durations=10 --durations-min=1

lint: .venv/.dev ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev ## put the sources into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.dev ## the documentation as a site in build/site; every link is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "look at it: $(BIN)/python -m http.server -d build/site"

pictures: .venv/.run ## draw the pictures of a terminal in docs/pictures again
	$(BIN)/python -m tools.pictures

controlplane: .venv/.dev ## build and start a real control plane in the foreground
	$(BIN)/python -m tools.controlplane up

node: .venv/.dev ## the same with a real kubelet and containerd on it (root, Linux)
	$(BIN)/python -m tools.node up

bench: .venv/.native ## the benchmarks: the core alone, then live against kube-scheduler
	$(BIN)/python benchmarks/core_speed.py
	$(BIN)/python -m benchmarks.live

image: .venv/.dev ## build the container image IMAGE and its SBOM into dist/: no root, no daemon, no registry
	$(BIN)/python -m tools.images image --name $(IMAGE)

wheel: .venv/.dev ## build the wheel with compiled parts, and the source distribution, into dist/
	$(BIN)/python -m tools.images wheel

krew: .venv/.dev ## build the plugin for krew: archives of all platforms and the manifest into dist/ (HOMEPAGE=, URI=)
	$(BIN)/python -m tools.krew --homepage $(HOMEPAGE) --uri $(URI)

lock: ## pin the dependencies again (needs pip-tools)
	pip-compile -q --generate-hashes --strip-extras --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --extra agent --extra dashboard --extra views -o requirements/run.lock pyproject.toml
	pip-compile -q --generate-hashes --strip-extras --allow-unsafe --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --extra dev --extra agent --extra dashboard --extra mcp --extra plots --extra views -c requirements/run.lock -o requirements/dev.lock pyproject.toml

protos: .venv/.dev ## generate the messages of the kubelet's gRPC interfaces again
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/dovetail/agent/apis/*.proto

clean: ## remove the virtual environment and caches of this clone
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src -name '*.so' -delete

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed; say which with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making .venv ..."
	@$(PYTHON) -m venv .venv

.venv/.run: requirements/run.lock pyproject.toml setup.py $(wildcard src/dovetail/core/placing/*.[ch]) | .venv/bin/python
	@echo "installing the run-time dependencies ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/run.lock
	@DOVETAIL_COMPILE=0 $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

.venv/.dev: requirements/dev.lock .venv/.run
	@echo "installing the development dependencies ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

# Those of the wheel, which the tests of the image take as well; where no wheel can be built, without it.
.venv/.native: $(shell find src/dovetail/core src/dovetail/kube -name '*.py') src/dovetail/__native__.py setup.py | .venv/.dev
	@echo "compiling the core (a minute) ..."
	@{ $(BIN)/python -m tools.images compiled || $(BIN)/python setup.py -q build_ext --inplace; } > .venv/native.log 2>&1 || { cat .venv/native.log >&2; exit 1; }
	@touch $@
