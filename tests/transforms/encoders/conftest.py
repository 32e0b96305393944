"""Fixtures of the encoders' tests: a cache of their own, a web server, copies of the small encoders."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from architectures import CONFIGS, write_encoder
from model_server import TFHUB, Handler, QuietServer, Server, tar_of
from saved_models import UNCASED

from layerbeam.transforms.encoders import onednn
from layerbeam.transforms.hardware import Hardware, load_tensorflow


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test keeps what it fetches; nothing of it is left in the environment."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TFHUB_CACHE_DIR", str(tmp_path / "tfhub"))
    monkeypatch.setenv("TFHUB_DOWNLOAD_PROGRESS", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "layerbeam" / "encoders"


@pytest.fixture(scope="module")
def collected() -> Iterator[None]:
    """Connections left open are collected here, where their warnings are expected, not in the next file's tests."""
    yield
    gc.collect()


@pytest.fixture
def server() -> Iterator[Server]:
    with QuietServer(("127.0.0.1", 0), Handler) as running:
        running.state = Server(running.server_address[1])
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running.state
        running.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def model() -> bytes:
    """tfhub_uncased as TF Hub sends it."""
    return tar_of(TFHUB)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder of each architecture, by its name in `CONFIGS`."""
    root = tmp_path_factory.mktemp("encoders")
    return {name: write_encoder(root / name, name) for name in CONFIGS}


@pytest.fixture(scope="module")
def threads():
    load_tensorflow(Hardware(2))


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the small encoder, the module's own or TF Hub's, to be spoiled."""
    return Path(shutil.copytree(getattr(request.module, "UNCASED", UNCASED), tmp_path / "encoder"))


@pytest.fixture(params=["kernels", "public operations", "xla"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """How the graph is computed: with oneDNN's kernels, as on another processor, compiled."""
    if request.param == "public operations":
        monkeypatch.setattr(onednn, "is_available", lambda _: False)
    return {"xla": request.param == "xla"}
