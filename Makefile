# `make help` lists what there is.  Everything lives in .venv and .sluice, both git-ignored.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SPARK_ARCHIVE := $(VENV)/spark.jsa
# `make older-spark`: a Spark of its own, and behind it the other libraries of .venv.
SPARK := 4.1.4
TESTS := tests/spark
OLDER := .sluice/spark-$(SPARK)
# `make older-airflow`: an Airflow of its own, and beside it all of requirements-dev.in.
AIRFLOW := 3.1.8
OLDER_AIRFLOW := .sluice/airflow-$(AIRFLOW)
# PySpark before 4.2 leaves its sockets to Python's garbage collection.
LEFT_OPEN := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

CORE_TESTS := tests/unit/core tests/property/core tests/conformance

# A folder in memory, where the machine has one: a tenth of the tier's time was waiting for a disk.
IN_MEMORY := $(firstword $(wildcard /dev/shm) $(TMPDIR) /tmp)

# Of what is installed: a third of the bytes.
NOT_IMPORTED := /(tests|mypy|mypyc|pip|setuptools|pkg_resources|matplotlib|mpl_toolkits|fontTools|hive_metastore)/

unexport PYTHONDONTWRITEBYTECODE # Each process of a test would compile the tree anew.
COMPILED ?= --compile-bytecode
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --no-loadscope-reorder
PYTEST := $(BIN)/pytest -q $(PARALLEL)

SEEDS ?= 10000
EXAMPLES ?= 25
ROWS ?= all
KILLS ?= 6
SECONDS_OF_SOAK ?= 3600
PIPELINE ?= auctions
INPUT ?=
ALLOWLIST ?=
EVENTS ?=
PARAMS ?=
BESIDE ?=
export WORKLOAD ENGINES REPETITIONS SCALE QUICK RECORD
DEMO_PARAMS = $(if $(INPUT),--param "input=$(INPUT)") $(if $(ALLOWLIST),--param "allowlist=$(ALLOWLIST)") \
	$(if $(EVENTS),--param "events=$(EVENTS)") $(foreach pair,$(PARAMS),--param "$(pair)")

.PHONY: help
help:  ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

.PHONY: setup
setup: $(READY)  ## Create .venv with everything in it, `sluice` included

$(READY): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: sluice needs Python 3.11 or newer as $(PYTHON); install it, or run make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
		echo "error: $(PYTHON) cannot create a virtual environment; on Debian: sudo apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "installing into $(VENV) (1.2 GB; a minute or two)"
	@$(BIN)/uv pip install --quiet $(COMPILED) --python $(BIN)/python --override overrides.txt -r requirements-dev.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

.PHONY: archive bytecode
archive: $(SPARK_ARCHIVE)

bytecode: $(READY)
	@$(BIN)/python -m compileall -q -x '$(NOT_IMPORTED)' $(VENV)/lib include plugins harness bench > /dev/null || true # Templates are no Python.
	@$(PYTEST) -n 0 --collect-only tests > /dev/null || true # It has a bytecode of its own.

$(SPARK_ARCHIVE): $(READY)
	@$(BIN)/python -m harness.spark_archive

.PHONY: demo
demo: setup  ## Run PIPELINE (auctions, or ssh_threats with INPUT and ALLOWLIST) on Airflow, Spark, S3
	@$(BIN)/python -m sluice.devstack demo $(PIPELINE) $(DEMO_PARAMS)

.PHONY: up down status
up: setup  ## Start S3, Spark and Airflow, and keep them running
	@$(BIN)/python -m sluice.devstack up

down:  ## Stop everything that up or demo started
	@test ! -x $(BIN)/python || $(BIN)/python -m sluice.devstack down

status: setup  ## Show what runs, and where
	@$(BIN)/python -m sluice.devstack status

.PHONY: test unit coverage sim fuzz properties slow contract nexmark bench bench-quick bench-charts bench-finalize bench-scaling bench-flink bench-airflow bench-idle bench-pages bench-connectors pictures chaos kills soak cluster e2e older-spark older-airflow debezium kafka lake s3 answers package check tree dist lock docs docs-lock tutorial
test: $(SPARK_ARCHIVE)  ## Run every tier once, WORKERS (3) files at a time
	@$(MAKE) --no-print-directory coverage
	@$(PYTEST) $(CORE_TESTS:%=--ignore=%)

unit: setup  ## Run tests/unit: no process, no server; for every save of a file
	@TMPDIR=$(IN_MEMORY) $(PYTEST) -n logical -o tmp_path_retention_count=1 tests/unit

