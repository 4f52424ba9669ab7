# `make demo` and `make test` each do all their set-up on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Twice the two cores of a small CI machine: many tests wait for limits and graces rather than compute.
JOBS ?= 4
STAMP := $(VENV)/.installed

.PHONY: demo test test-long quick lint docs reference bench clean

$(STAMP): pyproject.toml nsa/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e './nsa[data]'
	touch $@

demo: $(STAMP)
	@$(BIN)/validator run runbooks/smoke_cpu.yaml; code=$$?; echo; \
		echo "This run and all later ones as pages, at http://127.0.0.1:8700/: $(BIN)/validator serve"; exit $$code

# Many tests measure time, which a crowded machine takes away: what fails beside others runs once more, alone.
test: $(STAMP) lint docs
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 150 --durations-min 2 || $(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# What a change anywhere can break, in a minute.
quick: $(STAMP) lint
	$(BIN)/python -m pytest -q -n $(JOBS) -k 'not follows_the_page' tests/validator/test_words.py tests/docs/test_pages.py \
		tests/validator/runbook/test_shipped.py tests/validator/diagnose/test_phases.py tests/e2e/test_startup.py

# Whole calibrations and corpora, which take up to hours.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m long

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/zensical build --strict

# The pages that are generated from the code.
reference: $(STAMP)
	$(BIN)/validator schema --markdown > docs/runbook-reference.md
	sed -i '/^<!-- The table: make reference/q' docs/findings.md
	sed -i '/^<!-- The tables: make reference/q' docs/machine.md
	$(BIN)/python -c 'from validator.runbook.machine_page import tables; print(tables(), end="")' >> docs/machine.md
	{ echo; $(BIN)/python -c 'from validator.diagnose.engine import findings_table; print(findings_table(), end="")'; } >> docs/findings.md

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
