# The verbs of this project: `make` lists them. ARGS is passed on to what a verb runs, e.g.
# make demo ARGS="--seconds 20 --json", make unit ARGS="-k token".

MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
# Processes of `make test`. Its tests wait more than they compute; integration/conftest.py says which stay together.
WORKERS ?= 3
PROVISION = $(PYTHON) integration/provision.py
BIN = .venv/bin
# A folder counts from the day that there is Python in it.
TYPED = $(foreach root,freshness invalidator appclient spark tests integration benchmarks examples docs,\
	$(if $(shell find $(root) -name '*.py' -print -quit 2>/dev/null),$(root)))

.PHONY: help
help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.* ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

.PHONY: setup
setup: ## get everything the other verbs need: .venv, MariaDB, MySQL, memcached, Redis, Java
	@$(PROVISION) all

.PHONY: venv
venv:
	@$(PROVISION) venv

.PHONY: servers
servers: venv
	@$(PROVISION) databases mysql

.PHONY: demo
demo: ## show a cache that stays fresh beside two that do not, on private servers
	@$(PROVISION) venv databases $(if $(findstring mysql,$(ARGS)),mysql) $(if $(findstring vitess,$(ARGS)),mysql vitess)
	@$(BIN)/python -m examples.demo $(ARGS)

.PHONY: examples
examples: setup ## the example applications with each cache, 200,000 reads each; writes docs/scoreboard.md
	@$(BIN)/python -m examples.scoreboard --write $(ARGS)

.PHONY: test
test: setup lint types architecture ## all checks, and all tests but the slow ones
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not vitess and not kafka" $(ARGS)

.PHONY: slow
slow: setup ## the tests that take a minute and more or need a browser, which `make test` leaves out
	@$(PROVISION) browser
	@$(BIN)/python -m pytest -n $(WORKERS) -m "slow and not long" $(ARGS)

.PHONY: long
long: setup ## the slow tests that take minutes, and of the other flavor, which `make slow` leaves out
	@$(BIN)/python -m pytest -n $(WORKERS) -m long $(ARGS)

# Tests of the servers, and of what depends on their versions.
NEWER = servers freshness stream $(addprefix appclient/test_, cache.py composite_keys.py copies.py keys.py large_values.py \
	lists.py read_your_writes.py unique_keys.py) $(addprefix invalidator/test_, binlog.py checkup.py failover.py \
	fill_from_log.py foreign_keys.py misconfigurations.py preflight.py process.py promotion.py replica_choice.py \
	replicas.py row_digest.py rowdecoder.py)
.PHONY: newer
newer: setup ## tests of the stream, the library and the invalidator on later servers, which are got first
	@$(PROVISION) newer
	@$(BIN)/python -m pytest --newer -n $(WORKERS) -m "not slow and not vitess and not kafka" -k "not mysql" \
		$(addprefix integration/,$(NEWER)) $(ARGS)

# Those that need no more of a server than MySQL 8.0 has from the beginning on.
OLDER = servers/test_servers.py stream/test_update_stream.py stream/test_merged_stream.py \
	appclient/test_cache.py appclient/test_composite_keys.py appclient/test_lists.py \
	appclient/test_read_your_writes.py invalidator/test_process.py invalidator/test_failover.py \
	invalidator/test_fill_from_log.py invalidator/test_replica_choice.py invalidator/test_checkup.py \
	invalidator/test_binlog.py::test_a_number_behind_a_year_is_right_or_raises_its_table
.PHONY: older
older: setup ## some of them on MySQL 8.0.15, of before replication was renamed, which is got first; needs Maven
	@$(PROVISION) older
	@$(BIN)/python -m pytest --older -n $(WORKERS) -m "not slow and not vitess and not kafka" \
		-k "mysql and not mariadb" $(addprefix integration/,$(OLDER)) $(ARGS)

.PHONY: vitess
vitess: setup ## the tests on a real Vitess, which is built first where it is not there; needs Go
	@$(PROVISION) vitess
	@$(BIN)/python -m pytest -m vitess integration/vitess/real $(ARGS)

.PHONY: kafka
kafka: setup ## the tests of the publisher on a real Kafka, whose libraries are got first; needs Java
	@$(PROVISION) kafka
	@$(BIN)/python -m pytest -m kafka integration/kafka $(ARGS)

.PHONY: lint
lint: venv ## style and format of the code
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

.PHONY: types
types: venv ## mypy --strict, over the tests too
	@$(BIN)/mypy $(TYPED)

.PHONY: architecture
architecture: venv ## which package may import which
	@$(BIN)/lint-imports

.PHONY: unit
unit: venv ## the tests that need no server, without the simulation
	@$(BIN)/python -m pytest tests --ignore=tests/simulation $(ARGS)

.PHONY: integration
integration: servers ## the tests on real servers
	@$(BIN)/python -m pytest integration $(ARGS)

.PHONY: spark
spark: setup ## the Spark jobs' tests
	@FRESHNESS_AUDIT_WORLDS=1000 $(BIN)/python -m pytest tests/unit/spark integration/spark integration/demo/test_demo_audit.py $(ARGS)

.PHONY: sim
sim: venv ## the simulator: seeds, schedules, exhaustive worlds
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

.PHONY: mutants
mutants: venv ## the code without one defence after the other: does a test notice?
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: bench
bench: servers ## measure, against named baselines
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: docs
docs: venv ## write the tables of docs/ that are made from the code
	@$(BIN)/python -m docs.generate

.PHONY: screenshots
screenshots: setup ## take the pictures of docs/screenshots again, by the tests of the page
	@$(PROVISION) browser
	@$(BIN)/python -m pytest integration/invalidator/test_dashboard.py --screenshots docs/screenshots $(ARGS)

.PHONY: site
site: venv ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build $(ARGS)

.PHONY: dist
dist: venv ## the wheel and the source distribution, in dist/
	@$(BIN)/python -m hatchling build

.PHONY: sbom
sbom: venv ## what the package needs with all extras, in the pinned versions: dist/freshness.cdx.json (CycloneDX)
	@mkdir -p build dist
	@$(BIN)/uv pip compile -q --all-extras --no-annotate --no-header -c requirements.txt \
		pyproject.toml -o build/sbom.txt
	@$(BIN)/cyclonedx-py requirements build/sbom.txt --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/freshness.cdx.json

.PHONY: pins
pins: venv ## make requirements.txt anew from requirements.in
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-strip-extras \
		--custom-compile-command "make pins" $(ARGS) requirements.in -o requirements.txt

.PHONY: clean
clean: ## remove what the verbs made; downloads in .cache stay
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.cache/*' -prune -exec rm -rf {} +