coverage: setup  ## Run the tests that prove the pure core; every branch of it is to be taken
	@$(BIN)/coverage erase
	@SLUICE_EXAMPLES=1 $(BIN)/coverage run -m pytest -q $(PARALLEL) $(CORE_TESTS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --fail-under=100 --skip-covered --show-missing

sim: setup  ## Play SEEDS worlds (10,000) in which everything fails, and plant faults that it must see
	@$(BIN)/python -m tests.simulation $(SEEDS)
	@$(BIN)/python -m tests.simulation --mutations

fuzz: setup  ## Play PLANS random pipelines (2,500) beside batch SQL, mistakes and planted faults: 25 minutes on two processors; a night: PLANS="80000 --from 1000000"
	@$(BIN)/python -m tests.fuzz $(PLANS)
	@$(BIN)/python -m tests.fuzz --refusals 2000
	@$(BIN)/python -m tests.fuzz --mutations

properties: setup  ## Draw EXAMPLES times (25) as many examples as each property asks for; the check draws a sixth
	@SLUICE_SLOW=all SLUICE_EXAMPLES=$(EXAMPLES) SIM_SEEDS=100 $(PYTEST) tests/property tests/unit tests/testing/test_spark_code.py tests/spark/test_sql.py

slow: setup  ## The tests that make test leaves out, for it plays the like of each; half an hour
	@SLUICE_SLOW=all $(PYTEST) -m slow tests

contract: setup  ## Every case of the contract suites on S3, too
	@SLUICE_SLOW=all SLUICE_CONTRACT=all $(PYTEST) tests/contract

answers: setup  ## Each request of a checkpoint, answered in each wrong way, at each place; an hour
	@SLUICE_SLOW=all SLUICE_CONTRACT=all $(BIN)/pytest -q -n 0 tests/contract/test_answers.py

nexmark: setup  ## The Nexmark queries cut into 1, 7 and 40 epochs, for 1 and 3 subtasks; minutes
	@SLUICE_NEXMARK=all $(BIN)/pytest -q tests/spark/test_nexmark.py

bench: setup  ## Beside Spark Structured Streaming, Flink, DuckDB and Polars; WORKLOAD=name runs one
	@$(BIN)/python -m bench.run

bench-quick: setup  ## The same with every row at a twentieth of its size, a quarter of an hour
	@$(BIN)/python -m bench.run --quick

bench-charts: setup  ## Draw the history of the benchmark into docs/images, as SVG
	@$(BIN)/python -m bench.charts

bench-finalize: setup  ## Finalize at 26 and 1,000 subtasks, in memory and on S3: time, requests, bytes
	@$(BIN)/python -m bench.finalize

bench-scaling: setup  ## What a checkpoint costs at 10 to 10,000 subtasks and 100 to 100,000 files; a quarter of an hour
	@$(BIN)/python -m bench.scaling

bench-flink: setup  ## Install Flink (750 MB) for make bench, into .sluice/flink-venv
	@test -x .sluice/flink-venv/bin/python || $(PYTHON) -m venv .sluice/flink-venv
	@$(BIN)/uv pip install --quiet --python .sluice/flink-venv/bin/python apache-flink==2.3.0

chaos: setup kills  ## Break everything, everywhere, and watch the jobs heal; 2 hours.  ROWS="name name" plays some
	@SLUICE_CHAOS="$(ROWS)" $(BIN)/pytest -q -s tests/chaos

kills: setup  ## KILLS schedules (6) of processes that die, or freeze, for each source with each sink; half an hour
	@SLUICE_KILLS="$(KILLS)" $(BIN)/pytest -q -s tests/exactly_once

soak: setup  ## An hour of one job with kills, savepoints, restores and vacuums: rows exact, nothing grows
	@$(BIN)/python -m tests.soak --seconds $(SECONDS_OF_SOAK)

cluster: setup  ## A Spark cluster: machines are lost, jobs are rescaled, stages submitted; a quarter of an hour
	@SLUICE_CLUSTER=all $(BIN)/pytest -q tests/cluster tests/airflow/test_submitting_to_a_cluster.py tests/e2e/test_submitted.py

bench-airflow: setup  ## A checkpoint's DAG run beside an equal one of empty tasks, run by run
	@$(BIN)/python -m bench.airflow_run

bench-idle: setup  ## What 0, 1, 20 and 100 idle pipelines cost in Airflow, and how soon a run comes; half an hour
	@$(BIN)/python -m bench.airflow_idle

bench-pages: setup  ## How soon the checkpoint pages open over 1,000 checkpoints and subtasks, in a folder and on S3; minutes
	@$(BIN)/python -m bench.pages

bench-connectors: setup  ## Each connector beside its plain library, read and written
	@for name in files files_table kafka kafka_json postgres iceberg; do echo "== $$name"; $(BIN)/python -m bench.connectors.$$name || exit 1; done
	@$(BIN)/python -m bench.sources

e2e: setup  ## Every end-to-end test on real Airflow, Spark and S3; minutes
	@SLUICE_E2E=all $(BIN)/pytest -q tests/e2e

older-spark: setup  ## The Spark tier on SPARK (4.1.4), or TESTS of it, in .sluice/spark-SPARK; half an hour
	@test -x $(OLDER)/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python $(OLDER)
	@$(BIN)/uv pip install --quiet --python $(OLDER)/bin/python pyspark==$(SPARK)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(echo $(OLDER)/lib/python*/site-packages)/behind.pth"
	@SLUICE_SLOW=all PYTHONPATH=include:plugins:. $(OLDER)/bin/python -m pytest -q -n 0 $(LEFT_OPEN) $(TESTS)

older-airflow: setup  ## The Airflow tier on AIRFLOW (3.1.8), in .sluice/airflow-AIRFLOW; ten minutes
	@test -x $(OLDER_AIRFLOW)/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python $(OLDER_AIRFLOW)
	@echo "apache-airflow==$(AIRFLOW)" > $(OLDER_AIRFLOW).txt
	@$(BIN)/uv pip install --quiet --python $(OLDER_AIRFLOW)/bin/python --override overrides.txt --override $(OLDER_AIRFLOW).txt -r requirements-dev.in
	@$(BIN)/uv pip install --quiet --python $(OLDER_AIRFLOW)/bin/python --no-deps -e .
	@$(OLDER_AIRFLOW)/bin/python -m pytest -q -n 2 -W ignore tests/airflow # Its libraries are newer, and warn of it.

debezium: setup  ## What a real Debezium, fetched by Maven, sends of a real PostgreSQL; minutes
	@$(BIN)/python -m harness.debezium
	@$(BIN)/pytest -q -n 0 tests/testing/test_debezium.py -k real

kafka: setup  ## The Kafka connectors on a real Apache Kafka, fetched by Maven
	@$(BIN)/python -m harness.kafka_server
	@$(BIN)/pytest -q -n 0 tests/contract/test_kafka_*.py -k real

lake: setup  ## The Iceberg sink on a real REST catalog, fetched by Maven
	@$(BIN)/python -m harness.iceberg_rest
	@$(BIN)/pytest -q -n 0 tests/contract/test_iceberg_sink.py tests/contract/test_answers.py -k rest

jdbc: setup  ## What Spark reads of a real PostgreSQL, by a driver that Maven fetches
	@$(BIN)/python -m harness.postgres_jdbc
	@$(BIN)/pytest -q -n 0 tests/spark/test_spark_read_postgres.py

s3: setup  ## What sees S3 in the contract suites on versitygw, built by Go; minutes
	@$(BIN)/python -m harness.versitygw
	@SLUICE_TEST_S3=versitygw $(BIN)/pytest -q -n 0 tests/contract -m s3

package: setup  ## Install the wheel and all it may use, newest and oldest, and follow docs/own-airflow.md; minutes
	@SLUICE_PACKAGE=highest $(BIN)/pytest -q tests/package
	@SLUICE_PACKAGE=lowest $(BIN)/pytest -q tests/package/test_own_project.py

tree: setup  ## Count the tree room by room, beside the commit BESIDE
	@$(BIN)/python -m bench.tree $(if $(BESIDE),--beside $(BESIDE))

dist: setup  ## Build the sdist and the wheel into dist/, and check them
	@rm -rf dist
	@$(BIN)/uv build --quiet --out-dir dist
	@$(BIN)/uv tool run --quiet twine check --strict dist/*

check: setup  ## Lint, types, import contracts, the order of the tree
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PYTHONPATH=include:plugins $(BIN)/lint-imports --no-logo
	@$(BIN)/python -m bench.tree --check

lock: setup  ## Compile requirements*.in into requirements*.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --override overrides.txt --no-annotate --no-header requirements.in -o requirements.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --override overrides.txt --no-annotate --no-header -c requirements.txt requirements-dev.in -o requirements-dev.txt

DOCS := .sluice/docs-venv

docs:  ## Build the documentation as a site, .sluice/site/index.html; every link is checked
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict  # With --quiet it would pass warnings over.
	@echo "open .sluice/site/index.html"

pictures: setup  ## Take the documentation's screenshots anew, by a headless Chromium; minutes
	@$(BIN)/python -m harness.pictures

docs-lock: setup  ## Compile requirements-docs.in into requirements-docs.txt
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header requirements-docs.in -o requirements-docs.txt

tutorial: setup  ## Follow the tutorial to the letter, in a folder of its own; minutes
	@SLUICE_TUTORIAL=all $(BIN)/pytest -q tests/docs/test_tutorial.py
