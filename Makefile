# The verbs of this project: `make` lists them. ARGS is passed on to what a verb runs, e.g.
# make demo ARGS="--seconds 20 --json", make unit ARGS="-k token".

MAKEFLAGS += --no-print-directory
# Tests start thousands of processes of Python: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# Spark starts in half the time with classes that are kept, if there are any: integration/provision.py.
export SPARK_SUBMIT_OPTS ?= -XX:SharedArchiveFile=$(CURDIR)/.venv/spark.jsa -Xlog:cds*=off
.NOTPARALLEL:
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
# Processes of tests. Tests on servers wait more than they compute; integration/conftest.py says which stay
# together.
WORKERS ?= 3
PROVISION = $(PYTHON) integration/provision.py
BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest
# A folder counts from the day that there is Python in it.
TYPED = $(foreach root,freshness invalidator appclient spark tests integration benchmarks examples docs,\
	$(if $(shell find $(root) -name '*.py' -print -quit 2>/dev/null),$(root)))

.PHONY: help
help: ## list the verbs
	@awk '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z]+:.* ## / { verb = $$1; sub(":.*", "", verb); sub(/^.* ## /, ""); printf "  %-13s %s\n", verb, $$0 }' \
		$(MAKEFILE_LIST)

##@ Every day

.PHONY: demo
demo: ## show a cache that stays fresh beside three that do not, on private servers
	@$(PROVISION) demo mariadb $(if $(findstring redis,$(ARGS))$(findstring haproxy,$(ARGS)),databases) \
		$(if $(findstring mysql,$(ARGS))$(findstring group,$(ARGS)),mysql) \
		$(if $(findstring vitess,$(ARGS)),dev mysql vitess)
	@$(BIN)/python -m examples.demo $(ARGS)

.PHONY: one
one: dev ## one test, a file or a folder: make one T=tests/unit/freshness/keys/test_placement.py
	@$(PYTEST) -p no:xdist $(or $(T),$(error say which: make one T=tests/unit/freshness/keys/test_placement.py)) $(ARGS)

.PHONY: quick
quick: style unit ## style, types and the unit tests, without a server

.PHONY: test
test: ## what shows that everything works: quick, the simulator, and each area on real servers
	@$(PYTHON) integration/stages.py setup style unit core

.PHONY: full
full: ## everything that a change is checked by, in stages; the slowest tests of each are named at the end
	@$(PYTHON) integration/stages.py

.PHONY: fresh
fresh: ## how long the demo and the tests take in a fresh clone with an empty home folder; VERBS=demo for one of them
	@$(PYTHON) integration/fresh.py $(VERBS)

.PHONY: hour
hour: ## a newcomer's hour: the code blocks of the quickstart and of a framework's page, step by step; ARGS=flask for one
	@$(PROVISION) demo dev mariadb $(if $(findstring mysql,$(ARGS)),mysql)
	@$(BIN)/python -m integration.hour $(ARGS)

##@ Stages and parts of these

.PHONY: setup
setup: ## get what `make test` needs: .venv, MariaDB, MySQL, memcached, Redis, Java
	@$(PROVISION) all
	@$(PROVISION) classes

.PHONY: dev
dev:
	@$(PROVISION) dev

.PHONY: venv
venv:
	@$(PROVISION) venv

.PHONY: style
style: lint types architecture ## style and format, types, which package may import which

.PHONY: lint
lint: dev ## style and format of the code
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

.PHONY: types
types: dev ## mypy --strict, over the tests too
	@$(BIN)/mypy $(TYPED)

.PHONY: architecture
architecture: dev ## which package may import which
	@$(BIN)/lint-imports

.PHONY: unit
unit: dev ## the tests that need no server, no Spark, no simulation and no proof
	@$(PYTEST) -n 2 -m "not rest and not slow and not long" tests --ignore=tests/proof --ignore=tests/repository \
		--ignore=tests/simulation --ignore=tests/unit/spark $(ARGS)

AREAS = tests/proof tests/repository tests/simulation tests/unit/spark integration
FAST = not slow and not long and not vitess and not kafka

.PHONY: core
core: setup ## the tests of the tree, of the proof and the simulator, and of each area on real servers what shows that it works
	@$(PYTEST) -n $(WORKERS) -m "not rest and $(FAST)" $(AREAS) $(ARGS)

.PHONY: rest
rest: setup ## the other tests on real servers and of Spark
	@$(PYTEST) -n $(WORKERS) -m "rest and $(FAST)" $(AREAS) $(ARGS)

.PHONY: integration
integration: setup ## all tests on real servers but the slow ones
	@$(PYTEST) -n $(WORKERS) -m "$(FAST)" integration $(ARGS)

.PHONY: spark
spark: setup ## the Spark jobs' tests
	@FRESHNESS_AUDIT_WORLDS=1000 $(PYTEST) tests/unit/spark integration/spark integration/demo/test_demo_audit.py $(ARGS)

.PHONY: slow
slow: setup ## the tests that take a minute and more or need a browser
	@$(PROVISION) browser
	@$(PYTEST) -n $(WORKERS) -m "slow and not long" $(ARGS)

##@ Servers

