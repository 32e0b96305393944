"""`layerbeam verify`: texts of a finished run, recomputed from the input and compared with what was written.

Texts are drawn at random. For each block that holds one of them, all its rows are compared in every column but the
vectors, and its parts with their SHA-256. For each text drawn, the tokens are compared with the reference WordPiece and
all vectors with `layerbeam.transforms.reference`, or with the SavedModel itself, called with one text at a time.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.config.layers import open_for
from layerbeam.pipeline.dataset import view as dataset
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.integrity import check_listing, check_part, check_sizes, read_commits, read_finished
from layerbeam.pipeline.output.manifest import Manifest, describe_views, differences, table_parts
from layerbeam.pipeline.verify.compare import ColumnComparison, compare_rows, tolerance_of
from layerbeam.pipeline.verify.recompute import RecomputedBlock, RecomputedJob, ReferenceEncoder
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import Commit, SkippedFile, printable
from layerbeam.transforms.encode.isolate import ENCODE_STAGE
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.layout import MANIFEST, REJECTS
from layerbeam.transforms.parts import FORMATS, as_matrix, read_rejects
from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.views import View

DEFAULT_SAMPLE = 100


@dataclasses.dataclass
class Verdict:
    """The result of `verify`: `problems` with rows or files; files that are `unverifiable`, and why.

    `hash_only`: views over the whole corpus, whose vectors are not compared.
    """

    path: str
    texts: int
    sampled: int
    seed: int
    compared_with: str
    hash_only: list[str]
    columns: list[ColumnComparison]
    problems: list[str] = dataclasses.field(default_factory=list)
    unverifiable: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.problems) or any(column.failures for column in self.columns)

    @property
    def result(self) -> str:
        """`pass`, `fail`, or `cannot verify` if nothing is wrong but some of the input is missing or has changed."""
        return "fail" if self.failed else "cannot verify" if self.unverifiable else "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON, which has no NaN: null."""
        columns = []
        for column in self.columns:
            values = dataclasses.asdict(column)
            columns.append({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()})
        return {"result": self.result} | dataclasses.asdict(self) | {"columns": columns}


def verify(output_path: str, *, sample: int = DEFAULT_SAMPLE, seed: int = 0) -> Verdict:
    """Compare `sample` texts, drawn with `seed`. UsageError if the run is not finished or the encoder has changed."""
    manifest = read_finished(output_path)
    job = _restore_job(manifest, output_path)
    commits = read_commits(output_path)
    try:
        encoder = ReferenceEncoder(job.encoder)
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error
    embedded = np.array([metrics.embedded_texts(commit.counts) for commit in commits], np.int64)
    verdict = Verdict(
        path=output_path,
        texts=int(embedded.sum()),
        sampled=0,
        seed=seed,
        compared_with=encoder.description,
        hash_only=[view.name for view in job.views if view.aggregates],
        columns=_columns(job),
        problems=_file_problems(output_path, manifest, commits),
        unverifiable=_changed_inputs(manifest),
    )
    recomputed = RecomputedJob(job, encoder)
    for number, texts in _draw(embedded, sample, seed):
        _check_block(verdict, recomputed, commits[number], texts)
    if not verdict.sampled and not verdict.unverifiable and not verdict.problems:
        verdict.unverifiable["(all)"] = "no text was embedded, so there is nothing to compare"
    return verdict


def _columns(job: Job) -> list[ColumnComparison]:
    """The vector columns to compare."""
    compute_dtype = job.config.encoder.compute_dtype
    return [
        ColumnComparison(view.name, column, view.dtype, view.format, tolerance_of(view, compute_dtype))
        for view in job.views
        if not view.aggregates
        for column in view.vector_columns
    ]


def _file_problems(output_path: str, manifest: Manifest, commits: Sequence[Commit]) -> list[str]:
    """Parts of another size than listed, files that are not listed, and tables whose bytes have changed."""
    problems = check_sizes(output_path, commits) + check_listing(output_path, manifest, commits)
    for table in table_parts(manifest).values():
        problem = check_part(output_path, table)
        problems += [f"{table.path} {problem}"] if problem else []
    return problems


def _restore_job(manifest: Manifest, output_path: str) -> Job:
    """The job of a finished run. UsageError if its encoder or versions are missing or have changed."""
    settings = dict(manifest["settings"])
    settings["output"] = {**settings["output"], "path": output_path}
    config = configuration.restore(settings, source=f"{output_path}/{MANIFEST}")
    job = resolve(config, open_for(config))
    changed = differences(manifest["identity"], job.head.identity)
    if changed:
        raise UsageError(
            f"{output_path}: cannot be verified, because what it was made with has changed:\n"
            + "\n".join(f"  {line}" for line in changed)
        )
    return job


