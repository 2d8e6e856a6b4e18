# The commands of a contributor. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:

BIN := .venv/bin
export TANDEM_CACHE ?= $(HOME)/.cache/tandem
# pip, pytest and mypy keep their caches outside of the tree, too.
# Test processes compile each module once, whatever the shell is set to.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_ARGS ?=

##@ Use it

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo

.PHONY: demo
demo: setup ## Set up and run the main job: real data, real Spark, compaction while rows change
	@$(BIN)/python examples/flights/demo.py

.PHONY: demo-replace
demo-replace: setup ## Replace a month of flights while a stream appends to it and a compaction runs
	@PYTHONPATH=examples/flights $(BIN)/python examples/replace/demo_replace.py

.PHONY: demo-cluster
demo-cluster: setup ## The main job by kubectl apply: real API server and etcd (builds them once: 6 min)
	@tools/build-kubernetes.sh >/dev/null
	@PYTHONPATH=tools:examples/flights $(BIN)/python examples/cluster/demo_cluster.py

.PHONY: cluster
cluster: setup ## Start the same parts, until Ctrl-C: API server, etcd, operator, tandem dev
	@tools/build-kubernetes.sh >/dev/null
	@PYTHONPATH=tools:examples/flights $(BIN)/python examples/cluster/demo_cluster.py --stay

.PHONY: setup
setup: .venv/.installed ## Only set up: installs .venv/bin/tandem
	@tools/setup-java.sh
	@$(BIN)/python tools/spark_setup.py

.venv/.installed: requirements/dev.lock requirements/part-copy.lock pyproject.toml tools/setup-python.sh
	@tools/setup-python.sh

##@ Work on it

.PHONY: test
test: setup ## Set up and run all tests (one folder: make test PYTEST_ARGS=tests/spec)
	@# In the background: the test that needs it waits for it, and fails if there is none.
	@tools/setup-browser.sh >/dev/null &
	@$(BIN)/python tools/setup_tests.py
	@# Three on two cores: with two, the cores are idle while tests wait (decision 0157).
	@$(BIN)/pytest -n 3 --dist loadscope $(PYTEST_ARGS)

.PHONY: image
image: setup ## Build the image, inspect it, run jobs in it (needs podman or docker; cold: 5 min)
	@tools/build-image.sh >/dev/null
	@tools/check-image.sh

.PHONY: storm
storm: setup ## Kill the operator at every point; 500 resources at once; a minute's storm at an index
	@tools/build-kubernetes.sh >/dev/null
	@$(BIN)/pytest -n 2 --dist worksteal tests/kube/storm.py $(PYTEST_ARGS)
	@TANDEM_STORM_S=$${TANDEM_STORM_S:-60} $(BIN)/pytest -o timeout=1800 tests/index/test_index_storm.py

.PHONY: upgrade
upgrade: setup ## Operations left half-way by the release before, and by us before a downgrade
	@$(BIN)/pytest -n 2 --dist loadfile -o python_files='upgrade_*.py' -o timeout=1800 tests/upgrade $(PYTEST_ARGS)

.PHONY: matrix
matrix: setup ## Every foreign writer with every operation; every case; the big simulation (an evening)
	@$(BIN)/python tools/spark_setup.py --tests
	@tools/build-etcd-clock.sh >/dev/null
	@tools/fetch-golden-tables.sh >/dev/null
	@PYTHONPATH=operator:tests:tools $(BIN)/python -m support.matrix.record --begin
	@# One file may be a whole process's work, where it has Spark; cases without it are shared out.
	@$(BIN)/pytest -n 2 --dist loadfile -o python_files='matrix_*.py' tests $(PYTEST_ARGS)
	@TANDEM_EVERY_CASE=1 $(BIN)/pytest -n 2 --dist worksteal -m 'not (hypothesis or matrix or part)' \
	  tests/badinput/test_foreign_tables.py tests/badinput/test_spark_in_trouble.py \
	  tests/chart/test_chart_installed.py tests/cli/test_cli_scan.py tests/crash/test_zombies_on_disk.py \
	  tests/delta/test_cleanup.py tests/delta/test_delta_against_spark.py tests/delta/test_dv.py \
	  tests/delta/test_replay.py \
	  tests/delta/test_stats.py tests/index \
	  tests/kube/test_children_values.py tests/kube/test_faults_*.py tests/kube/test_log_appends.py tests/kube/test_scenarios.py \
	  tests/mergelog tests/operations/test_rows_in_scope.py \
	  tests/planning tests/pruning tests/reconcile tests/rowgroups/test_row_ids.py \
	  tests/security/test_locations.py tests/security/test_templates_arrive.py \
	  tests/simulator/test_catalog.py tests/simulator/test_crash_points.py tests/simulator/test_edits.py \
	  tests/simulator/test_two_drivers.py tests/simulator/test_zombies.py tests/spark/test_column_mapping.py \
	  tests/spark/test_indexed_read.py tests/spark/test_local_merge_model.py \
	  tests/spark/test_local_statement.py tests/spark/test_merge_job.py tests/statements \
	  tests/storage/test_paths.py tests/tables tests/timeline
	@TANDEM_EVERY_CASE=1 $(BIN)/pytest -n 2 --dist worksteal -m 'hypothesis or matrix or part' tests $(PYTEST_ARGS)
	@PYTHONPATH=operator:tests:tools $(BIN)/python -m support.matrix.record
	@$(BIN)/python tools/generate_docs.py
	@$(BIN)/pytest -o python_files='timed_*.py' tests/matrix
	@PYTHONPATH=operator:tests $(BIN)/python -m reconcile.search \
	  --small 200000 --without-vectors 100000 --random 100000 --processes 2
	@for kind in '' --cleaning --cut --expiring; do \
	  PYTHONPATH=operator:tests $(BIN)/python -m mergelog.search --seeds 0:3000 $$kind || exit 1; done
	@PYTHONPATH=operator:tests $(BIN)/python -m simulator --seeds 0:3000 --processes 2
	@PYTHONPATH=operator:tests $(BIN)/python -m simulator --logged --seeds 0:1000 --processes 2
	@PYTHONPATH=operator:tests $(BIN)/python -m simulator --managed --seeds 0:500 --processes 2

