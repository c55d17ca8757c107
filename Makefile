# Each target makes .venv first when it is missing or requirements.txt is newer, then does its one thing.
PYTHON ?= python3
VENV := .venv
# DVC starts the stages as `python -m stages.<verb>`: the environment's python must come first.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m

.PHONY: repro test test-slow ui lint clean

repro: $(VENV)/.stamp  ## run the pipeline; what has not changed is not run again
	$(RUN) dvc repro

test: $(VENV)/.stamp  ## all tests but the slow ones
	$(RUN) pytest -m "not slow"

test-slow: $(VENV)/.stamp  ## the slow tests
	$(RUN) pytest -m slow

ui: $(VENV)/.stamp  ## browse the experiments on http://127.0.0.1:5000
	$(RUN) stages.ui

lint: $(VENV)/.stamp  ## style and types
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

clean:  ## remove the environment and tool caches; results, experiments and DVC's cache stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find stages tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d; try: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@
