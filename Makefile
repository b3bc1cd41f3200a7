PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo evidence test test-slow lint benchmark clean

demo: $(VENV)/installed
	$(RUN) launch.py --config=configs/demo.py --sweep --overwrite --workdir=runs/demo

# All published sweeps again, hours of them: make evidence ONLY="matcha adasync" for some.
evidence: $(VENV)/installed
	$(RUN) -m experiments.publishing.evidence $(ONLY)

test: $(VENV)/installed
	$(RUN) -m pytest -n 2

test-slow: $(VENV)/installed
	$(RUN) -m pytest -n 2 -m slow -rs

lint: $(VENV)/installed
	$(RUN) -m ruff check .

benchmark: $(VENV)/installed
	$(RUN) -m benchmarks.simulate
	$(RUN) -m benchmarks.mesh
	$(RUN) -m benchmarks.schedules
	$(RUN) -m benchmarks.async_replay
	$(RUN) -m benchmarks.buckets

$(VENV)/installed: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --requirement requirements.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
