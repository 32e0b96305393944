"""An output folder driven as a run drives it, without a pipeline and an encoder: find, work, finish.

The functions are the product's own; only the vectors are arithmetic on the texts. What the functions hand to each other
is known here and in no test, so that tests hold for any way to do it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.config.identity import RunIdentity
from layerbeam.pipeline.output.commits import CommittedBlocks
from layerbeam.pipeline.output.find import FindWork, PendingWork, compare_group, find_work
from layerbeam.pipeline.output.finish import Finish
from layerbeam.pipeline.output.finish_group import finish_group
from layerbeam.pipeline.output.groups import Boundaries, Gathered, Group, GroupWork
from layerbeam.transforms.block_commit import put_commit
from layerbeam.transforms.blocks import Rows, TextBlock, TokenBlock, VectorBlock
from layerbeam.transforms.commits import Commit, InputFile
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import LINES, BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, cut_file, join_small_files, number_slices, scan_range
from layerbeam.transforms.views import View
from layerbeam.transforms.write.block import write_parts

HEAD: Any = RunIdentity(
    schema_version=1,
    fingerprint="",
    identity={"input": {"text_field": "text", "pair_field": None}, "views": {}},
    encoder={
        "handle": "arithmetic",
        "engine": "none",
        "hidden_size": 4,
        "num_hidden_layers": 1,
        "do_lower_case": False,
        "casing_from": "none",
        "vocabulary_size": 1,
    },
    settings={"input": {"max_reject_rate": 1.0}},
    versions={},
)
VOCABULARY = pa.array(["[UNK]"], pa.string())


def vectors_of(text: TextBlock, views: Sequence[View], processor: float) -> VectorBlock:
    """Vectors that depend on the text and, in the last value, on the processor."""
    count = len(text.texts)
    zeros = np.zeros(count, np.int32)
    rows = Rows(np.arange(count), np.arange(count), np.arange(count + 1))
    tokens = TokenBlock(
        text,
        np.arange(count + 1),
        zeros,
        zeros.astype(np.int8),
        zeros,
        zeros,
        zeros,
        zeros,
        zeros,
        rows={view.name: rows for view in views},
    )
    values = np.array([[len(t), 1, 2, processor] for t in text.texts.to_pylist()], np.float32).reshape(count, 4)
    return VectorBlock(tokens, {view.name: [values] for view in views})


@dataclasses.dataclass
class Begun:
    """What a run found when it began. `to_read`: for its workers; the rest is for its end."""

    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    known: list[GroupWork] = dataclasses.field(default_factory=list)
    boundaries: Boundaries = dataclasses.field(default_factory=lambda: Boundaries(("",)))


@dataclasses.dataclass
class OutputFolder:
    """An output folder, and the settings of the run that works in it.

    `path`: of the folder. `patterns`: of the input. `processor`: see `vectors_of`. `encoded`: (file, line) of each
    text that was encoded, and not found committed, since it was emptied.
    """

    path: str
    patterns: list[str]
    views: tuple[View, ...]
    fingerprint: str
    limits: BlockLimits
    limit: int | None = None
    attempt: int = 1
    processor: float = 0.25
    encoded: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    @property
    def output(self) -> Output:
        return Output(self.path, self.fingerprint, attempt=self.attempt)

    def find(self) -> PendingWork:
        """What a run would do now."""
        return find_work(
            self.patterns,
            self.path,
            fingerprint=self.fingerprint,
            limit=self.limit,
            record_format=LINES,
            slice_bytes=self.limits.text_bytes,
        )

    def run(self, *, prune_missing: bool = False, blocks: int | None = None) -> bool | None:
        """Begin, work, finish; True if the folder is complete. None if it was killed, after so many `blocks`."""
        begun = self.begin(prune_missing=prune_missing)
        reports = []
        for report in self.work(begun.to_read):
            reports.append(report)
            if blocks is not None and sum(isinstance(done, Commit) for done in reports) > blocks:
                return None
        return self.finish(begun, reports)

    def begin(self, *, prune_missing: bool = False) -> Begun:
        """Find what is left to do; the folder does not say any more that it is complete."""
        stage = FindWork(
            self.patterns, self.path, prune_missing, self.limit, LINES, self.fingerprint, self.limits, spread=False
        )
        begun = Begun()
        for item in stage._list(None):
            if not isinstance(item, Group):
                begun.boundaries = item.value
                continue
            known, to_read, _ = compare_group(
                self.path, item, prune_missing=prune_missing, fingerprint=self.fingerprint
            )
            begun.known.append(known)
            begun.to_read += join_small_files(to_read, self.limits, LINES)
        return begun

    def work(self, files: Sequence[FileToRead]) -> Iterator[Commit | InputFile]:
        """What workers do: the blocks of the files, one after the other, found committed or written and committed."""
        known = CommittedBlocks(self.path, self.fingerprint)
        for file in files:
            scans = [scan_range(*cut, self.limits, LINES) for cut in cut_file(file, self.limits.text_bytes, LINES)]
            for slice_ in number_slices(scans):
                if isinstance(slice_, InputFile):
                    yield slice_
                    continue
                for item in read_blocks(slice_, self.limits, LINES, self.fingerprint, known=known):
                    yield from self._write(item) if isinstance(item, TextBlock) else [item]

    def _write(self, text: TextBlock) -> Iterator[Commit | InputFile]:
        numbers, lines = text.file_lines(text.line)
        self.encoded += [
            (text.files[number].file.path, int(line))
            for number, line in zip(numbers.tolist(), lines.tolist(), strict=True)
        ]
        for written in write_parts(self.output, self.views, VOCABULARY, vectors_of(text, self.views, self.processor)):
            yield put_commit(self.output, written) if isinstance(written, Commit) else written

    def finish(self, begun: Begun, reports: Iterable[Commit | InputFile]) -> bool:
        """The end of a run whose workers reported this; True if it is complete."""
        views = {view.name: {"level": view.level, "keep_words": None} for view in self.views}
        head = HEAD | {"fingerprint": self.fingerprint, "identity": {**HEAD["identity"], "views": views}}
        end = Finish(self.output, self.views, head, 1.0, LINES, limit=self.limit)
        gathered = [Gathered(known) for known in begun.known]
        for report in reports:
            path = report.path if isinstance(report, InputFile) else next(report.of_files()).block.file.path
            gathered[begun.boundaries.number_of(path)].add(report)
        limited = self.limit is not None
        found = [finish_group(self.output, self.views, of_group, LINES, limited=limited) for of_group in gathered]
        manifest = end.write_manifest(end.write_index(found))
        end.finish_run(is_complete=manifest["complete"])
        return bool(manifest["complete"])
