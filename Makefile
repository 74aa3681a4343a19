# make alone lists what there is.
PYTHON ?= python3
PYTHON_COLAB ?= python3.13
BIN := .venv/bin
PY := $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help book test notebooks claims bench exercises course grade colab matrix set-repository lint clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 22

book: .venv/ready  ## build the site into _build/html, executing every chapter
	@$(PY) -m book.build

test: .venv/ready  ## everything: lint, stale notebooks, the site, unit tests, claims, notebooks, wheel, browser
	$(PY) -m book.export --check
	$(PY) -m exercises.release --check
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(PY) -m book.build
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadscope
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadscope --nbval-lax --nbval-current-env --nbval-cell-timeout=300 chapters

notebooks: .venv/ready  ## write chapters/*.ipynb, what Colab opens, from chapters/*.md
	@$(PY) -m book.export

claims: .venv/ready  ## measure every claim of the book and print the evidence
	@$(PY) -m ddcl_lite.claims

bench: .venv/ready  ## time the library against what one would write instead
	@$(PY) benchmarks/prototypes.py
	@$(PY) benchmarks/meanfield.py

exercises: .venv/ready  ## write exercises/release/*.ipynb, the public student copies of the problem sets
	@$(PY) -m exercises.release

course: .venv/ready  ## the same for a course: make course KEY=... [STUDENTS=names.txt] [OUT=folder]
	@$(PY) -m exercises.release --key "$(KEY)" --students "$(STUDENTS)" $(if $(OUT),--out "$(OUT)")

grade: .venv/ready  ## grade a folder of notebooks: make grade SUBMISSIONS=folder KEY=... [SET=name]
	@PYTHONHASHSEED=0 $(PY) -m exercises.grade "$(SUBMISSIONS)" --key "$(KEY)" $(if $(SET),--set "$(SET)")

colab: .venv/ready .venv-colab/ready  ## run the problem sets with the versions that Colab has (needs Python 3.13)
	@PYTHONPATH=. $(PY) tests/colab.py .venv-colab/bin

matrix: .venv/ready $(if $(filter c,$(or $(RUN),c)),.venv-colab/ready)  ## run every chapter as readers run it: make matrix [RUN=a|b|c|seeds]
	@PYTHONPATH=. $(PY) tests/matrix.py $(if $(RUN),--run $(RUN))

set-repository: .venv/ready  ## say where the book is published: make set-repository URL=https://github.com/owner/name
	@$(PY) -m book.repository -- "$$URL"

lint: .venv/ready  ## put the code into the house style
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:  ## remove what was built and the virtual environment; the data cache stays
	rm -rf _build .venv .venv-colab build dist ddcl_lite.egg-info

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	  "This book needs Python 3.11 to 3.13, not %d.%d: call make PYTHON=python3.13, say." % v)'
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch .venv/ready

.venv-colab/ready: tests/colab-constraints.txt pyproject.toml
	$(PYTHON_COLAB) -m venv .venv-colab
	.venv-colab/bin/python -m pip install --quiet --disable-pip-version-check -c tests/colab-constraints.txt \
	  ipywidgets ipykernel nbclient --editable .
	@touch .venv-colab/ready
