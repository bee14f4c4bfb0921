# The commands of this checkout. `make` alone lists them.
#
# Each target sets up what it needs first (scripts/bootstrap.sh), which takes minutes once and no time after that.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
RUN := scripts/bootstrap.sh
CONFIG ?= local/flights
TEST_WORKERS ?= 2
CELLS ?= --cells
GPU_KIT_PYTHON ?= 3.12
# make wheels PYTHON=3.12 TORCH=2.8.0 CPU=1   for these, without CUDA; by default for the Python and the torch of the lock, with CUDA
PYTHON :=
TORCH := $(SPARKRING_HOROVOD_TORCH)
CPU := $(SPARKRING_HOROVOD_CPU)

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup:  ## Set up: uv, Java, Python packages, Horovod (other targets do it by themselves)
	@$(RUN)

.PHONY: demo
demo:  ## Run the main job on real flights: prepare, train, evaluate, score, report
	@$(RUN) sparkring demo $(CONFIG)

.PHONY: doctor
doctor:  ## Look at this machine and say what is missing for a job
	@$(RUN) sparkring doctor $(CONFIG)

# Files are dealt out slow folders first: short ones then fill up what is left of the last process's time.
PYTEST := pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test:  ## Run what must pass: lint, types, then all tests, on TEST_WORKERS=2 processes
	@$(RUN) --browser --hosts $(CELLS)
	@$(MAKE) --jobs --output-sync=target lint audit class-archive
	@$(RUN) $(PYTEST) --durations=25 tests/e2e tests/spark tests/cluster tests/parallel tests/unit

.PHONY: test-fast
test-fast:  ## Run in under four minutes: lint, types, tests/unit, one ring, and one prepare, train and score on Spark
	@$(RUN)
	@$(MAKE) --jobs --output-sync=target lint class-archive
	@$(RUN) $(PYTEST) tests/spark/test_kinds.py tests/spark/test_ring.py::test_results_come_back_by_rank_and_nothing_is_left tests/unit

.PHONY: test-unit
test-unit:  ## Run the tests that need neither Spark nor ranks
	@$(RUN) pytest tests/unit

.PHONY: test-nightly
test-nightly:  ## Run what takes too long for every change: tests marked nightly, then a long job under 100 faults
	@$(RUN) --browser --images --hosts
	@$(RUN) $(PYTEST) -m nightly --timeout 3600 --durations=25 tests/e2e tests/spark tests/cluster tests/parallel || \
	    test $$? -eq 5  # pytest's word for none of them
	@$(RUN) python -m benchmarks.soak

.PHONY: test-platforms
test-platforms:  ## Run a job with each platform's versions: Databricks, EMR, Dataproc, PyPI; takes an hour and 20 GB
	@$(RUN) python -m benchmarks.matrix

.PHONY: lint
lint:  ## Check style (ruff) and types (mypy --strict)
	@$(RUN) ruff check .
	@$(RUN) scripts/typecheck.sh

.PHONY: audit
audit:  ## Ask a vulnerability service about every locked package (says so where it cannot be reached)
	@$(RUN) python scripts/audit_dependencies.py

.PHONY: class-archive
class-archive:  ## Make the file of Java's classes that the JVMs of tests map, unless it is there
	@$(RUN) python -m tests.support.class_archive

# The tools of the site are in an environment of their own: they and the product ask for nothing in common. mkdocs' --quiet would make
# strict a word: what it does not print it does not count.
.PHONY: docs
docs:  ## Build the site of docs/ with the Python API into build/site; a broken link fails
	@$(RUN) env UV_PROJECT_ENVIRONMENT=build/docs-tools NO_MKDOCS_2_WARNING=1 \
	    uv run --quiet --frozen --only-group docs mkdocs build
	@echo "built build/site; to read it with its search: python -m http.server --directory build/site"

.PHONY: wheels
wheels:  ## Leave the wheels of sparkring, Horovod and Petastorm in dist/, for plain pip, YARN and Databricks
	@rm -rf dist
	@for project in . third_party/horovod third_party/petastorm; do \
	    echo "building the wheel of $$project"; \
	    $(RUN) env SPARKRING_HOROVOD_TORCH='$(TORCH)' SPARKRING_HOROVOD_CPU='$(CPU)' \
	        uv build --quiet --wheel --out-dir dist $(if $(PYTHON),--python $(PYTHON)) $$project; done
	@rm -f dist/.gitignore; ls -1sh dist/*.whl

.PHONY: gpu-kit
gpu-kit:  ## Fill build/gpu-kit/ with what a check of a GPU needs on a machine without a network (docs/how-to/gpu-check.md)
	@$(RUN) python -m benchmarks.gpu_check.kit build/gpu-kit --python $(GPU_KIT_PYTHON)

.PHONY: clean
clean:  ## Remove what builds, tests and type checks leave behind (.venv and runs/ stay)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -name __pycache__ -not -path './.venv/*' -not -path './.uv/*' -prune -exec rm -rf {} +