.PHONY: search
search: setup ## Every history of two and three operations, with and without vectors (hours)
	@PYTHONPATH=operator:tests $(BIN)/python -m reconcile.search --all --random 200000 --processes 2

.PHONY: emulators
emulators: setup ## Azure and GCS by their emulators: put-if-absent, listings, a compaction (needs npm)
	@tools/build-emulators.sh >/dev/null
	@$(BIN)/pytest -o python_files='emulated_*.py' tests/emulators $(PYTEST_ARGS)

.PHONY: mutants
mutants: setup ## Plant one bug at a time: a check must fail for each (long)
	@PYTHONPATH=operator:tests $(BIN)/python -m mutants.run

.PHONY: .e2e-needs
.e2e-needs:
	@$(if $(KUBECONTEXT),,$$(tools/find-python.sh) tools/single_node/needs.py)

.PHONY: e2e
e2e: .e2e-needs setup ## End to end: a whole cluster of one node (root), or KUBECONTEXT=name; 25 minutes cold
	@tools/build-kubernetes.sh >/dev/null
	@tools/build-versitygw.sh >/dev/null
	@tools/build-helm.sh >/dev/null
	@tools/build-cluster.sh $(if $(KUBECONTEXT),spark-operator) >/dev/null
	@$(BIN)/pytest -o python_files='e2e_*.py' -o timeout=1800 tests/e2e $(PYTEST_ARGS)

.PHONY: .e2e-images-needs
.e2e-images-needs:
	@$(if $(E2E_IMAGE_ARCHIVE),,$$(tools/find-python.sh) tools/single_node/needs.py images)

.PHONY: e2e-images
e2e-images: .e2e-images-needs setup ## Archives of the images that `make e2e KUBECONTEXT=…` needs; prints their paths
	@PYTHONPATH=operator:tests:tools $(BIN)/python -c \
	  'from e2e.target import image_archives; print(*image_archives(), sep="\n")'

.PHONY: check
check: .venv/.installed ## Lint, format, types, layers, size by package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy operator spark_apps tests tools
	PYTHONPATH=operator $(BIN)/lint-imports
	$(BIN)/python tools/size_budget.py

.PHONY: format
format: .venv/.installed ## Format the code and apply the linter's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: .venv/.installed ## Regenerate the generated pages of docs/, and crds/
	@$(BIN)/python tools/generate_docs.py

.PHONY: bench
bench: setup ## Measure against other engines; results go to docs/benchmarks.md
	@$(BIN)/python tools/spark_setup.py --tests
	@$(BIN)/python benchmarks/run.py

.PHONY: hudi
hudi: setup ## Compare merge-on-read with Apache Hudi 1.2, row by row (1 GB of downloads, once)
	@PYTHONPATH=operator:tests $(BIN)/python -m mergelog.hudi.record
	@$(BIN)/pytest tests/mergelog/hudi

.PHONY: lock
lock: .venv/.installed ## Resolve requirements/*.in into the lock files (needs uv)
	@tools/lock.sh

.PHONY: clean
clean: ## Remove the environment and all caches of this tree
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
