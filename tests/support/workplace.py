"""A folder with a corpus and a configuration, in which the command runs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam  # noqa: F401 - the command tells that it loads it unless it is loaded
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml
from repository import DATA

# One view for each way of writing: per block in two formats, and once at the end.
THREE_VIEWS = {
    "tokens": {"level": "token", "layers": [-1, 0]},
    "texts": {"level": "text", "layers": [2], "format": "jsonl"},
    "types": {"level": "word_type", "layers": [1]},
}
# Settings with several blocks and parts of a small corpus.
SMALL_BLOCKS = {
    "views": {
        "tokens": {"level": "token", "layers": "all"},
        "forms": {"level": "word_type", "layers": [-1]},
        "lines": {"level": "text", "layers": [-1], "format": "jsonl"},
    },
    "output": {"target_part_bytes": 300_000},
    "input": {"slice_bytes": 4_000},
}


def tree_hashes(output: Path) -> dict[str, str]:
    """SHA-256 of each file of an output folder by name, without the records of single runs."""
    return {
        str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.rglob("*"))
        if path.is_file() and path.parent.name != "_runs"
    }


@dataclasses.dataclass
class CommandResult:
    """The result of one command."""

    status: int
    out: str
    err: str


@dataclasses.dataclass
class Workplace:
    """A folder with a corpus, a configuration and the command."""

    folder: Path
    kept: Path = dataclasses.field(init=False, repr=False)
    """The runs of `finished`, for all tests of a session."""

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def configure(self, **sections: Any) -> None:
        """Write c.yaml: all layers of tokens by the small encoder, unless a section overrides this."""
        settings = {
            "input": {"files": ["corpus/*"]} | sections.get("input", {}),
            "encoder": {"handle": str(DATA / "hf_uncased")} | sections.get("encoder", {}),
            "views": sections.get("views", {"tokens": {"level": "token", "layers": "all"}}),
            "output": {"path": "out"} | sections.get("output", {}),
            "beam": sections.get("beam", {}),
        }
        self.write("c.yaml", yaml.safe_dump(settings))

    def command(self, *arguments: str) -> list[str]:
        """The installed command."""
        return [str(Path(sys.executable).with_name("layerbeam")), *arguments]

    def start(self, *arguments: str) -> CommandResult:
        """Run the command in its own process, in this folder."""
        done = subprocess.run(self.command(*arguments), cwd=self.folder, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def at_work(
        self, *arguments: str, commits: int = 1, output: str = "out", new_session: bool = False
    ) -> subprocess.Popen[str]:
        """A run in its own process that has committed at least this many blocks; 0: that has just started."""
        folder = self.folder / output / "_commits"
        process = subprocess.Popen(
            self.command("run", "c.yaml", *arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=new_session,
        )
        while commits and (not folder.is_dir() or len(os.listdir(folder)) < commits):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        return process

    def run(self, *arguments: str, status: int = 0) -> CommandResult:
        """`layerbeam run c.yaml` in this process, which has Beam loaded."""
        return self._call("run", "c.yaml", *arguments, status=status)

    def drive(self, *arguments: str, status: int = 0, arithmetic: bool = False) -> CommandResult:
        """The same without a pipeline, in one thread: for all but workers, retries, runners and Beam's options.

        `arithmetic`: vectors are a function of the token ids, for tests that do not look at numbers.
        """
        return self.driven("run", "c.yaml", *arguments, status=status, arithmetic=arithmetic)

    def driven(self, *arguments: str, status: int = 0, arithmetic: bool = False) -> CommandResult:
        """Any command whose run is as that of `drive`."""
        from drive import driving

        with driving(arithmetic=arithmetic):
            return self._call(*arguments, status=status)

    def prepare(self, corpus: dict[str, bytes | str] | bytes | str, **sections: Any) -> None:
        """Write c.yaml and these files of corpus/, or corpus/a.txt with this content."""
        for name, data in (corpus if isinstance(corpus, dict) else {"a.txt": corpus}).items():
            self.write(f"corpus/{name}", data)
        self.configure(**sections)

    def finished(
        self, corpus: dict[str, bytes | str] | bytes | str, *, status: int = 0, **sections: Any
    ) -> CommandResult:
        """What `drive` makes of what `prepare` writes, or a copy of it from an earlier test."""
        kept = self.kept / hashlib.sha256(repr((corpus, status, sections)).encode()).hexdigest()
        printed = kept.with_suffix(".json")
        if printed.exists():
            shutil.copytree(kept, self.folder, dirs_exist_ok=True)
            return CommandResult(**json.loads(printed.read_text()))
        self.prepare(corpus, **sections)
        done = self.drive(status=status)
        shutil.copytree(self.folder, kept)
        printed.write_text(json.dumps(dataclasses.asdict(done)))
        return done

    def assert_equals_fresh(self, *arguments: str) -> None:
        """A run of the same input into a new folder writes what is in `out`."""
        fresh = f"fresh{len(list(self.folder.glob('fresh*')))}"
        self.drive("--output", fresh, *arguments)
        assert self.files() == self.files(fresh)

    def plan(self, *arguments: str, status: int = 0) -> CommandResult:
        return self._call("plan", "c.yaml", *arguments, status=status)

    def show(self, *arguments: str, status: int = 0) -> CommandResult:
        return self._call("show", "out", *arguments, status=status)

    def verify(self, *arguments: str, status: int = 0) -> CommandResult:
        return self._call("verify", "out", *arguments, status=status)

    def encoder(self, *arguments: str, status: int = 0) -> CommandResult:
        return self._call("encoder", *arguments, status=status)

    def _call(self, *arguments: str, status: int) -> CommandResult:
        from layerbeam.pipeline.cli.main import main

        got = main(arguments, version="test")
        out, err = self._capture()
        assert got == status, err
        return CommandResult(got, out, err)

    _capture: Callable[[], tuple[str, str]] = dataclasses.field(init=False, repr=False)

    def rows(self, view: str = "tokens", output: str = "out") -> pa.Table:
        """All rows of a view, ordered by file, line and token."""
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
    """A workplace for fixtures of module scope; output of the command is discarded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        place = Workplace(folder)
        place._capture = lambda: ("", "")
        yield place
