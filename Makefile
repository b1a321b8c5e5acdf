# On a machine with Python 3.11 and a package index: make demo, make test, make docs.
# asked, not looked up: a shim of that name may lead nowhere
PYTHON ?= $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
BIN := .venv/bin
# stamps of what is installed, so that an interrupted installation is done again: the package, its tests, its site
INSTALLED := .venv/installed
TESTABLE := .venv/installed-test
DOCUMENTED := .venv/installed-docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# what compares numbers closely, and could pass on the machine of whoever wrote it only
CLOSE := tests/clustering tests/methods/test_contract.py tests/methods/test_ids.py tests/workflows/test_discover.py \
	tests/workflows/test_predict.py tests/test_distributed.py
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
PEERS := build/peers-venv
BENCHMARKS := estep training_speed epoch_cost memory predict report ranks

.PHONY: demo test suite docs narrow check benchmark peers clean

demo: $(INSTALLED)
	$(BIN)/phenogroups demo --overwrite

# both at once: types alone would leave a core without work for half a minute
test: $(TESTABLE)
	$(MAKE) --no-print-directory --jobs=2 check suite

suite: $(TESTABLE)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# as on a processor without AVX-512; one without AVX2 too is ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE
narrow: $(TESTABLE)
	$(AVX2) $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(CLOSE)

# the site, in build/site: open build/site/index.html
docs: $(DOCUMENTED)
	$(BIN)/mkdocs build --strict --quiet

check: $(TESTABLE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python

# everything in docs/performance.md, in one go; for a machine with nothing else to do
benchmark: $(INSTALLED)
	$(PIP) --editable '.[benchmark]'
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py || exit; done
	$(BIN)/python benchmarks/performance.py

# Deep UCSL beside methods of other packages, which have an environment of their own; cohorts are looked for in
# PHENOGROUPS_DATA. A package that cannot be installed is named in the table
peers: $(INSTALLED) $(PEERS)/installed
	$(BIN)/python benchmarks/peers.py --python $(PEERS)/bin/python

# mlni does not name what it imports; nidl asks for an older scikit-learn, without which it runs too
$(PEERS)/installed: constraints.txt
	$(PYTHON) -m venv $(PEERS)
	for names in scikit-learn torch clustpy 'mlni nibabel tensorboardX' 'pytorch-lightning toml einops timm simpleitk' \
		'--no-deps nidl'; do $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt $$names || echo "$$names could not be installed"; done
	touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

$(TESTABLE): $(INSTALLED)
	$(PIP) --editable '.[test]'
	touch $@

$(DOCUMENTED): $(INSTALLED)
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
