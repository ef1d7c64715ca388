# Two commands do everything, set-up included: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
DEMO = traces/demo-$(shell date -u +%Y%m%dT%H%M%SZ)

# Images for containers often set it, and then every command compiles all of its modules again.
unexport PYTHONDONTWRITEBYTECODE

# The build of torch is for the machine, and with it come libraries of CUDA or none: these are not in the lock.
UNLOCKED = torch torchvision triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cccl \
	nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
	nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
	nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

.PHONY: help demo quick test test-all test-newest test-oldest test-torch env-newest env-oldest env-torch in-newest in-oldest \
	in-torch environments check fuzz bench gpu-check lock site audit clean
help:
	@echo "make demo   train on 2 processes (every GPU where there are any), capture traces, print the tables"
	@echo "make quick  tests of the analysis that need no torch, for while you work: under a minute; no lint, no types"
	@echo "make test   lint, types and all tests but the slow ones, in the same environment: minutes"
	@echo "make test-all  and the slow ones, of each SETS (3) sets of parameters"
	@echo "make test-newest, test-oldest  the analysis as pip installs it, with the newest and the oldest libraries"
	@echo "make test-torch  captures and what torch writes, with the newest torch; downloads GB"
	@echo "make check  lint and types only"
	@echo "make fuzz   every reader for SECONDS (600), with inputs that a fuzzer grows; Linux, Python 3.11 to 3.13"
	@echo "make bench  time reading large traces beside HolisticTraceAnalysis; SOURCE=a trace of one GPU rank"
	@echo "make gpu-check  on a machine with GPUs: what only these can show, as a table; minutes"
	@echo "make site   the pages of docs/ and the API as a site, in build/site"
	@echo "make lock   resolve requirements.txt and groups of pyproject.toml anew, with hashes; needs uv"
	@echo "make audit  known vulnerabilities of what is pinned, and of the oldest that pyproject.toml admits; needs network"
	@echo "make clean  remove the environment and captured runs"

# Compiled afterwards, since pip does that on one core.
$(READY): requirements.txt requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "commtrace needs Python 3.10 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(INSTALL) --no-deps --require-hashes --requirement requirements.lock
	@$(INSTALL) --requirement requirements.txt  # all but torch is there
	@$(INSTALL) --no-deps --editable .
	@rm -rf build/lib build/bdist.* commtrace.egg-info  # left by pip; TensorBoard would find the plugin twice
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages hold files for other Pythons
	@touch $@

demo: $(READY)
	@set -e; run="$(DEMO)"; \
		$(BIN)/commtrace train --out "$$(dirname "$$run")" --run-name "$$(basename "$$run")"; \
		$(BIN)/commtrace "$$run"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The files with many short tests last, to fill both processes; no folder is named twice, or pytest orders them itself.
PYTEST = $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
TESTS = tests/test_*.py tests/agents tests/common tests/profiling tests/docs tests/shared tests/analysis tests/house

# For while you work: the core, Kineto traces, metrics of a rank and across ranks, and the rules of imports. No lint and no
# types, which your editor and pre-commit show.
QUICK = intervals schema spans catalog column_help kineto chunks run calls breakdown budget idle gaps launches kernels \
	copies queue flops moved_bytes categories peaks steps matching waiting lateness bandwidth latency verdict results render \
	sweeps scaling training cli_training
quick: $(READY)
	$(PYTEST) --without-torch -m "not slow and not alone" tests/house $(patsubst %,tests/analysis/test_%.py,$(QUICK))

test: check
	$(PYTEST) -m "not slow and not alone" $(TESTS)

# What the quick tests sample, and those that compare times, beside which nothing else should run. Of each test some sets of
# parameters; before a release all: make test-all SETS=10000
SETS = 3
test-all: test
	$(BIN)/python -m pytest -m alone $(shell grep -rl mark.alone tests --include 'test_*.py')
	$(PYTEST) --durations 25 --sets $(SETS) -m "slow and not alone" $(TESTS)

# What a user gets: `pip install .` takes the newest of everything, and may take the oldest that pyproject.toml admits.
# Made anew each time: what is newest changes. The tests left out take long and make mostly the same calls of the same
# libraries: `make test` has them, and all sets of parameters, of which two of each test are taken here. With pyarrow, the
# newest pandas keeps texts in another way, so the newest is tested as most have it, without; the oldest with the oldest
# pyarrow, which is where `export parquet` is tested: pandas imports pyarrow wherever it is, and every command of every
# other test would begin later.
OF_NO_LIBRARY = changed_causes clock_worlds contention copy_kinds cut_files damage differential experts foreign_devices fuzz \
	gloo_calls gloo_messages graphs hard_worlds held_up_steps history holders inspector_truth intervals known_truth late_work \
	leaks longer_steps memory normal part_played periods pipelines progress random_runs report_browser snapshots trend watch \
	watching worker_process
