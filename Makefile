# Everything works from a fresh clone with nothing but Python >= 3.11 and make: each target first makes .venv and
# installs the project in it under constraints.txt. A stamp file is written only after an install has succeeded, so an
# interrupted one is resumed, and a finished one is not repeated until pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
# Extra arguments to every `pip install`, e.g. to choose an index that holds CPU builds of torch.
PIP_ARGS ?=
PYTEST_ARGS ?= -n 2 -q

PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
REQUIRE_311 := import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	"lyapflow needs Python 3.11 or newer; " + sys.executable + " is %d.%d." % v[:2])

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo examples test mutants lint types format bench results docs clean distclean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo
	@echo '  PYTHON=python3.12      the Python that .venv is made from'
	@echo '  PIP_ARGS=...           extra arguments to pip install'
	@echo '  PYTEST_ARGS="-x -k x"  instead of "$(PYTEST_ARGS)"'

demo: $(VENV)/.stamp-dev ## train TANGO with guaranteed descent in three minutes, with figures and a report in demo/
	$(PY) -m examples.demo

examples: $(VENV)/.stamp-dev ## show solvers, fields, certificates, learned dynamics and graphs at work, one by one
	$(PY) -m examples.solvers_demo
	$(PY) -m lyapflow demo --out demo/certificates
	$(PY) -m examples.learned_newton --quick
	$(PY) -m examples.composition --quick
	$(PY) -m examples.identification --quick
	$(PY) -m examples.barbell --quick

test: $(VENV)/.stamp-dev ## run the tests and the doctests
	$(PY) -m pytest $(PYTEST_ARGS)

mutants: $(VENV)/.stamp-dev ## break the code in known ways, and see whether the tests notice; half an hour
	$(PY) tests/mutants.py

lint: $(VENV)/.stamp-dev ## check style and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(VENV)/.stamp-dev ## fix style and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(VENV)/.stamp-dev ## check types
	$(PY) -m mypy

bench: $(VENV)/.stamp-dev ## run every benchmark
	$(PY) benchmarks/run.py

results: $(VENV)/.stamp-dev ## write the tables of results from the records in experiments/results
	$(PY) -m experiments tables

# Pages of files that are gone must go too; what was run and read before is kept beside them, and used again.
docs: $(VENV)/.stamp-docs ## build the site into docs/_build/html, run its tutorials, and test it in a browser
	@rm -rf docs/_build/html docs/_build/built
	$(PY) -m sphinx -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html
	@touch docs/_build/built
	$(PY) -m pytest -q tests/docs/test_browser.py
	@echo 'docs/_build/html/index.html'

clean: ## remove caches and build products
	rm -rf build dist *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean ## remove .venv as well
	rm -rf $(VENV)

# torch goes first and under its pin: a later resolution then finds it installed and never fetches a second build of it.
# `-m venv` on an existing environment only repairs it, so that a half-made one is completed.
$(VENV)/.stamp-torch: constraints.txt
	@$(PYTHON) -c '$(REQUIRE_311)' || { echo 'Choose another one: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo 'Making $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@$(PY) -c '$(REQUIRE_311)' || { echo 'Remove it with: make distclean' >&2; exit 1; }
	@echo 'Installing torch in $(VENV) (once)'
	@$(PIP_INSTALL) torch setuptools
	@touch $@

# setuptools is installed by now, at its pinned version, so the build needs no environment of its own.
$(VENV)/.stamp-dev: $(VENV)/.stamp-torch pyproject.toml setup.py $(wildcard lyapflow_graph/kernels/*.[ch])
	@echo 'Installing lyapflow[$(EXTRAS)] in $(VENV) (once)'
	@$(PIP_INSTALL) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-dev
	@echo 'Installing lyapflow[docs] in $(VENV) (once)'
	@$(PIP_INSTALL) --no-build-isolation -e '.[docs]'
	@touch $@
