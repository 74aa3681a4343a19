# make alone lists what there is.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help book test notebooks claims bench lint clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 18

book: .venv/ready  ## build the site into _build/html, executing every chapter
	@$(RUN) -m book.build

test: .venv/ready  ## everything: lint, stale notebooks, the site, unit tests, claims, notebooks, wheel, browser
	$(RUN) -m book.export --check
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(RUN) -m book.build
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadscope
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadscope --nbval-lax --nbval-current-env --nbval-cell-timeout=300 chapters

notebooks: .venv/ready  ## write chapters/*.ipynb, what Colab opens, from chapters/*.md
	@$(RUN) -m book.export

claims: .venv/ready  ## measure every claim of the book and print the evidence
	@$(RUN) -m ddcl_lite.claims

bench: .venv/ready  ## time the library against what one would write instead
	@$(RUN) benchmarks/prototypes.py
	@$(RUN) benchmarks/meanfield.py

lint: .venv/ready  ## put the code into the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:  ## remove what was built and the virtual environment; the data cache stays
	rm -rf _build .venv build dist ddcl_lite.egg-info

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	  "This book needs Python 3.11 to 3.13, not %d.%d: call make PYTHON=python3.13, say." % v)'
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch .venv/ready
