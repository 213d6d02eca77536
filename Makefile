# kvtwin. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CANDIDATES := python3.13 python3.12 python3.11 python3 python

# One thread: small models run slower, and less repeatably, when threads fight for cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test check format bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: $(READY) ## one trace through simulator and real engine, compared; report.html at the end
	@$(BIN)/kvtwin model fetch smollm2_135m || echo "No real weights: the demo runs on random ones." >&2
	$(BIN)/kvtwin validate +experiment=demo

test: $(READY) ## run the tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal  # else each process compiles all anew

check: $(READY) ## lint, formatting, types and import arrows
	scripts/check

format: $(READY) ## format the code and apply the linter's safe fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: $(READY) ## run every benchmark; results in benchmarks/results
	@for script in benchmarks/*.py; do \
		test -e "$$script" || { echo "no benchmarks yet"; break; }; \
		echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

clean: ## remove the virtual environment, caches and build output; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@set -e; \
	if [ ! -x $(BIN)/python ]; then \
		for candidate in $(CANDIDATES); do \
			if $$candidate -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "kvtwin needs Python 3.11 or newer with the venv module; looked for: $(CANDIDATES)" >&2; exit 1; \
		fi; \
		echo "Making $(VENV) with $$python"; \
		$$python -m venv $(VENV); \
	fi; \
	echo "Installing kvtwin and its dependencies into $(VENV); torch is large, the first time takes a minute or more"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[engine,report,traces,compile,test,dev]' -c constraints.txt
	@touch $@
