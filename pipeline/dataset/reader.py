"""`open_run`: a finished run, opened for reading: the parts that its index lists, in its order, and no others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerbeam.pipeline.dataset.view import UnknownNameError, View
from layerbeam.pipeline.errors import did_you_mean
from layerbeam.pipeline.output.index import read_index
from layerbeam.pipeline.output.manifest import load_manifest, read_manifest, shape_text, table_parts
from layerbeam.pipeline.output.run_log import last_run
from layerbeam.transforms import storage
from layerbeam.transforms.commits import Part
from layerbeam.transforms.layout import MANIFEST, RUNS, SUCCESS


def open_run(path: str | os.PathLike[str], *, allow_incomplete: bool = False) -> Run:
    """The run in an output folder on any Beam file system, opened for reading: `views`, `view(name)`, `manifest`.

    Args:
        path: The output folder.
        allow_incomplete: Also open a run that ended without `_SUCCESS` because files were skipped or too many records
            were rejected (exit status 3).

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The run has not ended, is incomplete or is damaged.
    """
    path = os.fspath(path)
    last = last_run(path)
    if last is None and not storage.exists(storage.join(path, MANIFEST)):
        parent = path.rstrip("/").rpartition("/")[0]
        inside = bool(parent) and load_manifest(parent) is not None
        raise FileNotFoundError(
            f"{path}: holds no layerbeam run (neither {MANIFEST} nor {RUNS} in it); give the folder that was the run's "
            f"output.path{f'; did you mean {parent}?' if inside else ''}"
        )
    if not storage.exists(storage.join(path, SUCCESS)):
        _check_ended(path, last or {}, allow_incomplete)
    if storage.read_json(storage.join(path, MANIFEST)) is None:
        raise ValueError(f"{path}: {MANIFEST} cannot be read; run the configuration again to rewrite it")
    manifest = read_manifest(path)
    index = read_index(path, manifest)
    parts = {name: index.parts(name) for name in manifest["views"]} | table_parts(manifest)
    return Run(path, dict(manifest), parts)


def _check_ended(path: str, last: Mapping[str, Any], allow_incomplete: bool) -> None:
    """ValueError if a run without `_SUCCESS` must not be read."""
    state = last.get("state", "unknown")
    manifest = read_manifest(path) if state == "incomplete" else None
    if manifest is None or manifest["fingerprint"] != last["fingerprint"]:
        raise ValueError(
            f"{path}: the run is not finished (no {SUCCESS} in it, its last state is: {state}); run its configuration "
            f"again to resume it; `layerbeam show {path}` says what is left"
        )
    if not allow_incomplete:
        problems = "".join(f"\n  {problem}" for problem in manifest["problems"])
        raise ValueError(
            f"{path}: the run ended without {SUCCESS}:{problems}\nfix that and run the configuration again, or read "
            "what has been written with open_run(..., allow_incomplete=True)"
        )


@dataclasses.dataclass(repr=False, eq=False)
class Run:
    """A run that has ended: `path`, `manifest` (the content of `manifest.json`) and its views.

    `run["tokens"]` is a view, `"tokens" in run` asks for one, `list(run)` has their names, `len(run)` their number.
    """

    path: str
    manifest: dict[str, Any]
    _parts: Mapping[str, Sequence[Part]]

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self.manifest["views"])

    def view(self, name: str) -> View:
        """One view. UnknownNameError (a KeyError) if no view has this name."""
        if name not in self.views:
            raise UnknownNameError(
                f"{name!r}: {self.path} has no such view; it has {', '.join(self.views)}"
                f"{did_you_mean(str(name), self.views)}"
            )
        return View(self.path, name, self.manifest["views"][name], self._parts[name])

    def __getitem__(self, name: str) -> View:
        return self.view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.views)

    def __repr__(self) -> str:
        encoder = self.manifest["encoder"]
        incomplete = "" if self.manifest["complete"] else ", not complete"
        views = "".join(f"\n  {self.view(name)!r}" for name in self.views)
        return f"layerbeam run {self.path}{incomplete}: {encoder['handle']}, {shape_text(encoder)}{views}"
