# Every target works on a bare machine with make and Python >= 3.11: what it needs is installed into .venv first.
PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt

# Each test worker computes in one thread, or the workers would fight for the cores.
# NPROC is what XLA's thread pool on the CPU listens to.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NPROC=1
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS)

# The first tier compiles programs that run once: with few of XLA's passes that takes half the time.
QUICKLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

# What make bench measures: few short cases with QUICK=1, minutes rather than an hour or two, into a folder that git ignores.
QUICK ?=
BENCH := $(BIN)/python -m benchmarks
BENCH_OPTIONS := $(if $(QUICK),--quick --out runs/bench)

.PHONY: help demo test test-all bench lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      show what attn does"
	@echo "make test      run the first tier of the tests"
	@echo "make test-all  run all tests"
	@echo "make bench     measure attn beside its peers, for an hour or two (QUICK=1: few short cases)"
	@echo "make lint      check style and types"
	@echo "make clean     remove .venv and caches"

demo: $(VENV)/installed
	$(BIN)/attn demo

test: $(VENV)/installed
	$(QUICKLY) $(PYTEST) -m "not full"

test-all: $(VENV)/installed
	$(PYTEST)

bench: $(VENV)/installed-bench
	$(BENCH) torch $(BENCH_OPTIONS)
	$(BENCH) jax $(BENCH_OPTIONS)
	$(BENCH) generation $(BENCH_OPTIONS)
	$(BENCH) report $(BENCH_OPTIONS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps remember an installation until pyproject.toml or constraints.txt changes.
$(VENV)/installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "attn needs Python 3.11 or newer; received no $(PYTHON)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("attn needs Python 3.11 or newer; received %d.%d." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[all,test]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/installed-bench: $(VENV)/installed
	$(PIP) --editable '.[bench]'
	@touch $@
