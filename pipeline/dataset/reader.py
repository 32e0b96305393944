"""`open_run`: a run, opened for reading: the parts that its index lists, in its order, and no others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from layerbeam.pipeline.dataset.changes import ViewChanges
from layerbeam.pipeline.dataset.index import Index, read_index
from layerbeam.pipeline.dataset.integrity import check_files, check_listing, check_part
from layerbeam.pipeline.dataset.summary import RunSummary, coarse_columns, last_attempt, load_blocks, summarize
from layerbeam.pipeline.dataset.view import UnknownNameError, View, shape_text
from layerbeam.pipeline.errors import NoRunError, OutputError, UsageError, did_you_mean
from layerbeam.pipeline.output.canaries import decode_vectors
from layerbeam.pipeline.output.changes import Changes
from layerbeam.pipeline.output.manifest import InputEntry, load_manifest, read_manifest
from layerbeam.pipeline.output.run_log import last_run
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import Commit, Part, Rejected, printable
from layerbeam.transforms.flow.layout import MANIFEST, REJECTS, RUNS, SUCCESS
from layerbeam.transforms.parts import read_rejects

if TYPE_CHECKING:
    from layerbeam.pipeline.config.job import Job


def open_run(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    allow_incomplete: bool = False,
    allow_unfinished: bool = False,
) -> Run:
    """The run in an output folder on any Beam file system, opened for reading: `views`, `view(name)`, `manifest`.

    Args:
        path: The output folder. Several, or a glob, are read as one run, with a column `folder` in each view: they must
            have the same encoder, settings and views, and of shards none may be missing, unless `allow_incomplete`.
        allow_incomplete: Also open a run that ended without `_SUCCESS` because files were skipped or too many records
            were rejected (exit status 3).
        allow_unfinished: Open any run, also one that is active or was killed, with the finished blocks whose files are
            intact. `manifest` is then the record of the last attempt, with the rows of these blocks in `views`.

    Raises:
        FileNotFoundError: The folder holds no run.
        ValueError: The run has not ended, is incomplete or is damaged.
    """
    from layerbeam.pipeline.dataset.folders import is_glob, open_folders  # it imports this file

    paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(one) for one in path]
    if not isinstance(path, str | os.PathLike) or is_glob(paths[0]):
        return open_folders(paths, allow_incomplete=allow_incomplete, allow_unfinished=allow_unfinished)
    path = paths[0]
    if allow_unfinished:
        return _unfinished_run(path)
    last = last_run(path)
    if last is None and not storage.exists(storage.join(path, MANIFEST)):
        parent = path.rstrip("/").rpartition("/")[0]
        inside = bool(parent) and load_manifest(parent) is not None
        raise NoRunError(
            f"{path}: holds no layerbeam run (neither {MANIFEST} nor {RUNS} in it); give a run's "
            f"output.path{f'; did you mean {parent}?' if inside else ''}"
        )
    if not storage.exists(storage.join(path, SUCCESS)):
        _check_ended(path, last or {}, allow_incomplete)
    if storage.read_json(storage.join(path, MANIFEST)) is None:
        raise OutputError(f"{path}: {MANIFEST} cannot be read; run the configuration again to rewrite it")
    manifest = read_manifest(path)
    return Run(path, dict(manifest), read_index(path))


def _unfinished_run(path: str) -> Run:
    """The intact blocks of a run in any state. NoRunError if there is no run."""
    attempt, blocks = last_attempt(path), load_blocks(path)
    summary = summarize(path, blocks)
    facts = {"views": summary.views, "counts": summary.counts, "problems": summary.problems, "left_out": {}}
    manifest = {**attempt, **facts, "complete": summary.state == "complete"}
    return Run(path, manifest, blocks.index, summary)


def _check_ended(path: str, last: Mapping[str, Any], allow_incomplete: bool) -> None:
    """OutputError if a run without `_SUCCESS` must not be read."""
    state = last.get("state", "unknown")
    manifest = read_manifest(path) if state == "incomplete" else None
    if manifest is None or manifest["fingerprint"] != last["fingerprint"]:
        raise OutputError(
            f"{path}: the run is not finished (no {SUCCESS} in it, its last state is: {state}); run its configuration "
            f"again to resume it; `layerbeam show {path}` says what is left"
        )
    if not allow_incomplete:
        problems = "".join(f"\n  {problem}" for problem in manifest["problems"])
        raise OutputError(
            f"{path}: the run ended without {SUCCESS}:{problems}\nfix that and run the configuration again, or read "
            "what has been written with open_run(..., allow_incomplete=True)"
        )


@dataclasses.dataclass(repr=False, eq=False)
class Run:
    """A run: `path`, `manifest` (the content of `manifest.json`) and its views.

    `run["tokens"]` is a view, `"tokens" in run` asks for one, `list(run)` has their names, `len(run)` their number.
    """

    path: str
    manifest: dict[str, Any]
    _index: Index
    _summary: RunSummary | None = None
    _encoders: dict[Any, Any] = dataclasses.field(default_factory=dict)

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views."""
        return tuple(self.manifest["views"])

    @property
    def members(self) -> Mapping[str, Run]:
        """The runs that this one is made of, by folder: this one alone, unless it is of several folders."""
        return {self.path: self}

    def view(self, name: str) -> View:
        """One view. UnknownNameError (a KeyError) if no view has this name."""
        if name not in self.views:
            raise UnknownNameError(
                f"{name!r}: {self.path} has no such view; it has {', '.join(self.views)}"
                f"{did_you_mean(str(name), self.views)}"
            )
        return View(self.path, name, self.manifest["views"][name], self._index.parts(name))

    def blocks(self, *, with_tables: bool = False) -> Iterator[Commit]:
        """The blocks in the order of the rows, read as they are used: `name`, `files`, `counts`, `parts`.

        `files`: what a block holds of which input files. `parts` is by view; `rejects` has the rejected records.
        `with_tables`: also the parts of tables of word types, which have no files.
        """
        return (commit for commit in self._index if commit.files or with_tables)

    def rejects(self, block: Commit) -> list[Rejected]:
        """The rejected records of a block, without those damaged on disk. OSError if they cannot be read."""
        part = block.parts.get(REJECTS)
        found = () if part is None else read_rejects(storage.join(self.path, part.path))
        return [reject for reject in found if reject is not None]

    def inputs(self) -> Iterator[InputEntry]:
        """Each input file, by its path: size, time, blocks, records, and why it was left out, if it was."""
        return self._index.inputs(self.manifest["left_out"])

    def differences(self, other: Run) -> list[str]:
        """`setting: here -> there` for each setting, encoder or version with which another run was made differently."""
        from layerbeam.pipeline.config.identity import differences

        return differences(self.manifest["identity"], other.manifest["identity"])

    def changes(self, view: str | None = None, *, since: str | int) -> ViewChanges:
        """What came, went and moved in a view since the end of an earlier run: see `ViewChanges`.

        `since`: the position of that end, `until` of the changes before; 0 for all rows. `view` may be left out if
        there is one. OutputError, which says to read all rows, for a position that this folder does not know;
        ValueError for a view of word types, whose rows have no place.
        """
        if isinstance(since, int) and since:
            raise ValueError(
                f"since: {since} is the number of a run, and a folder that was made again has one, too; give `until` "
                "of earlier changes, such as '3-0986df41cbcb9eb9', or 0 for all rows"
            )
        return ViewChanges(self._changing_view(view), self._index, Changes(self.path, since))

    def _changing_view(self, name: str | None) -> View:
        """The view of that name, or the only one. ValueError if its changes have no places."""
        if name is None and len(self) > 1:
            raise ValueError(f"view is missing; {self.path} has {', '.join(self.views)}")
        changed = self.view(self.views[0] if name is None else name)
        if changed.level == "word_type":
            raise ValueError(
                f"view {changed.name} of {self.path} has a row per distinct word of the run; read all rows"
            )
        return changed

    def summary(self) -> RunSummary:
        """What `layerbeam show` prints: state, counts, rejects by reason, and `notes` for readers of the vectors."""
        return self._summary or summarize(self.path)

    def job(self, *, trust: bool = False, changed: bool = False) -> Job:
        """The settings of the run with its encoder, opened. UsageError if encoder or versions have changed.

        `trust`: also open what is no data on this machine: a function, an address, a SavedModel. `changed`: also give
        an encoder that has changed.
        """
        from layerbeam.pipeline.config.restore import restore_job  # readers of rows do not wait for YAML and schemas

        return restore_job(self.manifest, self.path, trust=trust, changed=changed)

    def canaries(self) -> tuple[list[str], dict[tuple[str, str], npt.NDArray[Any]]] | None:
        """(canary texts, their vectors [n, W] in float32 by view and column); None if the run has none.

        OutputError if they are damaged.
        """
        found = self.manifest.get("canaries")
        if found is None:
            return None
        try:
            vectors = {
                (view, column): decode_vectors(encoded, self.view(view).width)
                for view, columns in found["vectors"].items()
                for column, encoded in columns.items()
            }
            if {len(values) for values in vectors.values()} != {len(found["texts"])}:
                raise ValueError("there are not as many vectors as texts")
        except (ValueError, KeyError, ZeroDivisionError) as error:
            raise OutputError(f"{self.path}: the canaries in {MANIFEST} are damaged: {error}") from error
        return found["texts"], vectors

    def encode(
        self,
        texts: Sequence[str],
        *,
        as_query: bool = False,
        prompt: str | None = None,
        view: str | None = None,
        layer: int | str | None = None,
        trust: bool = False,
    ) -> npt.NDArray[Any]:
        """[n, W]: the vectors of texts by the run's encoder, which stays loaded, as a view of texts has them.

        `as_query`: with the prompt of queries: `prompt`, a text or the name of one of the model's, by default
        `encoder.query_prompt`. `view`, `layer`: may be left out if there is one. `trust`: as for `job`. ValueError for
        a text without a vector, or if encoder or versions have changed.
        """
        from layerbeam.pipeline.dataset.query_texts import load_query_encoder  # it imports Beam and TensorFlow

        of_texts = [name for name in self if self.view(name).level in ("text", "record")]
        if view is None and len(of_texts) != 1:
            raise ValueError(f"view is missing; {self.path} has {', '.join(of_texts) or 'no view of texts'}")
        name = of_texts[0] if view is None else view
        column = self.view(name).vector_column(layer)
        key = name, column, as_query, prompt
        try:
            if key not in self._encoders:
                self._encoders[key] = load_query_encoder(
                    self, name, column, as_query=as_query or prompt is not None, prompt=prompt, trust=trust
                )
            vectors: npt.NDArray[Any] = self._encoders[key].encode(texts)
        except UsageError as error:
            raise ValueError(f"encode: {error}") from error
        return vectors

    @property
    def coarse_columns(self) -> list[str]:
        """A sentence for each vector column for which int8 is too coarse in most blocks."""
        return coarse_columns(self.manifest["counts"])

    def block_of(self, part: Part) -> Commit | None:
        """The block that a part belongs to."""
        return self._index.block_of(part)

    def same_texts(self, part: Part, other: str) -> Part | None:
        """The part of another view that holds the same texts as this part."""
        block = self.block_of(part)
        return None if block is None else block.parts.get(other)

    def record_texts(self, block: Commit, *, pairs: bool = False) -> dict[tuple[str, int], str]:
        """The records of a block by the columns file and line, read again from the input. OSError if it has changed.

        `pairs`: the second texts, of those that have one.
        """
        from layerbeam.pipeline.config.restore import restore_config
        from layerbeam.transforms.read.block import read_block  # it imports Beam

        texts = read_block(block.files, restore_config(self.manifest, self.path).input)
        files, lines = (numbers.tolist() for numbers in texts.file_lines(texts.line))
        paths = [printable(own.file.path) for own in texts.files]
        places = ((paths[file], line) for file, line in zip(files, lines, strict=True))
        side = texts.pairs if pairs else texts.texts
        found = () if side is None else zip(places, side.to_pylist(), strict=True)
        return {place: text for place, text in found if text is not None}

    def check_files(self) -> list[str]:
        """What is wrong with the files: missing, of another size, or not listed. Their bytes are not read."""
        return check_files(self.path, self._index) + check_listing(self.path, self.manifest["views"], self._index)

    def check_part(self, part: Part) -> str | None:
        """What is wrong with the file of a part; None if its bytes have the SHA-256 recorded."""
        return check_part(self.path, part)

    def __getitem__(self, name: str) -> View:
        return self.view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.views)

    def _repr_html_(self) -> str:
        from layerbeam.pipeline.dataset.notebook import run_html

        return run_html(self)

    def __repr__(self) -> str:
        encoder = self.manifest["encoder"]
        incomplete = "" if self.manifest["complete"] else ", not complete"
        views = "".join(f"\n  {self.view(name)!r}" for name in self.views)
        return f"layerbeam run {self.path}{incomplete}: {encoder['handle']}, {shape_text(encoder)}{views}"