.PHONY: vitess
vitess: setup ## the tests on a real Vitess, which is built first if it is missing; needs Go
	@$(PROVISION) vitess
	@$(PYTEST) -m "vitess and not long" integration/vitess/real $(ARGS)

.PHONY: kafka
kafka: setup ## the tests of the publisher on a real Kafka, whose libraries are got first; needs Java
	@$(PROVISION) kafka
	@$(PYTEST) -m kafka integration/kafka $(ARGS)

.PHONY: long
long: setup ## before a release: tests of minutes, on the other flavor, and properties by other examples; needs Go
	@$(PROVISION) vitess
	@$(PYTEST) -n $(WORKERS) -m long $(ARGS)
	@$(PYTEST) -n $(WORKERS) -m hypothesis --hypothesis-profile random tests

.PHONY: foreign
foreign: setup ## before a release: the suites of Django and SQLAlchemy with our adapters and without; ARGS="django basic" for a part
	@$(BIN)/python -m integration.foreign $(ARGS)

# Tests of the servers, and of what depends on their versions.
NEWER = servers freshness stream $(addprefix appclient/test_, cache.py composite_keys.py copies.py keys.py large_values.py \
	lists.py read_your_writes.py unique_keys.py) $(addprefix invalidator/test_, binlog.py checkup.py failover.py \
	fill_from_log.py foreign_keys.py misconfigurations.py preflight.py process.py promotion.py replica_choice.py \
	replicas.py row_digest.py rowdecoder.py)
.PHONY: newer
newer: setup ## before a release: tests of the stream, the library and the invalidator on later servers, which are got first
	@$(PROVISION) newer
	@$(PYTEST) --newer -n $(WORKERS) -m "not slow and not vitess and not kafka" -k "not mysql" \
		$(addprefix integration/,$(NEWER)) $(ARGS)

# Tests that need no more of a server than the first MySQL 8.0 has.
OLDER = servers/test_servers.py stream/test_update_stream.py stream/test_merged_stream.py \
	appclient/test_cache.py appclient/test_composite_keys.py appclient/test_lists.py \
	appclient/test_read_your_writes.py invalidator/test_process.py invalidator/test_failover.py \
	invalidator/test_fill_from_log.py invalidator/test_replica_choice.py invalidator/test_checkup.py \
	invalidator/test_binlog.py::test_a_number_behind_a_year_is_right_or_raises_its_table
.PHONY: older
older: setup ## before a release: some of them on MySQL 8.0.15, of before replication was renamed, and MariaDB 11.4; needs Maven
	@$(PROVISION) older
	@$(PYTEST) --older -n $(WORKERS) -m "not slow and not vitess and not kafka" \
		-k "mysql and not mariadb" $(addprefix integration/,$(OLDER)) $(ARGS)
	@$(PYTEST) --older -n $(WORKERS) -m "not slow and not vitess and not kafka" -k "not mysql" \
		$(addprefix integration/,$(OLDER)) integration/demo/test_demo.py $(ARGS)

##@ Proofs and figures, documentation, releases

.PHONY: sim
sim: venv ## the simulator: seeds, schedules, exhaustive worlds
	@$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

.PHONY: chaos
chaos: setup ## faults on real servers and an independent judge: make chaos SECONDS=600 SEED=7 ARGS="--flavor mysql --cache redis"
	@$(BIN)/python -m integration.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: soak
soak: setup ## whether memory, files and threads stay flat under a steady load: make soak SECONDS=3600
	@$(BIN)/python -m benchmarks.soak $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

.PHONY: proof
proof: dev ## the proof of the rule for any number of everything; ARGS="'put back by set'" prints how a bug breaks it
	@$(BIN)/python -m tests.proof $(ARGS)

.PHONY: mutants
mutants: venv ## the code without one defence after the other: does a test notice?
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: bench
bench: setup ## measure, against named baselines
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: examples
examples: setup ## the example applications with each cache; writes docs/performance.md
	@$(BIN)/python -m examples.scoreboard --write $(ARGS)

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
	@$(BIN)/uv pip compile -q --all-extras --no-annotate --no-header $(addprefix -c ,$(wildcard requirements/*.txt)) \
		pyproject.toml -o build/sbom.txt
	@$(BIN)/cyclonedx-py requirements build/sbom.txt --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/freshness.cdx.json

GROUPS = $(basename $(notdir $(wildcard requirements/*.txt)))
COMPILE = $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-annotate --no-emit-index-url \
	--custom-compile-command "make pins" pyproject.toml

.PHONY: pins
pins: dev ## write requirements/, the pinned packages of each group in pyproject.toml; ARGS=--upgrade for later ones
	@mkdir -p build
	@sed -nE '/^[A-Za-z0-9]/{s/ \\$$//;s/^([A-Za-z0-9_.-]+)\[[^]]*\]/\1/;p}' requirements/*.txt | sort -u > build/pins.txt
	@$(COMPILE) $(ARGS) $(GROUPS:%=--group %) -o build/pins.txt
	@for group in $(GROUPS); do $(COMPILE) --no-strip-extras --generate-hashes --group $$group -c build/pins.txt \
		-o requirements/$$group.txt || exit 1; done

.PHONY: clean
clean: ## remove what the verbs made; downloads in .cache stay
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.cache/*' -prune -exec rm -rf {} +
