"""An output folder driven as a run drives it, without a pipeline and an encoder: find, work, finish.

The functions are the product's own; only the vectors are arithmetic on the texts. What the functions hand to each other
is known here and in no test, so that tests hold for any way to do it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.config.identity import RunIdentity
from layerbeam.pipeline.output.commits import compact
from layerbeam.pipeline.output.finish import RunEnd
from layerbeam.pipeline.output.work import PendingWork, WorkList, begin_work, find_work, is_finished
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.blocks import Rows, TextBlock, TokenBlock, VectorBlock
from layerbeam.transforms.flow.commits import Commit, InputFile
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import LINES, BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, cut_file, number_slices, scan_range
from layerbeam.transforms.views.view import ViewSpec
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


def vectors_of(text: TextBlock, views: Sequence[ViewSpec], processor: float) -> VectorBlock:
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
class OutputFolder:
    """An output folder, and the settings of the run that works in it.

    `path`: of the folder. `patterns`, `max_missing`: of the input. `processor`: see `vectors_of`. `encoded`: (file,
    line) of each text that was encoded, and not found committed, since it was emptied.
    """

    path: str
    patterns: list[str]
    views: tuple[ViewSpec, ...]
    fingerprint: str
    limits: BlockLimits
    limit: int | None = None
    max_missing: float = 0
    attempt: int = 1
    processor: float = 0.25
    encoded: list[tuple[str, int]] = dataclasses.field(default_factory=list)

    @property
    def output(self) -> Output:
        return Output(self.path, self.fingerprint, attempt=self.attempt)

    @property
    def job(self) -> Any:
        """What `find` asks a job for."""
        given = types.SimpleNamespace(files=self.patterns, shard=None, limit=self.limit, max_missing=self.max_missing)
        config = types.SimpleNamespace(input=given)
        return types.SimpleNamespace(
            config=config, output=self.output, records=LINES, limits=self.limits, views=self.views
        )

    def find(self) -> PendingWork:
        """What a run would do now."""
        return find_work(self.job)

    @property
    def is_finished(self) -> bool:
        """Whether a run would have nothing to do."""
        return is_finished(self.path, 1.0, self.find())

    def run(self, *, prune_missing: bool = False, blocks: int | None = None) -> bool | None:
        """Begin, work, finish; True if the folder is complete. None if it was killed, after so many `blocks`."""
        problems, done = [], 0
        for report in self.work(self.begin(prune_missing=prune_missing)):
            if isinstance(report, InputFile):
                problems.append(report)
            else:
                done += 1
            if blocks is not None and done > blocks:
                return None
        return self.finish(problems)

    def begin(self, *, prune_missing: bool = False) -> list[FileToRead]:
        """Find what is left to do; the folder does not say any more that it is complete."""
        begin_work(self.job, self.attempt, find_work(self.job, prune_missing=prune_missing))
        return list(WorkList(self.path, self.attempt).items())

    def work(self, files: Sequence[FileToRead]) -> Iterator[Commit | InputFile]:
        """What workers do: the blocks of the files, one after the other, found committed or written and committed."""
        store = BlockStore(self.output, self.views)
        for file in files:
            scans = [scan_range(*cut, self.limits, LINES) for cut in cut_file(file, self.limits.text_bytes, LINES)]
            for slice_ in number_slices(scans, self.limits):
                if isinstance(slice_, InputFile):
                    yield slice_
                    continue
                for item in read_blocks(slice_, self.limits, LINES, store):
                    yield from self._write(store, item) if isinstance(item, TextBlock) else [item]

    def _write(self, store: BlockStore, text: TextBlock) -> Iterator[Commit | InputFile]:
        numbers, lines = text.file_lines(text.line)
        self.encoded += [
            (text.files[number].file.path, int(line))
            for number, line in zip(numbers.tolist(), lines.tolist(), strict=True)
        ]
        for written in write_parts(store, VOCABULARY, vectors_of(text, self.views, self.processor)):
            yield store.put(written) if isinstance(written, Commit) else written

    def finish(self, problems: Iterable[InputFile] = ()) -> bool:
        """The end of a run whose workers could not read these files; True if it is complete."""
        views = {view.name: {"level": view.level, "keep_words": None} for view in self.views}
        head = HEAD | {"fingerprint": self.fingerprint, "identity": {**HEAD["identity"], "views": views}}
        names = storage.file_names(storage.join(self.path, layout.COMMITS))
        for some in storage.in_batches(names, 3):
            compact(self.path, some)
        manifest = RunEnd(self.output, self.views, head, 1.0, "text", self.attempt).finish(problems)
        return bool(manifest["complete"])