def _changed_inputs(manifest: Manifest) -> dict[str, str]:
    """{file: reason} of the local input files that are missing or have another size than when they were read."""
    changed = {}
    for entry in manifest["inputs"]:
        if entry.get("left_out") is not None or not storage.is_local(entry["path"]):
            continue  # on a store each look costs a call: the bytes of the blocks drawn show a change
        now = storage.stat_file(entry["path"])
        if isinstance(now, SkippedFile):
            where = "" if os.path.isabs(entry["path"]) else f" ({os.path.abspath(entry['path'])})"
            changed[printable(entry["path"])] = f"{now.reason}{where}"
        elif now.size != entry["size"]:
            changed[printable(entry["path"])] = f"has {now.size:,} bytes now, and had {entry['size']:,}"
    return changed


def _draw(embedded: npt.NDArray[np.int64], sample: int, seed: int) -> Iterator[tuple[int, list[int]]]:
    """(number of the block, texts in it) of the texts drawn, in order."""
    total = int(embedded.sum())
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(sample, total), replace=False))
    ends = np.cumsum(embedded)
    blocks = np.searchsorted(ends, drawn, side="right")
    for number in np.unique(blocks):
        yield int(number), (drawn[blocks == number] - (ends[number] - embedded[number])).tolist()


def _check_block(verdict: Verdict, recomputed: RecomputedJob, commit: Commit, texts: Sequence[int]) -> None:
    """Recompute a block and add to the verdict what differs: all of its rows, and the vectors of `texts`."""
    path = printable(commit.block.file.path)
    if path in verdict.unverifiable:
        return
    try:
        text_block = read_block(commit.block, recomputed.job.records)
    except OSError as error:
        verdict.unverifiable[path] = storage.reason_of(error)
        return
    block = recomputed.block(text_block, _rejected_texts(verdict.path, commit))
    embedded = metrics.embedded_texts(commit.counts)
    if block.num_texts != embedded:
        verdict.problems.append(f"{path}: {commit.block.name} has {block.num_texts} texts, not {embedded}")
        return
    verdict.sampled += len(texts)
    verdict.problems += [
        f"{block.place(text)}: other tokens than the reference WordPiece gives"
        for text in texts
        if not block.has_reference_tokens(text)
    ]
    for view in recomputed.job.views:
        if not view.aggregates:
            verdict.problems += _check_view(verdict, view, commit, block, texts)


def _rejected_texts(output_path: str, commit: Commit) -> set[tuple[int, bytes]]:
    """(line, text) of the texts rejected while they were encoded, which only the run itself can know."""
    part = commit.parts.get(REJECTS)
    if part is None:
        return set()
    try:
        rejects = list(read_rejects(storage.join(output_path, part.path)))
    except OSError:
        return set()  # check_sizes has reported it
    return {(reject.line, reject.raw) for reject in rejects if reject is not None and reject.stage == ENCODE_STAGE}


def _check_view(
    verdict: Verdict, view: View, commit: Commit, block: RecomputedBlock, texts: Sequence[int]
) -> list[str]:
    """The problems with a block's part of one view; the vectors of `texts` are compared in the verdict's columns."""
    expected = block.rows(view)
    part = commit.parts.get(view.name)
    if part is None:
        return [f"{view.name}: {commit.block.name} has no part"] if expected.num_rows else []
    unchecked = dataclasses.replace(part, sha256="")  # a part of another size is compared, too
    try:
        found = dataset.View(verdict.path, view.name, describe_views([view])[view.name], (part,)).read(unchecked)
    except (OSError, ValueError) as error:
        return [f"{part.path} cannot be read: {str(error.__cause__ or error).splitlines()[0]}"]
    if not _has_columns(found, view):
        return [f"{part.path}: its columns are not those of the view"]
    stored_format = FORMATS[view.format]
    expected = pa.table({name: stored_format.as_stored(expected[name]) for name in expected.column_names})
    different = compare_rows(expected, found)
    if different:
        return [f"{part.path}: {difference}" for difference in different]  # vectors need rows to be compared with
    columns = [column for column in verdict.columns if column.view == view.name]
    for text in texts:
        rows, vectors = block.vectors(view, text)
        if not len(rows):
            continue
        for column, values in zip(columns, vectors, strict=True):
            stored = found[column.column].slice(int(rows[0]), len(rows)).combine_chunks()
            column.add(as_matrix(stored), values, block.place(text))
    problem = check_part(verdict.path, part)
    # A wrong size is among the problems already.
    return [] if problem is None or f"{part.path} {problem}" in verdict.problems else [f"{part.path} {problem}"]


def _has_columns(table: pa.Table, view: View) -> bool:
    """Whether the columns are the view's; a line of extract_features.py holds only some of them."""
    if FORMATS[view.format].is_columnar:
        return bool(table.schema.equals(schema(view)))
    return all(name in table.column_names for name in view.vector_columns)
