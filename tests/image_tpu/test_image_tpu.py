"""The image for TPUs on a machine without a TPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from container import Container, container
from repository import DATA


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container("layerbeam:tpu", tmp_path_factory.getbasetemp()) as made:
        yield made


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("the river bank\na well\n")
    encoder = {"handle": str(DATA / "hf_uncased"), "max_seq_length": 16, "length_buckets": [8, 16]}
    settings = {
        "input": {"files": ["a.txt"]},
        "encoder": encoder,
        "views": {"tokens": {"level": "token", "layers": [-1]}},
        "output": {"path": "out"},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path


def test_versions(image):
    code = (
        "import tensorflow, tensorflow_text, libtpu; from importlib.metadata import version as v; "
        "print(tensorflow.__version__, tensorflow_text.__version__, v('tensorflow'), v('tensorflow-tpu'), v('libtpu'))"
    )
    done = image.run("python", "-c", code)
    assert done.stdout == "2.20.0 2.20.1 2.20.0 2.20.0 0.0.14\n", done.stderr


def test_library_has_the_functions_of_tensorflow(image):
    """TensorFlow looks for each by its name when it is imported, and aborts if one is missing."""
    code = (
        "import ctypes, libtpu, os; library = ctypes.CDLL(os.path.join(libtpu.__path__[0], 'libtpu.so')); "
        "print([hasattr(library, name) for name in "
        "('TfTpu_Initialize', 'ConfigureDistributedTpuOp_DoWork', 'TpuCompile_CompileAndBuild', 'NoSuchFunction')])"
    )
    done = image.run("python", "-c", code)
    assert done.stdout == "[True, True, True, False]\n", done.stderr


def test_tpu_strategy_is_refused(image):
    code = (
        "import tensorflow as tf\n"
        "resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu='local')\n"
        "try: tf.tpu.experimental.initialize_tpu_system(resolver); tf.distribute.TPUStrategy(resolver)\n"
        "except tf.errors.OpError as error: print(type(error).__name__)"
    )
    done = image.run("python", "-c", code)
    assert (done.returncode, done.stdout) == (0, "InternalError\n"), done.stderr


def test_run_is_refused_in_one_line(image, corpus):
    done = image.run("layerbeam", "run", "c.yaml", "--set=encoder.device=tpu", "--set=encoder.xla=true", folder=corpus)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("layerbeam: ")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("layerbeam: encoder.device: tpu, and TensorFlow 2.20.0 sees none on ")
    assert "only /physical_device:CPU:0; fix the driver, image or accelerator" in errors[0]
    assert "Traceback" not in done.stderr
    assert not (corpus / "out" / "_SUCCESS").exists()


def test_run_on_the_cpu(image, corpus):
    """Without XLA: this TensorFlow compiles for TPUs only."""
    done = image.run("layerbeam", "run", "c.yaml", folder=corpus)
    assert done.returncode == 0, done.stderr
    assert (corpus / "out" / "_SUCCESS").exists()
    checked = image.run("layerbeam", "verify", "out", folder=corpus)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.rstrip().endswith("pass")
