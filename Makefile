# Two commands for newcomers, `make demo` and `make test`; the rest is for those who change things.

PYTHON ?= python3
PORT ?= 8000
OPEN ?= 1
# Everything that is set up lives here; `make clean` forgets it.
HOME_DIR := .colibri
VENV := $(HOME_DIR)/venv
TOX := $(HOME_DIR)/tox/bin/tox
SOURCES := $(shell find rust/src python/colibri web/src -type f -not -path '*/static/*' -not -name '*.pyc' -not -name '*.so')

.PHONY: help demo test web bench fmt tools clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

tools:
	@$(PYTHON) scripts/check_tools.py

demo: tools $(VENV)/installed ## build, start the server on the embedded model (PORT=8000 OPEN=1 ARGS=)
	$(VENV)/bin/colibri $(if $(filter 0,$(OPEN)),serve,web) --port $(PORT) $(ARGS)

test: tools $(TOX) ## run the whole test matrix (ENVS=lint,type for a part of it)
	$(TOX) $(if $(ENVS),-e $(ENVS))

web: tools ## build the page into the package; the next `make demo` installs it
	$(PYTHON) scripts/build_page.py
	@rm -f $(VENV)/installed

bench: tools $(VENV)/installed ## measure the demo model, as JSON
	$(VENV)/bin/python benchmarks/demo.py

fmt: tools $(TOX) ## format everything
	$(TOX) -e fmt

clean: ## remove what was set up and built
	rm -rf $(HOME_DIR) .tox target web/node_modules web/dist python/colibri/static

$(VENV)/installed: $(SOURCES) Cargo.toml Cargo.lock pyproject.toml web/package-lock.json
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo 'Building the page and the engine; on two cores about four minutes the first time'
	$(VENV)/bin/python -m pip install --disable-pip-version-check --progress-bar off .
	@touch $@

$(TOX):
	$(PYTHON) -m venv $(HOME_DIR)/tox
	$(HOME_DIR)/tox/bin/python -m pip install --quiet --disable-pip-version-check 'tox>=4.30,<5'
