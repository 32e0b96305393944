"""`layerbeam verify`: texts of a finished run, recomputed from the input and compared with what was written.

Texts are drawn at random. For each block that holds one of them, all its rows are compared in every column but the
vectors, and its parts with their SHA-256. For each text drawn, the tokens are compared with the reference WordPiece and
all vectors with `layerbeam.transforms.reference`, or with the SavedModel itself, called with one text at a time.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.pipeline.console import underlying
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.dataset.view import UnknownNameError, draw_evenly
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.progress import Steps, show_progress
from layerbeam.pipeline.verify.compare import ColumnComparison, compare_rows, tolerance_of
from layerbeam.pipeline.verify.recompute import RecomputedBlock, RecomputedJob
from layerbeam.transforms import storage
from layerbeam.transforms.encode.isolate import ENCODE_STAGE
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.commits import Commit, printable
from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.number_types import NUMBER_TYPES, as_matrix
from layerbeam.transforms.views.view import ViewSpec


@dataclasses.dataclass
class Verdict:
    """The result of `verify`: `problems` with rows or files; files that are `unverifiable`, and why.

    `hash_only`: views over the whole corpus, whose vectors are not compared. `coarse`: columns for which int8 is.
    """

    path: str
    texts: int
    sampled: int
    seed: int
    compared_with: str
    hash_only: list[str]
    coarse: list[str]
    columns: list[ColumnComparison]
    problems: list[str]
    unverifiable: dict[str, str]

    @property
    def result(self) -> str:
        """`pass`, `fail`, or `cannot verify` if nothing is wrong but some of the input is missing or has changed."""
        if self.problems or any(column.failures for column in self.columns):
            return "fail"
        return "cannot verify" if self.unverifiable else "pass"

    def to_json(self) -> dict[str, Any]:
        return {"result": self.result} | dataclasses.asdict(self)


def verify(output_path: str, *, sample: int, seed: int, trust: bool = False) -> Verdict:
    """Compare `sample` texts, drawn with `seed`. UsageError if the run is not finished or the encoder has changed.

    `trust`: as for `Run.job`.
    """
    run = open_run(output_path, allow_incomplete=True)
    job = run.job(trust=trust)
    try:
        recomputed = RecomputedJob(job)
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error
    compute_dtype = job.config.encoder.compute_dtype
    embedded = [metrics.embedded_texts(block.counts) for block in run.blocks()]
    verdict = Verdict(
        path=output_path,
        texts=sum(embedded),
        sampled=0,
        seed=seed,
        compared_with=recomputed.encoder.description,
        hash_only=[view.name for view in job.views if view.aggregates],
        coarse=run.coarse_columns,
        columns=[
            ColumnComparison(view.name, column, view.dtype, view.format, tolerance_of(view, compute_dtype))
            for view in job.views
            if not view.aggregates
            for column in view.vector_columns
        ],
        problems=run.check_files(),
        unverifiable=_changed_inputs(run),
    )
    for part in (part for name in run if name in verdict.hash_only for part in run[name].parts):
        problem = run.check_part(part)
        verdict.problems += [f"{part.path} {problem}"] if problem else []
    drawn = draw_evenly(embedded, sample, np.random.default_rng(seed))
    comparison = _Comparison(run, recomputed, verdict, Steps("text", sum(map(len, drawn))))
    with show_progress(comparison.progress, stream=underlying(sys.stderr)):
        for block, texts in zip(run.blocks(), drawn, strict=True):
            if len(texts):
                comparison.add(block, texts.tolist())
    if not verdict.sampled and not verdict.unverifiable and not verdict.problems:
        verdict.unverifiable["(all)"] = "no text was embedded, so there is nothing to compare"
    return verdict


def _changed_inputs(run: Run) -> dict[str, str]:
    """{file: reason} of the local input files that are missing or have another size than when they were read."""
    changed = {}
    for entry in run.inputs():
        if entry.get("left_out") is not None or not storage.is_local(entry["path"]):
            continue  # on a store each look costs a call: the bytes of the blocks drawn show a change
        now = storage.stat_file(entry["path"])
        if now.problem:
            where = "" if os.path.isabs(entry["path"]) else f" ({os.path.abspath(entry['path'])})"
            changed[printable(entry["path"])] = f"{now.problem}{where}"
        elif now.size != entry["size"]:
            changed[printable(entry["path"])] = f"has {now.size:,} bytes now, and had {entry['size']:,}"
    return changed


class _Comparison:
    """Blocks of a run with what they should hold: the differences are added to the verdict."""

    def __init__(self, run: Run, recomputed: RecomputedJob, verdict: Verdict, progress: Steps) -> None:
        self.run, self.recomputed, self.verdict, self.progress = run, recomputed, verdict, progress
        self.views = [view for view in recomputed.job.views if not view.aggregates]

    def add(self, commit: Commit, texts: Sequence[int]) -> None:
        """Recompute a block and compare all of its rows, and the vectors of `texts`."""
        verdict, path = self.verdict, printable(commit.files[0].file.path)
        if any(printable(file.path) in verdict.unverifiable for file in commit.inputs):
            return
        try:
            text_block = read_block(commit.files, self.recomputed.job.records)
        except OSError as error:
            verdict.unverifiable[path] = storage.reason_of(error)
            return
        block = self.recomputed.block(text_block, self._rejected_texts(commit))
        embedded = metrics.embedded_texts(commit.counts)
        if block.num_texts != embedded:
            verdict.problems.append(f"{path}: {commit.name} has {block.num_texts} texts, not {embedded}")
            return
        verdict.sampled += len(texts)
        verdict.problems += [
            f"{block.place(text)}: other tokens than the reference WordPiece gives"
            for text in texts
            if not block.has_reference_tokens(text)
        ]
        found = [(view, self._checked_rows(view, commit, block)) for view in self.views]
        records = block.one_text_of_each_record(texts)
        for text in texts:  # outside, views inside: a text is encoded once for all of them
            for view, rows in found:
                if rows is not None and (view.level != "record" or text in records):
                    self._compare_vectors(view, rows, block, text)
            self.progress.done += 1

    def _rejected_texts(self, commit: Commit) -> set[tuple[str, int, bytes]]:
        """(file, line, text) of the texts rejected while they were encoded, which only the run itself can know."""
        try:
            rejects = self.run.rejects(commit)
        except OSError:
            return set()  # it is among the problems already
        return {(reject.file, reject.line, reject.raw) for reject in rejects if reject.stage == ENCODE_STAGE}

    def _checked_rows(self, view: ViewSpec, commit: Commit, block: RecomputedBlock) -> pa.Table | None:
        """A block's rows of one view, compared but for the vectors; None if these cannot be compared."""
        expected, part = block.rows(view), commit.parts.get(view.name)
        problems = self.verdict.problems
        if part is None:
            problems += [f"{view.name}: {commit.name} has no part"] if expected.num_rows else []
            return None
        try:
            stored = self.run[view.name].stored
            found = stored.read(dataclasses.replace(part, sha256=""))  # a part of another size is compared, too
        except (OSError, ValueError, UnknownNameError) as error:
            problems.append(f"{part.path} cannot be read: {str(error.__cause__ or error).splitlines()[0]}")
            return None
        # A line of extract_features.py holds only some of the other columns.
        lacks_vectors = not {*view.vector_columns} <= {*found.column_names}
        if lacks_vectors or (stored.file_format.is_columnar and not found.schema.equals(schema(view))):
            problems.append(f"{part.path}: its columns are not those of the view")
            return None
        expected = pa.table({name: stored.file_format.as_stored(expected[name]) for name in expected.column_names})
        compared = found
        for name in (field.name for field in found.schema if pa.types.is_list(field.type)):
            lengths = pa.array(block.num_vectors(view), pa.int32())
            expected = expected.append_column(f"length of {name}", lengths)
            compared = compared.append_column(f"length of {name}", pc.list_value_length(found[name]))
        different = compare_rows(expected, compared)
        problems += [f"{part.path}: {difference}" for difference in different]
        if different:
            return None
        problem = self.run.check_part(part)
        if problem is not None and f"{part.path} {problem}" not in problems:  # a wrong size is among them already
            problems.append(f"{part.path} {problem}")
        return NUMBER_TYPES[view.dtype].load(found)

    def _compare_vectors(self, view: ViewSpec, found: pa.Table, block: RecomputedBlock, text: int) -> None:
        """Compare the vectors of one text in one view."""
        rows, vectors = block.vectors(view, text)
        if not len(rows):
            return
        columns = [column for column in self.verdict.columns if column.view == view.name]
        exact = block.in_float32.vectors(view, text)[1] if block.in_float32 else [None] * len(columns)
        for column, values, in_float32 in zip(columns, vectors, exact, strict=True):
            stored = found[column.column].slice(int(rows[0]), len(rows)).combine_chunks()
            column.add(as_matrix(stored), values, block.place(text))
            if in_float32 is not None:
                column.add_float32(as_matrix(stored), in_float32)
