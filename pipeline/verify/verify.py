"""`layerbeam verify`: texts of a finished run, recomputed from the input and compared with what was written.

Texts are drawn at random. For each block that holds one of them, all its rows are compared in every column but the
vectors, and its parts with their SHA-256. For each text drawn, the tokens are compared with the reference WordPiece and
all vectors with `layerbeam.transforms.reference`, or with the SavedModel itself, called with one text at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.pipeline.config import load as configuration
from layerbeam.pipeline.config.identity import differences
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.console import underlying
from layerbeam.pipeline.dataset import view as dataset
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import broken_parts
from layerbeam.pipeline.output.index import input_entries, read_index
from layerbeam.pipeline.output.integrity import check_listing, check_part, read_finished
from layerbeam.pipeline.output.manifest import Manifest, describe_views, table_parts
from layerbeam.pipeline.progress import Steps, show_progress
from layerbeam.pipeline.verify.compare import ColumnComparison, compare_rows, tolerance_of
from layerbeam.pipeline.verify.recompute import RecomputedBlock, RecomputedJob
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import Commit, Part, printable
from layerbeam.transforms.encode.isolate import ENCODE_STAGE
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.layout import MANIFEST, REJECTS
from layerbeam.transforms.parts import FORMATS, as_matrix, read_rejects
from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.views import View


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

    `trust`: as for `restore_job`.
    """
    manifest = read_finished(output_path)
    job = restore_job(manifest, output_path, trust=trust)
    index = read_index(output_path, manifest)
    try:
        recomputed = RecomputedJob(job)
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error
    compute_dtype = job.config.encoder.compute_dtype
    embedded = [metrics.embedded_texts(commit.counts) for commit in index]
    verdict = Verdict(
        path=output_path,
        texts=sum(embedded),
        sampled=0,
        seed=seed,
        compared_with=recomputed.encoder.description,
        hash_only=[view.name for view in job.views if view.aggregates],
        columns=[
            ColumnComparison(view.name, column, view.dtype, view.format, tolerance_of(view, compute_dtype))
            for view in job.views
            if not view.aggregates
            for column in view.vector_columns
        ],
        problems=[f"{path} {problem}" for path, problem in broken_parts(output_path, index).items()],
        unverifiable=_changed_inputs(output_path, manifest),
    )
    verdict.problems += check_listing(output_path, manifest, index)
    for part in itertools.chain.from_iterable(table_parts(manifest).values()):
        problem = check_part(output_path, part)
        verdict.problems += [f"{part.path} {problem}"] if problem else []
    drawn = dataset.draw_evenly(embedded, sample, np.random.default_rng(seed))
    progress = Steps("text", sum(map(len, drawn)))
    check = functools.cache(functools.partial(check_part, output_path))  # files may share a part
    with show_progress(progress, stream=underlying(sys.stderr)):
        for commit, texts in zip(index, drawn, strict=True):
            if len(texts):
                _check_block(verdict, recomputed, commit, texts.tolist(), progress, check)
    if not verdict.sampled and not verdict.unverifiable and not verdict.problems:
        verdict.unverifiable["(all)"] = "no text was embedded, so there is nothing to compare"
    return verdict


def restore_job(run: Mapping[str, Any], output_path: str, *, trust: bool) -> Job:
    """The job of a manifest or an attempt's record. UsageError if encoder or versions are missing or have changed.

    `trust`: also open what is no data on this machine: a function, an address, a SavedModel. Else it is a UsageError.
    """
    settings = dict(run["settings"])
    settings["output"] = {**settings["output"], "path": output_path}
    # The forms themselves, not the file that they came from: the folder could name any file.
    settings["views"] = {
        name: {**view, "keep_words": run["identity"]["views"][name]["keep_words"]}
        for name, view in settings["views"].items()
    }
    config = configuration.restore(settings, source=f"{output_path}/{MANIFEST}")
    handle, sentences = config.encoder.handle, config.input.sentences
    if not trust and config.input.unit == "sentence" and sentences not in ("sentencex", "tensorflow_text"):
        raise _distrust(output_path, f"import and call the function {sentences} (input.sentences)")
    if not trust and "://" in handle:
        raise _distrust(output_path, f"fetch the encoder from {handle}")
    job = resolve(config)
    if not trust and job.encoder.kind == "savedmodel":
        raise _distrust(output_path, f"open the SavedModel {handle}, a program that can read and write your files")
    changed = differences(run["identity"], job.head["identity"])
    if changed:
        raise UsageError(
            f"{output_path}: what it was made with has changed:\n" + "\n".join(f"  {line}" for line in changed)
        )
    return job


