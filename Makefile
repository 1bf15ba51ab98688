# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Everything they install or cache stays inside this folder (.venv, .cache).

# TORCH=cpu|cuda|a requirement of pip; by itself cpu where no GPU is seen. After another choice: make clean first.

PYTHON ?= python3
TORCH ?= auto
VENV := .venv
BIN := $(VENV)/bin
export FEDAGENTGYM_CACHE ?= $(CURDIR)/.cache
export HF_HUB_DISABLE_TELEMETRY := 1
export FLWR_TELEMETRY_ENABLED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # images of containers set it, and every process of the tests would compile all sources again
DEMO := demo-report
PROSE := docs papers README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md leaderboard/README.md fedagentgym/pages fedagentgym/experiment/presets fedagentgym/learning/recipes
CODE := fedagentgym tests benchmarks examples baselines
SPEED := speed-core speed-records webshop alfworld alfworld-houses speed-verifiers speed-partitions speed-agents speed-federation speed-gateway

.PHONY: demo test test-all skipped coverage lint bench wheel installs libraries clean leaderboard results docs pictures screenshots

demo: $(VENV)/.train
	$(BIN)/fedagentgym demo --out $(DEMO)
	@echo "for the commands of README and docs: source $(VENV)/bin/activate"

# A process more than there are cores here: tests that wait for other processes leave a core to somebody else.
test: $(VENV)/.dev
	$(BIN)/pytest -n 3

test-all: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m "not gpu"

skipped: $(VENV)/.dev
	$(BIN)/python tests/list_skipped.py

coverage: $(VENV)/.dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 $(TESTS)
	$(BIN)/coverage combine -q
	$(BIN)/python tests/lines_of_packages.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/codespell $(PROSE) $(CODE)

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(SPEED)

leaderboard: $(VENV)/.dev
	$(BIN)/fedagentgym bench verify leaderboard/results/*/* --out leaderboard/verified
	$(BIN)/fedagentgym leaderboard build leaderboard/results --verified leaderboard/verified --out build/leaderboard --link ../../leaderboard/results
	$(BIN)/python -m benchmarks.excerpts build/leaderboard README.md docs/experiments/*.md
	$(BIN)/python -m benchmarks report

# Plays everything that is published. If it is interrupted, the same command continues; runs that are committed are not played again.
SUITES := averaging-lora-small-v1 averaging-lora-ranks-tiny-v1 averaging-lora-rounds-tiny-v1 averaging-lora-alike-tiny-v1 skills-feddyn-v1 averaging-lora-personal-tiny-v1 averaging-lora-unlike-tiny-v1 averaging-lora-tiny-v1 skills-fedgrpo-v1 shop-heterogeneity-v1 skills-methods-v1 skills-fedmoa-v1 skills-map-v1 skills-more-v1 skills-pubswap-v1 skills-fedagent-v1 skills-heterogeneity-v1 houses-heterogeneity-v1 skills-participation-v1 methods-tiny-records-v1 methods-tiny-skills-v2 methods-tiny-math-v2 methods-tiny-partial-v1 methods-tiny-shop-v2 methods-tiny-houses-v2 methods-tiny-worlds-v1 methods-tiny-shop-worlds-v1 methods-small-skills-v1 small-skills-signs-v1

results: $(VENV)/.dev
	$(BIN)/fedagentgym model add smollm2
	for suite in $(SUITES); do $(BIN)/fedagentgym bench run $$suite --store leaderboard/results || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python -m fedagentgym.cli.reference > docs/reference/commands.md
	$(BIN)/fedagentgym settings --markdown > docs/reference/settings.md
	$(BIN)/fedagentgym envs --markdown > docs/reference/options.md
	$(BIN)/zensical build --strict --clean
	$(BIN)/fedagentgym leaderboard build leaderboard/results --verified leaderboard/verified --out build/site/results-page --link https://github.com/fedagentgym/fedagentgym/tree/main/leaderboard/results

pictures: $(VENV)/.dev
	$(BIN)/python -m benchmarks pictures

screenshots: leaderboard
	$(BIN)/python -m benchmarks record-demo pictures
	$(BIN)/python -m benchmarks screenshots

wheel: $(VENV)/.dev
	PYTHON=$(PYTHON) BIN=$(BIN) tests/wheel.sh

installs: $(VENV)/.dev
	$(BIN)/pip install -q -c constraints.txt uv
	$(BIN)/pytest -m slow tests/installs --ignore tests/installs/test_agent_libraries.py

libraries: $(VENV)/.dev
	$(BIN)/pip install -q -c constraints.txt uv
	$(BIN)/pytest -m "slow or not slow" tests/installs/test_agent_libraries.py

clean:
	rm -rf $(VENV) .cache build dist runs $(DEMO) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.*

$(VENV)/.train: pyproject.toml constraints.txt
	@sh tests/tools-present.sh $(PYTHON) train
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sh tests/install-torch.sh $(BIN)/pip '$(TORCH)'
	$(BIN)/pip install -q -c constraints.txt -e '.[train]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@sh tests/tools-present.sh $(PYTHON) dev
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@sh tests/install-torch.sh $(BIN)/pip '$(TORCH)'
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.train
