"""What the Dockerfile declares, and what buildah makes of it: settings, build context, the encoder that is baked in."""

from __future__ import annotations

import re

import pytest
from container import buildah, container
from repository import ROOT

from layerbeam import __version__

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def pins(constraints: str) -> dict[str, str]:
    """The versions that are the same for all Pythons."""
    return dict(
        line.split("==") for line in (ROOT / constraints).read_text().splitlines() if "==" in line and ";" not in line
    )


def test_image_has_labels_and_entry_point(image):
    settings = image.settings
    labels = {name: value for name, value in settings["Labels"].items() if name.startswith("org.layerbeam.")}
    assert labels == {
        "org.layerbeam.version": __version__,
        "org.layerbeam.apache-beam": pins("constraints.txt")["apache-beam"],
        "org.layerbeam.python": "3.11",
        "org.layerbeam.tensorflow": pins("constraints.txt")["tensorflow"],
        "org.layerbeam.device": "cpu",
    }
    assert settings["Entrypoint"] == ["/opt/apache/beam/boot"]
    assert settings["WorkingDir"] == "/opt/layerbeam"


@pytest.mark.parametrize(
    ("device", "constraints"),
    [("cpu", "constraints.txt"), ("gpu", "constraints.txt"), ("tpu", "constraints-tf220.txt")],
)
def test_each_device_has_the_pinned_tensorflow(device, constraints):
    (stage,) = re.findall(rf"^FROM \S+ AS {device}\n(.*?)^FROM ", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert f"\nENV TENSORFLOW_VERSION={pins(constraints)['tensorflow']}\n" in stage
    assert f"\nCOPY {constraints} " in stage


def test_tensorflow_for_tpus_is_pinned():
    pinned = pins("constraints-tf220.txt")
    package = (ROOT / "configs/dataflow/tensorflow_for_tpu/pyproject.toml").read_text()
    assert f'dependencies = ["tensorflow-tpu=={pinned["tensorflow-tpu"]}"]' in package
    assert f'version = "{pinned["tensorflow"]}"' in package
    assert pinned["tensorflow-tpu"] == pinned["tensorflow"]
    assert pinned["libtpu"] == "0.0.14"  # 0.0.52 lacks functions that tensorflow-tpu 2.20.0 needs


def test_constraints_of_tensorflow_220_differ_only_in_what_it_needs():
    ours, oldest = ((ROOT / name).read_text().splitlines() for name in ("constraints.txt", "constraints-tf220.txt"))
    names = {line.split("==")[0] for line in set(ours) ^ set(oldest)}
    of_tensorflow = {"tensorflow", "tensorflow-text", "tf-keras"}
    assert names - {"libtpu", "tensorboard", "tensorboard-data-server", "tensorflow-tpu", "werkzeug"} == of_tensorflow


def test_nvidia_libraries_are_pinned():
    pinned = re.findall(r"^nvidia-(\w+)-cu12==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {"cublas", "cudnn", "nccl"} <= set(pinned)


def test_build_context(tmp_path):
    """Corpora, keys and builds of the repository's folder are excluded."""
    sent = ["transforms/encoders/source.py", "models/bert/model.safetensors"]
    excluded = [
        ".git/config",
        ".venv/bin/python",
        "out/demo/tokens/a.parquet",
        "key.json",
        "pipeline/__pycache__/cli.cpython-311.pyc",
        "transforms/encoders/__pycache__/source.cpython-311.pyc",
    ]
    for name in [*sent, *excluded]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".dockerignore").write_bytes((ROOT / ".dockerignore").read_bytes())
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY . /\n")
    buildah("build", "--tag", "context", tmp_path)
    with container("context", tmp_path) as made:
        found = {str(path.relative_to(made.root)) for path in made.root.rglob("*") if path.is_file()}
    assert found == set(sent)


@pytest.mark.parametrize(("model", "copied"), [("", "LICENSE"), ("models/bert", "model/vocab.txt")])
def test_given_model_is_baked_in(tmp_path, model, copied):
    """By the Dockerfile's own lines, without the steps that install."""
    lines = re.findall(r"^(?:ARG MODEL=.*|WORKDIR .*|COPY \$\{MODEL.*)$", DOCKERFILE.split("\nFROM ")[-1], re.MULTILINE)
    assert len(lines) == 3
    (tmp_path / "Dockerfile").write_text("\n".join(["FROM scratch", *lines]))
    (tmp_path / "LICENSE").write_text("")
    (tmp_path / "models/bert").mkdir(parents=True)
    (tmp_path / "models/bert/vocab.txt").write_text("")
    buildah("build", "--tag", "model", "--build-arg", f"MODEL={model}", tmp_path)
    with container("model", tmp_path) as made:
        folder = made.root / "opt/layerbeam"
        assert [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()] == [copied]
