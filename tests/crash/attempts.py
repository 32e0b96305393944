"""Two attempts of the same blocks, interleaved at every operation of the store, by a seed.

The attempts are threads that run the product's own functions. Each operation of a disk or store waits for its turn, so
that one thread runs at a time, and the seed alone says which: no clock is involved. Operations fail by the same seed.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from output_folder import OutputFolder

from layerbeam.pipeline.output import commits
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.settings import BlockLimits
from layerbeam.transforms.storage import files, listing, stores
from layerbeam.transforms.storage.store import Store
from layerbeam.transforms.views.view import ViewSpec

FINGERPRINT = "0123456789abcdef"
LIMITS = BlockLimits(30, 1 << 30, 1 << 30, 128)
VIEWS = tuple(
    ViewSpec(name=name, level="text", layers=(1,), hidden_size=4, format="jsonl", compress=name == "b") for name in "ab"
)


class Turns:
    """Which thread runs: one at a time, chosen by the seed at each operation; some are slow, by the seed, too.

    `share`: how often an operation fails, before or after its effect. At most `faults` fail.
    `look`: called after each operation, while no thread runs.
    """

    def __init__(self, seed: int, *, share: float, faults: int, look: Callable[[], None]) -> None:
        self.random = random.Random(seed)
        self.share, self.faults, self._look = share, faults, look
        self._turn: dict[str, threading.Semaphore] = {}
        self._idle = threading.Semaphore(0)
        self.trace: list[str] = []
        self._name = threading.local()

    def run(self, attempts: dict[str, Callable[[], None]]) -> None:
        """Run functions to their ends, which may be errors that they keep to themselves."""
        waiting = dict(attempts)
        speeds = {name: self.random.choice((1, 4, 32)) for name in attempts}
        while waiting or self._turn:
            names = sorted({*waiting, *self._turn})
            (name,) = self.random.choices(names, [speeds[name] for name in names])
            if name in waiting:
                self._turn[name] = threading.Semaphore(0)
                threading.Thread(target=self._attempt, args=(name, waiting.pop(name)), daemon=True).start()
            else:
                self._turn[name].release()
            self._idle.acquire()
            self._look()

    def _attempt(self, name: str, function: Callable[[], None]) -> None:
        self._name.value = name
        try:
            function()
        finally:
            del self._turn[name]
            self._idle.release()

    def operation(self, kind: str, path: str, effect: Callable[[], Any]) -> Any:
        """Wait for the turn, then do it; or fail by the seed, before or after the effect."""
        name = getattr(self._name, "value", None)
        if name is None:  # not one of the attempts
            return effect()
        turn = self._turn[name]
        self._idle.release()
        turn.acquire()
        self.trace.append(f"{name}: {kind} {path}")
        fails = self.faults > 0 and self.random.random() < self.share
        late = self.random.random() < 0.5
        if fails:
            self.faults -= 1
            self.trace[-1] += " FAILS"
        if fails and not late:
            raise OSError(errno.EIO, f"{kind} failed, as planned", path)
        result = effect()
        if fails:
            raise OSError(errno.EIO, f"{kind} failed after its effect, as planned", path)
        return result


class MemoryStore(Store):
    """A store in memory: `gs` shows an upload when it is finalized, `s3` keeps what was not completed apart."""

    def __init__(self, turns: Callable[[], Turns]) -> None:
        self._turns = turns
        self.objects: dict[str, bytes] = {}
        self.uploads: collections.Counter[str] = collections.Counter()

    @property
    def is_raced(self) -> bool:
        return self._turns() is not _FREE

    def _do(self, kind: str, path: str, effect: Callable[[], Any]) -> Any:
        return self._turns().operation(kind, path, effect)

    def list(self, prefix: str) -> Iterator[InputFile]:
        after = ""
        while True:  # pages of three, between which others work
            page = self._do("list", prefix, lambda after=after: self._page(prefix, after))
            yield from page
            if len(page) < 3:
                return
            after = page[-1].path

    def _page(self, prefix: str, after: str) -> list[InputFile]:
        found = [path for path in sorted(self.objects) if path.startswith(prefix) and path > after]
        return [InputFile(path, len(self.objects[path]), 0.0) for path in found[:3]]

    def stat(self, path: str) -> InputFile | None:
        def effect() -> InputFile | None:
            return InputFile(path, len(self.objects[path]), 0.0) if path in self.objects else None

        found: InputFile | None = self._do("stat", path, effect)
        return found

    def read(self, path: str, start: int, end: int | None) -> bytes:
        def effect() -> bytes:
            if path not in self.objects:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            return self.objects[path][start:end]

        data: bytes = self._do("read", path, effect)
        return data

    def write(self, path: str, file: IO[bytes], size: int) -> None:
        data = file.read()
        assert len(data) == size
        self._do("begin", path, lambda: self.uploads.update([path]))
        try:
            self._do("finalize", path, lambda: self.objects.update({path: data}))
        finally:
            self.uploads[path] -= 1  # aborted, or completed

    def create(self, path: str, data: bytes) -> bool:
        created: bool = self._do("create", path, lambda: self.objects.setdefault(path, data) is data)
        return created

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._do("delete", path, lambda path=path: self.objects.pop(path, None))


class GatedDisk:
    """Replaces the module `os` and `open` in `layerbeam.transforms.storage`."""

    def __init__(self, turns: Callable[[], Turns], root: str) -> None:
        self._turns, self._root = turns, root

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("stat", "remove", "replace", "link", "scandir", "rmdir", "makedirs"):
            return real

        def gated(*arguments: Any, **named: Any) -> Any:
            path = str(arguments[-1])
            if not path.startswith(self._root):
                return real(*arguments, **named)
            if name == "scandir":  # an iterator that a late failure drops would never be closed
                self._turns().operation(name, path, lambda: None)
                return real(*arguments, **named)
            return self._turns().operation(name, path, lambda: real(*arguments, **named))

        return gated

    def open_file(self, path: str, mode: str = "r", **named: Any) -> Any:
        if str(path).startswith(self._root):
            self._turns().operation(f"open {mode}", path, lambda: None)
        return builtins.open(path, mode, **named)

    def rmtree(self, path: str, ignore_errors: bool = False) -> None:
        self._turns().operation("rmtree", path, lambda: shutil.rmtree(path, ignore_errors=ignore_errors))


@dataclasses.dataclass
class Case:
    """An output folder, on a disk or in a store, and what may be seen of it at any time."""

    kind: str
    folder: Path
    out: str = ""
    memory: MemoryStore | None = None
    turns: Turns | None = None

    def output(self, *, attempt: int, processor: float = 0.25) -> OutputFolder:
        """The output folder, for an attempt whose vectors depend on the processor."""
        patterns = [str(self.folder / "corpus/a.txt")]
        return OutputFolder(self.out, patterns, VIEWS, FINGERPRINT, LIMITS, attempt=attempt, processor=processor)

    def tree(self) -> dict[str, bytes]:
        """The files of the output folder, without unfinished ones."""
        if self.memory is not None:
            return {path.removeprefix(f"{self.out}/"): data for path, data in self.memory.objects.items()}
        root = Path(self.out)
        paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith("_unfinished-")]
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}

    def problem(self) -> str | None:
        """What is wrong if the folder says that it is complete."""
        tree = self.tree()
        return mismatch(tree) if "_SUCCESS" in tree else None


def mismatch(tree: dict[str, bytes]) -> str | None:
    """How the index differs from the files, if a listed part is missing or another one."""
    if "parts.jsonl" not in tree:
        return "the index is missing"
    for line in tree["parts.jsonl"].splitlines():
        for part in json.loads(line)["parts"].values():
            data = tree.get(part["path"])
            if data is None:
                return f"{part['path']} is listed and missing"
            if hashlib.sha256(data).hexdigest() != part["sha256"]:
                return f"{part['path']} is listed with another hash"
    return None


@contextlib.contextmanager
def case_on(kind: str, folder: Path) -> Iterator[Case]:
    """A case whose operations wait for their turn: `local`, `gs` or `s3`."""
    case = Case(kind, folder)
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    (folder / "corpus/a.txt").write_bytes(b"one text\nanother text here\nno \xff text\n" * 2 + b"the last text\n")
    with pytest.MonkeyPatch.context() as patch:
        if kind == "local":
            case.out = str(folder / "out")
            disk = GatedDisk(lambda: case.turns or _FREE, case.out)
            for module in (files, listing):
                patch.setattr(module, "os", disk)
                patch.setattr(module, "open", disk.open_file, raising=False)
            patch.setattr(files, "shutil", disk)
        else:
            case.out = f"{kind}://bucket/out"
            memory = case.memory = MemoryStore(lambda: case.turns or _FREE)
            patch.setattr(stores, "_store", lambda scheme: memory)
            # In this thread, so that others work between two of the items.
            patch.setattr(commits, "_read_all", lambda paths: filter(None, map(storage.read_if_exists, paths)))
        yield case


_FREE = Turns(0, share=0, faults=0, look=lambda: None)
