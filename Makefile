# Everything sets itself up: a virtual environment in .venv, then the work.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
# One worker more than cores: many tests wait for real programs.
JOBS ?= $(shell n=$$(( $$(getconf _NPROCESSORS_ONLN) + 1 )); echo $$(( n > 8 ? 8 : n )))
PYTEST := $(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
  --durations 20 --durations-min 1
# In CI, the versions that were tried together.
PINNED := $(if $(CI),--constraint packaging/constraints-dev.txt)
# Installs $(1) and names each package while pip fetches it; what fails comes on stderr.
INSTALL = { $(BIN)/pip install --disable-pip-version-check $(PINNED) --editable $(1) || echo FAILED; } \
  | while read -r word name rest; do case "$$word" in \
    Collecting) printf ' %s' "$${name%%[<>=!~;[]*}" ;; \
    Installing) [ "$$name" != collected ] || printf '\nunpacking ...\n' ;; \
    FAILED) exit 1 ;; esac; done
# Its comma would end an argument of call.
WITH_PEERS := .[dev,bench]
SMALL := not laboratory and not slow and not real_browser and not real_dbus and not real_machine \
  and not real_packages and not real_prometheus and not real_slurm and not real_smtp and not real_systemd and not real_terminal

.DEFAULT_GOAL := help
.PHONY: help demo fakenvml test test-quick coverage lint requirements shape format campaign bench bench-detect train docs site clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/run.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "gpuwatchd needs Python 3.11 or later; try: make PYTHON=python3.12 demo" >&2; exit 1; }
	@echo "setting up $(VENV), once: some 30 packages, 140 MB, half a minute on a fast line ..."
	@$(PYTHON) -m venv $(VENV)
	@$(call INSTALL,.)
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo "setting up the development tools, once: some minutes ..."
	@$(call INSTALL,'.[dev]')
	@touch $@

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	@$(call INSTALL,'$(WITH_PEERS)')
	@touch $@

demo: $(VENV)/run.stamp  ## Watch a leak being caught on simulated GPUs (a minute and a half)
	@$(BIN)/gpuwatchctl demo

fakenvml: $(VENV)/run.stamp  ## Build the stand-in for the NVIDIA library (needs cc)
	@$(RUN) tests/fakenvml/build.py build/fakenvml

test: $(VENV)/dev.stamp  ## Run all tests (JOBS=1: one after the other; PACKAGES=1: also those that install packages)
	@PACKAGES=$(PACKAGES) $(PYTEST)

test-quick: $(VENV)/dev.stamp  ## Run the tests that need nothing but Python, in a few minutes
	@$(PYTEST) -m "$(SMALL)"

coverage: $(VENV)/dev.stamp  ## Run the quick tests and list what no test of them enters (ARGS=tests/cli: of one folder)
	@$(PYTEST) -m "$(SMALL)" --cov --cov-report=term-missing:skip-covered $(ARGS)

lint: $(VENV)/dev.stamp  ## Check style, types, import direction and the figures of shape
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell gpuwatchd packaging tests docs contrib README.md CHANGELOG.md CONTRIBUTING.md .github
	@$(BIN)/zizmor --quiet --offline --persona pedantic .github
	@$(RUN) -m tests.shape

requirements: $(VENV)/dev.stamp  ## Print each row of the checklist with its state and its tests
	@$(RUN) -m tests.requirements

shape: $(VENV)/dev.stamp  ## Measure the code base beside its limits (ARGS=--verbose, --write, --path)
	@$(RUN) -m tests.shape $(ARGS)

format: $(VENV)/dev.stamp  ## Reformat the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

campaign: $(VENV)/dev.stamp  ## Try very often what must never happen (PARTS=... of them; ARGS=--short)
	@$(RUN) -m tests.campaign $(PARTS) $(ARGS)

bench: $(VENV)/bench.stamp  ## Print speed, size and faults beside peers (in one run)
	@$(RUN) -m tests.bench

bench-detect: $(VENV)/dev.stamp  ## Compare how well leaks are found, by us and by others (half an hour)
	@$(RUN) -m tests.scenarios.bench --blind --knowledge tests.scenarios.corpus_knowledge

train: $(VENV)/dev.stamp  ## Fit how much evidence an alert needs, on the tuning families
	@$(RUN) -m tests.scenarios.train --write

docs: $(VENV)/dev.stamp  ## Write the reference, the man pages and the pictures from the code
	@$(RUN) -m tests.docs.generate
	@$(RUN) -m tests.docs.pictures
	@$(RUN) -m tests.docs.screens
	@$(RUN) -m tests.docs.plots
	@$(RUN) -m tests.docs.page_pictures

site: $(VENV)/dev.stamp  ## Build the documentation as a site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .mkdocs.yml
	@echo "build/site/index.html"

.PHONY: version dist pins formula release-check release
version: $(VENV)/dev.stamp  ## Set the version of the next release, and date its changelog: VERSION=1.2.0rc1
	@$(RUN) packaging/set_version.py "$(VERSION)"

dist: $(VENV)/dev.stamp  ## Build the wheel and the source distribution, twice, and compare
	@$(RUN) packaging/dist.py --check

pins: $(VENV)/dev.stamp  ## Write packaging/constraints*.txt from pyproject.toml (asks the index)
	@$(RUN) packaging/pins.py

.PHONY: deb apt-repo
SUITE ?= bookworm
deb: $(VENV)/dev.stamp  ## Build the Debian package of a suite: SUITE=bookworm, trixie or noble
	@PYTHON=$(RUN) packaging/debian/build $(SUITE) dist

REPO ?= build/apt
apt-repo:  ## Make a signed repository of the packages in dist: KEY=... (URL=... where it will be)
	@URL="$(URL)" packaging/debian/apt-repo $(REPO) "$(KEY)" dist/gpuwatchd_*.deb

formula: $(VENV)/dev.stamp  ## Write the Homebrew formula (URL= of the release's files, HOMEPAGE=)
	@$(RUN) packaging/formula.py --url "$(URL)" --homepage "$(HOMEPAGE)"

release-check: $(VENV)/dev.stamp  ## Say whether this tree can be released, and what mends it
	@$(RUN) packaging/release_check.py $(if $(KEY),--sign "$(KEY)")

SUITES = $(shell awk '/^[a-z]/ {print $$1}' packaging/debian/suites)
release: release-check  ## The same, then all that a release has in dist, with SHA256SUMS (SUITES= KEY= URL= HOMEPAGE=)
	@for suite in $(SUITES); do \
	  WHEEL=$$(echo dist/*.whl) PYTHON=$(RUN) packaging/debian/build $$suite dist || exit 1; done
	@cd dist && sha256sum gpuwatchd[-_]* >SHA256SUMS
	@$(if $(KEY),gpg --batch --yes --armor --local-user "$(KEY)" --detach-sign dist/SHA256SUMS,echo "unsigned: KEY= names whose key signs")
	@$(if $(URL),$(MAKE) --no-print-directory formula,echo "no Homebrew formula: URL= and HOMEPAGE= are addresses that it names")

clean:  ## Remove what the targets above have made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
