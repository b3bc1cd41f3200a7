# The newest that runs: a name on the PATH may have no Python behind it.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys, venv; assert sys.version_info >= (3, 11)' 2>/dev/null \
	&& echo $$python && break; done)
VENV := .venv
RUN := $(VENV)/bin/python
# Modules are compiled once, into a folder of their own, even where Python is told to keep nothing:
# else every process of a test compiles JAX anew.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/compiled

.PHONY: demo evidence test test-slow smoke lint benchmark docs clean

demo: $(VENV)/installed
	$(RUN) launch.py --config=configs/demo.py --sweep --overwrite --workdir=runs/demo

# What headlines lack, hours of it. TIER=secondary or all: other sweeps. ONLY="matcha adasync": these.
# FRESH=1: also what another commit than this one has made, so that all records name one.
TIER ?= headline
evidence: $(VENV)/installed
	$(RUN) -m experiments.publish evidence --tier=$(TIER) $(if $(FRESH),--fresh) $(ONLY)

test: $(VENV)/installed
	$(RUN) -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/installed
	$(RUN) -m pytest -n 3 --dist worksteal -m slow -rs

# Of a Python beside the newest: make smoke VENV=.venv-oldest PYTHON=python3.11
smoke: $(VENV)/installed
	$(RUN) -m pytest -n 2 --dist worksteal tests/test_launch.py \
		tests/comms/test_collectives.py tests/algorithms/test_contract.py \
		tests/stragglers/test_contract.py tests/runtimes/test_contract.py \
		tests/runtimes/test_mesh.py tests/experiments/test_checkpoints.py

lint: $(VENV)/installed
	$(RUN) -m ruff check .

benchmark: $(VENV)/installed
	MALLOC_MMAP_THRESHOLD_=8000000000 MALLOC_TRIM_THRESHOLD_=16000000000 \
		MALLOC_TOP_PAD_=1000000000 $(RUN) -m benchmarks.suite

# The pages and the reference of docstrings, in build/site/index.html. Pages need no network; their
# search needs a server, as python -m http.server -d build/site
docs: $(VENV)/installed
	$(RUN) -m pip install --quiet --requirement docs/requirements.txt
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict
	$(RUN) docs/check.py build/site

# Modules are compiled as they are imported.
$(VENV)/installed: requirements.txt
	$(if $(PYTHON),,$(error no Python 3.11 or newer with venv runs here; name one: make PYTHON=...))
	@echo "$(VENV) gets $$($(PYTHON) --version), as $(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --no-compile --requirement requirements.txt
	$(RUN) -c "import site; open(site.getsitepackages()[0] + '/gossax.pth', 'w').write('$(CURDIR)\n')"
	touch $@

clean:
	rm -rf $(VENV) .venv-oldest build .pytest_cache .ruff_cache
