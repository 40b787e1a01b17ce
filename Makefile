# Tidegate. `make demo` and `make test` set up everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

CLASSES := $(VENV)/spark-classes.jsa

.DEFAULT_GOAL := help
.PHONY: help setup lock demo demo-kafka test test-fast test-browser test-spark test-real lint format docs goldens screenshots bench nexmark-flink clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# uv installs the same packages in a third of the time; without it, pip does.
INSTALL_UV := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Tidegate needs Python 3.11 or newer; set PYTHON=/path/to/python3.11."; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL_UV) \
		&& $(BIN)/uv pip install --quiet --python $(BIN)/python --constraints constraints.txt --build-constraints constraints.txt \
			-e '.[dev,docs]' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $(READY)

# The classes of Spark in one file, from which the tests start Java faster.
$(CLASSES): $(READY)
	@$(BIN)/python -m tests.support.java

setup: $(READY) ## Create .venv with everything in it

lock: | $(BIN)/python ## Update constraints.txt to the newest versions that pyproject.toml allows
	$(INSTALL_UV)
	$(BIN)/uv pip compile pyproject.toml --quiet --all-extras --universal --upgrade \
		--custom-compile-command 'make lock' --no-annotate --output-file constraints.txt

demo: $(READY) ## Run a real pipeline and watch its windows close
	@$(BIN)/tidegate run examples/demo.sql --until-end --fresh
	@printf '%s\n' '' 'What to try next:' \
		'  $(BIN)/python examples/shop/rows.py            clicks and orders of a shop, and eight streams over them' \
		'  $(BIN)/tidegate run examples/shop/shop.sql --console   in the browser; Ctrl-C stops it' \
		'  $(BIN)/tidegate explain examples/demo.sql      what each step keeps, and for how long' \
		'  $(BIN)/tidegate init my_project                a small project with a view and a test' \
		'  $(BIN)/tidegate sql                            talk to it: help shows how' \
		'  docs/tutorial/first_stream.md                  the first stream in ten minutes'

demo-kafka: $(READY) ## Kafka to PostgreSQL, with a broker and a database of its own
	@$(BIN)/python -m examples.kafka_to_postgres

test: $(CLASSES) ## Everything: lint, types, layers, all tests
	@# mypy has one thread: the fast tests take the other core.
	@$(MAKE) --no-print-directory --output-sync=target -j 2 lint test-fast
	@$(MAKE) --no-print-directory test-browser test-spark test-real

test-fast: $(READY) ## The tests that need neither Spark nor another system
	$(BIN)/python -m pytest -m 'not spark and not real and not browser' -n auto

test-browser: $(CLASSES) ## The console in a Chromium, where there is one
	@if command -v chromium || command -v chromium-browser; then $(BIN)/python -m pytest -m browser; \
		else echo "no Chromium was found (apt install chromium): the console was not tested in a browser"; fi

test-spark: $(CLASSES) ## The tests on a local Spark, two at a time
	$(BIN)/python -m pytest -m 'spark and not real' -n 2 --dist loadfile --no-loadscope-reorder

test-real: $(CLASSES) ## With a real broker, database, cluster and object store, which it starts
	$(BIN)/python -m pytest -m real -n 2 --dist loadfile --no-loadscope-reorder

lint: $(READY) ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## The book as a site in site/; warnings and dead links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

goldens: $(READY) ## Write the golden files anew; read the diff
	$(BIN)/python -m pytest -m 'not spark and not real and not browser' --regenerate

screenshots: $(READY) ## The pictures of the console in docs/images
	$(BIN)/python -m docs.screenshots

bench: $(READY) ## Compare with plain PySpark
	$(BIN)/python benchmarks/stateless.py

nexmark-flink: $(READY) ## Install Flink in a separate environment, to compare NEXMark results
	$(BIN)/python -m benchmarks.nexmark.flink_setup .flink

clean: ## Remove what was built
	rm -rf $(VENV) .flink .mypy_cache .ruff_cache .pytest_cache .tidegate build site *.egg-info
