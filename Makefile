# make install     makes .venv; the command is then .venv/bin/unwalk
# make demo        installs, runs the demonstration, prints where its report is
# make peers-demo  five real peers: one forgets five records, two are killed and return, one lies
# make test        installs, runs every check
# make check       its quick half: format, lint, types, import direction, documentation
# make suite       its long half: tests, doctests, snippets
# make docs        installs, makes the documentation site in build/docs
# make release     installs, makes wheel, sdist and software bill of materials in dist
#
# Settings: PYTHON (the interpreter that makes .venv), WORKERS (test processes), TORCH_INDEX (an
# index with PyTorch's CPU wheels, for machines without a GPU whose own index has none).
# Written for GNU make 3.81 and newer.

PYTHON = python3
WORKERS = 2
TORCH_INDEX =

VENV = .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
CODE = src tests docs/conf.py $(wildcard benchmarks experiments tools)
PIP = $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL = $(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# One thread a process: the test processes share the cores, and results are pinned to one thread.
# Tests wait half of their time, so there are more processes than cores.  Compiled code is kept, also
# where the environment says otherwise: tests start a hundred processes that would compile it again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

SITE = $(BIN)/python -m sphinx -q -W --keep-going docs build/docs

NEXT = echo 'the command is $(BIN)/unwalk; to type only unwalk here: . $(BIN)/activate'

# $(STAGE) NAME COMMAND...: says which stage runs, and how long it took.
STAGE = @stage() { \
	name=$$1; shift; start=$$(date +%s); printf '== %s\n' "$$name"; \
	"$$@"; code=$$?; took=$$(( $$(date +%s) - start )); \
	if [ $$code -eq 0 ]; then printf -- '-- %s: ok, %s s\n' "$$name" $$took; \
	else printf -- '-- %s: FAILED, %s s\n' "$$name" $$took; fi; \
	return $$code; }; stage

.PHONY: help install demo peers-demo docs release test check suite soak bench clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo 'make soak, make bench, make clean: the long tests; the benchmarks; removes caches'

install: $(STAMP)
	@$(NEXT)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'unwalk needs Python 3.11 or newer: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(STAGE) 'environment' sh -c 'test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)'
	@# Without a GPU nothing may bring CUDA packages: look at the torch that pip would choose.
	@if [ "$$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ] && \
		! command -v nvidia-smi >/dev/null && \
		$(PIP_INSTALL) -q --dry-run --no-deps --ignore-installed --report - torch 2>/dev/null | \
		grep -Eq '"(nvidia|cuda|triton)[-=<> ]'; then \
		echo 'This machine has no GPU, but the torch that pip would install here brings CUDA' \
		'packages. Name an index with the CPU wheels of PyTorch (see its installation page):' \
		'make install TORCH_INDEX=ADDRESS' >&2; exit 1; fi
	$(STAGE) 'build tools' $(PIP_INSTALL) -q setuptools
	$(STAGE) 'packages' $(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/unwalk run --grade exact --set compare=rrdu,finetune,retrain --out runs/demo --overwrite
	@$(NEXT)

peers-demo: $(STAMP)
	$(BIN)/python -m unwalk.peers.demo

docs: $(STAMP)
	$(STAGE) 'documentation' $(SITE)
	@echo 'read it: build/docs/index.html'

release: $(STAMP)
	rm -rf dist
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
	$(BIN)/python tools/bill_of_materials.py dist/unwalk-$$($(BIN)/unwalk --version).cdx.json

test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 check suite

check: $(STAMP)
	$(STAGE) 'format' $(BIN)/ruff format --check $(CODE)
	$(STAGE) 'lint' $(BIN)/ruff check $(CODE)
	$(STAGE) 'types' $(BIN)/mypy $(CODE)
	$(STAGE) 'import direction' $(BIN)/lint-imports --no-logo
	$(STAGE) 'documentation' $(SITE)

suite: $(STAMP)
	$(STAGE) 'tests, doctests, snippets' $(PYTEST)

soak: WORKERS = 2 # they compute more than they wait, and some measure time
soak: $(STAMP)
	$(STAGE) 'soak' $(PYTEST) -m soak --timeout 3600

bench: $(STAMP)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python "$$file" || exit 1; done

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