def _distrust(output_path: str, what: str) -> UsageError:
    return UsageError(
        f"{output_path}: this would {what}, because the folder says so; if the folder is yours, or you trust who wrote "
        "it, add --trust"
    )


def _changed_inputs(output_path: str, manifest: Manifest) -> dict[str, str]:
    """{file: reason} of the local input files that are missing or have another size than when they were read."""
    changed = {}
    for entry in input_entries(output_path, manifest):
        if entry.get("left_out") is not None or not storage.is_local(entry["path"]):
            continue  # on a store each look costs a call: the bytes of the blocks drawn show a change
        now = storage.stat_file(entry["path"])
        if now.problem:
            where = "" if os.path.isabs(entry["path"]) else f" ({os.path.abspath(entry['path'])})"
            changed[printable(entry["path"])] = f"{now.problem}{where}"
        elif now.size != entry["size"]:
            changed[printable(entry["path"])] = f"has {now.size:,} bytes now, and had {entry['size']:,}"
    return changed


def _check_block(
    verdict: Verdict,
    recomputed: RecomputedJob,
    commit: Commit,
    texts: Sequence[int],
    progress: Steps,
    check: Callable[[Part], str | None],
) -> None:
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
    comparable = []
    for view in recomputed.job.views:
        if view.aggregates:
            continue
        problems, found = _check_rows(verdict, view, commit, block, check)
        verdict.problems += problems
        if found is not None:
            comparable.append((view, found))
    records = block.one_text_of_each_record(texts)
    for text in texts:  # outside, views inside: a text is encoded once for all of them
        for view, found in comparable:
            if view.level != "record" or text in records:
                _compare_vectors(verdict, view, found, block, text)
        progress.done += 1


def _rejected_texts(output_path: str, commit: Commit) -> set[tuple[int, bytes]]:
    """(line, text) of the texts rejected while they were encoded, which only the run itself can know."""
    part = commit.parts.get(REJECTS)
    if part is None:
        return set()
    try:
        rejects = list(read_rejects(storage.join(output_path, part.path)))
    except OSError:
        return set()  # it is among the problems already
    own = (reject for reject in rejects[part.rows_of_file] if reject is not None and reject.stage == ENCODE_STAGE)
    return {(reject.line, reject.raw) for reject in own}


def _check_rows(
    verdict: Verdict, view: View, commit: Commit, block: RecomputedBlock, check: Callable[[Part], str | None]
) -> tuple[list[str], pa.Table | None]:
    """(the problems with a block's part of one view, its rows if the vectors can be compared)."""
    expected = block.rows(view)
    part = commit.parts.get(view.name)
    if part is None:
        return [f"{view.name}: {commit.block.name} has no part"] if expected.num_rows else [], None
    unchecked = dataclasses.replace(part, sha256="")  # a part of another size is compared, too
    try:
        found = dataset.View(verdict.path, view.name, describe_views([view])[view.name], (part,)).read(unchecked)
    except (OSError, ValueError) as error:
        return [f"{part.path} cannot be read: {str(error.__cause__ or error).splitlines()[0]}"], None
    stored_format = FORMATS[view.format]
    # A line of extract_features.py holds only some of the other columns.
    lacks_vectors = not {*view.vector_columns} <= {*found.column_names}
    if lacks_vectors or (stored_format.is_columnar and not found.schema.equals(schema(view))):
        return [f"{part.path}: its columns are not those of the view"], None
    expected = pa.table({name: stored_format.as_stored(expected[name]) for name in expected.column_names})
    different = compare_rows(expected, found)
    if different:
        return [f"{part.path}: {difference}" for difference in different], None
    problem = check(part.whole)
    # A wrong size is among the problems already.
    known = problem is None or f"{part.path} {problem}" in verdict.problems
    return [] if known else [f"{part.path} {problem}"], found


def _compare_vectors(verdict: Verdict, view: View, found: pa.Table, block: RecomputedBlock, text: int) -> None:
    """Compare the vectors of one text in one view."""
    rows, vectors = block.vectors(view, text)
    if not len(rows):
        return
    columns = [column for column in verdict.columns if column.view == view.name]
    for column, values in zip(columns, vectors, strict=True):
        stored = found[column.column].slice(int(rows[0]), len(rows)).combine_chunks()
        column.add(as_matrix(stored), values, block.place(text))