env-newest: CONSTRAINED =
env-newest: EXTRAS = remote
env-newest: WITH =
env-oldest: CONSTRAINED = --constraint .venv-oldest/constraints.txt
env-oldest: EXTRAS = parquet,remote
env-oldest: WITH = duckdb
# The newest torch, of which `make test` has a pinned one: captures on CPUs, and what it writes of GPUs by itself. For that
# it needs a newer cupti-python than its own requirements go with, so that comes last.
env-torch: CONSTRAINED =
env-torch: EXTRAS = profiling
env-torch: WITH = 'torch>=2.14'
env-torch: THEN = cupti-python
env-newest env-oldest env-torch: env-%:
	rm -rf .venv-$* build/lib build/bdist.*
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python tests/support/oldest.py > .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINED) '.[$(EXTRAS)]' \
		hypothesis perfetto pytest pytest-xdist $(WITH)
	$(if $(THEN),.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check $(THEN))
	rm -rf build/lib build/bdist.* commtrace.egg-info

in-newest in-oldest: in-%:
	.venv-$*/bin/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile \
		--sets 2 -m "not slow and not alone" tests/installed \
		tests/docs/test_metrics_pages.py tests/docs/test_parquet_page.py tests/analysis \
		$(patsubst %,--ignore tests/analysis/test_%.py,$(OF_NO_LIBRARY))

in-torch:
	.venv-torch/bin/python -c "import torch.profiler._cupti.monitor_trace"  # without it a test would be skipped
	.venv-torch/bin/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile -m "not alone" \
		tests/test_torch_perfetto.py tests/test_end_to_end.py tests/profiling/test_session.py \
		tests/profiling/test_captures.py tests/profiling/test_detail.py tests/analysis/test_pftrace.py

test-newest test-oldest test-torch: test-%: env-%
	@$(MAKE) in-$*

# One after the other: pip builds both in the same folder.
environments: $(READY)
	@$(MAKE) env-newest
	@$(MAKE) env-oldest

# Not in the lock: it is for these Pythons only, and no test needs it.
SECONDS = 600
READERS = kineto recordings dumps inspector nsight rocpd rocprof-json xplane pftrace side-files
fuzz: $(READY)
	@$(INSTALL) --no-deps --require-hashes --requirement .ci/fuzz.lock
	@set -e; for reader in $(READERS); do $(BIN)/python tests/attacks/guided.py $$reader --seconds $(SECONDS); done

bench: $(READY)
	@test -n "$(SOURCE)" || { echo "name a Kineto trace of one GPU rank: make bench SOURCE=rank0.pt.trace.json.gz" >&2; exit 1; }
	@$(BIN)/python benchmarks/reading.py --source "$(SOURCE)" $(BENCH)

gpu-check: $(READY)
	$(BIN)/python tests/gpu/check.py $(GPU_CHECK)

COMPILE = uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-annotate
lock:
	$(COMPILE) $(addprefix --no-emit-package ,$(UNLOCKED)) requirements.txt --group s3 --group trainers \
		--output-file requirements.lock
	$(COMPILE) --no-deps --group hta >> requirements.lock
	$(COMPILE) --group docs --output-file .ci/docs.lock

# The site of docs/ in build/site, strictly: a link or a heading that leads nowhere is an error. Docstrings are read, not
# imported, from a copy, since links to folders and folders without __init__.py would be left out.
SITE = .venv-docs
$(SITE)/.ready: .ci/docs.lock
	@test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

site: $(SITE)/.ready
	@rm -rf build/api build/site
	@mkdir -p build/api
	@cp -rL commtrace build/api/
	@touch build/api/commtrace/analysis/__init__.py build/api/commtrace/profiling/__init__.py
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Advisories change every day, so this is no test. --strict: what could not be looked up is not taken for sound.
PIP_AUDIT = .venv-audit/bin/pip-audit --strict --progress-spinner off --no-deps --disable-pip
audit:
	test -x .venv-audit/bin/pip-audit || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	grep -hE '^[A-Za-z0-9._-]+==' requirements.txt requirements.lock | sed 's/[[:space:]]*[#\\].*//' | sort -u > .venv-audit/pinned.txt
	.venv-audit/bin/python tests/support/oldest.py > .venv-audit/oldest.txt
	grep -hE '^[A-Za-z0-9._-]+==' .ci/docs.lock | sed 's/[[:space:]]*[#\\].*//' > .venv-audit/docs.txt
	@failed=0; for set in pinned oldest docs; do echo "$$set:"; \
		$(PIP_AUDIT) --requirement .venv-audit/$$set.txt || failed=1; done; exit $$failed

clean:
	rm -rf $(VENV) build .venv-newest .venv-oldest .venv-torch .venv-audit .venv-docs traces/demo-* .mypy_cache .pytest_cache .ruff_cache .hypothesis
