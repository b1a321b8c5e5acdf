# Two commands on a machine with Python 3.11 and a package index: make demo, make test.
# asked, not looked up: a shim of that name may lead nowhere
PYTHON ?= $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo test check clean

demo: $(INSTALLED)
	$(BIN)/phenogroups demo

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python

# stamped only when the whole installation went well, so that an interrupted one is done again
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
