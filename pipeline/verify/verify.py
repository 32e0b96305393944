"""`layerbeam verify`: rows of a finished run against the plain computation, made anew from the text.

Texts are drawn at random. Of each block that holds one, all rows are compared in all columns but the vectors, and the
bytes of its parts with their hash; of each text drawn, the tokens with the plain WordPiece and all vectors with the
SavedModel itself, one text at a time, or with `layerbeam.transforms.reference`.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerbeam.pipeline.cli.console import count_noun, plain_console
from layerbeam.pipeline.config import schema as configuration
from layerbeam.pipeline.config.job import Job, resolve
from layerbeam.pipeline.config.layers import open_for
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.integrity import check_listing, check_part, check_sizes, read_commits, read_finished
from layerbeam.pipeline.output.manifest import differences, table_parts
from layerbeam.pipeline.verify.recompute import ExpectedRows, ReferenceEncoder
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import TokenBlock
from layerbeam.transforms.commits import Commit, Part, SkippedFile, printable
from layerbeam.transforms.encode.isolate import ENCODE_STAGE
from layerbeam.transforms.encoders import EncoderError
from layerbeam.transforms.layout import MANIFEST, REJECTS
from layerbeam.transforms.parts import FORMATS, as_matrix, read_rejects, read_tables
from layerbeam.transforms.read.block import read_block
from layerbeam.transforms.subset import raw_text, take_texts
from layerbeam.transforms.views import View, schema

Array = npt.NDArray[Any]

DEFAULT_SAMPLE = 100
_PLACES = 5


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """A value x may be off by `absolute + relative * |x|`."""

    absolute: float
    relative: float

    def allows(self, got: Array, expected: Array) -> npt.NDArray[np.bool_]:
        """Of each row of [n, W] whether it is near enough to the expected one."""
        near: npt.NDArray[np.bool_] = np.abs(got - expected) <= self.absolute + self.relative * np.abs(expected)
        return np.asarray(near.all(axis=1))

    def __str__(self) -> str:
        return f"{self.absolute:.2e}".replace(".00", "") + f" + {self.relative:.0e} |x|"


@dataclasses.dataclass(frozen=True)
class DirectionTolerance:
    """A vector may turn until its cosine with the expected one is `cosine`, and be longer or shorter by `length`."""

    cosine: float
    length: float

    def allows(self, got: Array, expected: Array) -> npt.NDArray[np.bool_]:
        """Of each row of [n, W] whether it is near enough to the expected one."""
        lengths, wanted = np.linalg.norm(got, axis=1), np.linalg.norm(expected, axis=1)
        near = (np.abs(lengths - wanted) <= self.length * wanted) & (cosines(got, expected) >= self.cosine)
        return np.asarray(near)

    def __str__(self) -> str:
        lengths = f"{1 - self.length:g} to {1 + self.length:g}"
        return f"cosine {self.cosine:g} and length {lengths} after products of bfloat16,"


def cosines(got: Array, expected: Array) -> Array:
    """Of each row of [n, W] with the same one of the other; 1 where one of them is zero."""
    norms = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
    angles: Array = np.where(norms == 0, 1.0, (got * expected).sum(axis=1) / np.where(norms == 0, 1.0, norms))
    return angles


# By the number type in the file. Rounding: float32 is summed in another order (3e-6 in BERT-base, see the README);
# float16 keeps 11 bits.
TOLERANCES = {"float32": Tolerance(1e-4, 1e-5), "float16": Tolerance(1e-4, 1e-3)}
# Products of bfloat16, which keeps 8 bits, turn every value a little: 0.9999 in MiniLM and BERT-base's size, 12 blocks.
BFLOAT16 = DirectionTolerance(0.998, 0.02)


def tolerance_of(view: View, compute_dtype: str) -> Tolerance | DirectionTolerance:
    """How far the vectors of a view's files may be off."""
    if compute_dtype == "bfloat16":
        return BFLOAT16
    tolerance = TOLERANCES[view.dtype]
    return Tolerance(tolerance.absolute + FORMATS[view.format].rounding, tolerance.relative)


@dataclasses.dataclass
class ColumnComparison:
    """One vector column of a view: how far it is off, and where it is more than the tolerance."""

    view: str
    column: str
    dtype: str
    format: str
    tolerance: Tolerance | DirectionTolerance
    rows: int = 0
    max_difference: float = 0.0
    min_cosine: float = 1.0
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, got: Array, expected: Array, where: str) -> None:
        """Compare the rows of a text, [n, W] each."""
        got, expected = got.astype(np.float64), expected.astype(np.float64)
        off = np.abs(got - expected)
        self.rows += len(got)
        # max and min of NaN are NaN, which is no pass.
        self.max_difference = float(np.max([self.max_difference, off.max(initial=0)]))
        self.min_cosine = float(np.min([self.min_cosine, cosines(got, expected).min(initial=1)]))
        wrong = np.flatnonzero(~self.tolerance.allows(got, expected))
        if len(wrong):
            self.failures.append(f"{where}, row {wrong[0]} of the text: off by {off[wrong[0]].max():.3g}")


@dataclasses.dataclass
class Verdict:
    """What `verify` found. `problems`: rows or files that are not as they should be; `unverifiable`: files, and why.

    `hash_only`: views over the whole corpus, of which no vector was compared.
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
        """`pass`, `fail`, or `cannot verify` where nothing is wrong but some of the input is gone or changed."""
        return "fail" if self.failed else "cannot verify" if self.unverifiable else "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON, which knows no NaN: null."""
        columns = []
        for column in self.columns:
            figures = dataclasses.asdict(column)
            columns.append({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in figures.items()})
        return {"result": self.result} | dataclasses.asdict(self) | {"columns": columns}


def verify(output_path: str, *, sample: int = DEFAULT_SAMPLE, seed: int = 0) -> Verdict:
    """Compare `sample` texts, drawn with `seed`. UsageError where there is no finished run or another encoder."""
    manifest = read_finished(output_path)
    job = _job_of(manifest, output_path)
    commits = read_commits(output_path)
    plain = _plain_encoder(job)
    embedded = np.array([metrics.embedded_texts(commit.counts) for commit in commits], np.int64)
    compute_dtype = job.config.encoder.compute_dtype
    columns = {
        (view.name, column): ColumnComparison(
            view.name, column, view.dtype, view.format, tolerance_of(view, compute_dtype)
        )
        for view in job.views
        if view.level != "word_type"
        for column in view.vector_columns
    }
    hash_only = [view.name for view in job.views if view.level == "word_type"]
    verdict = Verdict(output_path, int(embedded.sum()), 0, seed, plain.path, hash_only, list(columns.values()))
    verdict.problems += check_sizes(output_path, commits) + check_listing(output_path, manifest, commits)
    for table in table_parts(manifest).values():
        problem = check_part(output_path, table)
        verdict.problems += [f"{table.path} {problem}"] if problem else []
    verdict.unverifiable |= _changed_inputs(manifest)
    expected = ExpectedRows(job, plain)
    for number, texts in _draw(embedded, sample, seed):
        commit = commits[number]
        path = printable(commit.block.file.path)
        if path in verdict.unverifiable:
            continue
        try:
            block = read_block(commit.block, job.records)
        except OSError as error:
            verdict.unverifiable[path] = storage.reason_of(error)
            continue
        tokens = without_rejects(expected.tokens(block), rejected_texts(output_path, commit))
        if len(tokens.num_dropped) != embedded[number]:
            verdict.problems.append(
                f"{path}: {commit.block.name} has {len(tokens.num_dropped)} texts, not {embedded[number]}"
            )
            continue
        verdict.sampled += len(texts)
        verdict.problems += expected.check_tokens(tokens, texts)
        for view in job.views:
            part = commit.parts.get(view.name)
            if view.level == "word_type":
                continue
            of_view = {column: columns[view.name, column] for column in view.vector_columns}
            verdict.problems += _check_part(output_path, part, tokens, view, texts, expected, of_view)
    if not verdict.sampled and not verdict.unverifiable and not verdict.problems:
        verdict.unverifiable["(all)"] = "no text was embedded, so there is nothing to compare"
    return verdict


def _job_of(manifest: Mapping[str, Any], output_path: str) -> Job:
    """The job of a finished run again. UsageError where it cannot be had, or is another one by now."""
    settings = dict(manifest["settings"])
    settings["output"] = {**settings["output"], "path": output_path}
    config = configuration.restore(settings, source=f"{output_path}/{MANIFEST}")
    job = resolve(config, open_for(config))
    changed = differences(manifest["identity"], job.head.identity)
    if changed:
        raise UsageError(
            f"{output_path}: cannot be verified: what made it is no longer there as it was:\n"
            + "\n".join(f"  {line}" for line in changed)
        )
    return job


def _plain_encoder(job: Job) -> ReferenceEncoder:
    try:
        return ReferenceEncoder(job.encoder)
    except EncoderError as error:
        raise UsageError(f"encoder.handle: {error}") from error


def _changed_inputs(manifest: Mapping[str, Any]) -> dict[str, str]:
    """{file: reason} of the input files on this machine that are gone or have another size than when they were read."""
    changed = {}
    for entry in manifest["inputs"]:
        if entry.get("left_out") is not None or not storage.is_local(entry["path"]):
            continue  # elsewhere each look costs a call: there it is told by the bytes of the blocks drawn
        now = storage.stat_file(entry["path"])
        if isinstance(now, SkippedFile):
            where = "" if os.path.isabs(entry["path"]) else f" ({os.path.abspath(entry['path'])})"
            changed[printable(entry["path"])] = f"{now.reason}{where}"
        elif now.size != entry["size"]:
            changed[printable(entry["path"])] = f"has {now.size:,} bytes now, and had {entry['size']:,}"
    return changed


def rejected_texts(output_path: str, commit: Commit) -> set[tuple[int, bytes]]:
    """(line, text) of those that were rejected because the encoder has no vectors for them: only a run can tell."""
    part = commit.parts.get(REJECTS)
    if part is None:
        return set()
    try:
        rejects = list(read_rejects(storage.join(output_path, part.path)))
    except OSError:
        return set()  # said already: it is missing
    return {(reject.line, reject.raw) for reject in rejects if reject is not None and reject.stage == ENCODE_STAGE}


def without_rejects(tokens: TokenBlock, rejected: Container[tuple[int, bytes]]) -> TokenBlock:
    """The block without the texts that were rejected while it was encoded."""
    if not rejected:
        return tokens
    keys = ((int(line), raw_text(tokens.text, text)) for text, line in enumerate(tokens.text.line))
    texts = np.array([text for text, key in enumerate(keys) if key not in rejected], np.int64)
    return take_texts(tokens, tokens.text.take(texts), texts)


def _draw(embedded: npt.NDArray[np.int64], sample: int, seed: int) -> Iterator[tuple[int, list[int]]]:
    """(number of the block, texts in it) of the texts drawn, in order."""
    total = int(embedded.sum())
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(sample, total), replace=False))
    ends = np.cumsum(embedded)
    blocks = np.searchsorted(ends, drawn, side="right")
    for number in np.unique(blocks):
        yield int(number), (drawn[blocks == number] - (ends[number] - embedded[number])).tolist()


def _check_part(
    output_path: str,
    part: Part | None,
    tokens: TokenBlock,
    view: View,
    texts: Sequence[int],
    expected: ExpectedRows,
    columns: Mapping[str, ColumnComparison],
) -> list[str]:
    """Compare all rows of a block without their vectors, and the vectors of the texts drawn."""
    wanted = pa.table(expected.rows(view, tokens))
    if part is None:
        return [f"{view.name}: {tokens.text.block.name} has no part"] if wanted.num_rows else []
    try:
        path = storage.join(output_path, part.path)
        found = _read_part(path, view)
        if found is None:
            return [f"{part.path}: its columns are not those of the view"]
        stored = FORMATS[view.format].as_stored
        wanted = pa.table({name: stored(wanted[name]) for name in wanted.column_names})
        beside = [name for name in wanted.column_names if name in found.column_names]
        problems = _compare_rows(part, wanted.select(beside), found.select(beside))
        if problems:
            return problems  # where rows are amiss, vectors have no rows to be compared with
        if hashlib.sha256(storage.read_bytes(path)).hexdigest() != part.sha256:
            problems.append(f"{part.path}: has changed since it was written: its SHA-256 is not the one listed")
        for text in texts:
            rows, vectors = expected.vectors(view, tokens, text)
            if not len(rows):
                continue
            where = f"{printable(tokens.text.block.file.path)} line {tokens.text.line[text]}"
            for (name, compared), values in zip(columns.items(), vectors, strict=True):
                given = found[name].slice(int(rows[0]), len(rows)).combine_chunks()
                compared.add(as_matrix(given), values, where)
    except (OSError, ValueError, pa.ArrowException) as error:
        return [f"{part.path} cannot be read: {str(error).splitlines()[0]}"]
    return problems


def _read_part(path: str, view: View) -> pa.Table | None:
    """A part's rows, of any format (lines as extract_features.py's have few columns); None for another view's."""
    columns = schema(view)
    tables = list(read_tables(path, columns))
    table = pa.concat_tables(tables) if tables else columns.empty_table()
    if FORMATS[view.format].is_columnar:
        return table if table.schema.equals(columns) else None
    return table if all(name in table.column_names for name in view.vector_columns) else None


def _compare_rows(part: Part, wanted: pa.Table, found: pa.Table) -> list[str]:
    """What is wrong with the rows of a part, without their vectors."""
    odd = [name for name in wanted.column_names if not _same(wanted[name], found[name])]
    if not odd:
        return []
    should, rows = _rows_of_lines(wanted), _rows_of_lines(found)
    problems: dict[str, list[int]] = collections.defaultdict(list)
    if found.num_rows and list(rows) != sorted(rows):
        problems["not in the order of their lines"].append(next(iter(rows)))
    for line in sorted(should.keys() | rows.keys()):
        expected, got = should.get(line, []), rows.get(line, [])
        if repr(got) == repr(expected):
            continue
        if not got:
            kind = "missing"
        elif not expected:
            kind = "there, and no text has them"
        elif len(got) > len(expected) and {repr(row) for row in got} == {repr(row) for row in expected}:
            kind = "doubled"
        elif len(got) != len(expected):
            kind = "of another number than they should be"
        else:
            names = [name for name in odd if [row[name] for row in got] != [row[name] for row in expected]]
            kind = f"with another {', '.join(names)}"
        problems[kind].append(line)
    return [
        f"{part.path}: rows of {count_noun(len(lines), 'record')} are {kind} (the first at line {lines[0]})"
        for kind, lines in problems.items()
    ]


def _same(wanted: pa.ChunkedArray, found: pa.ChunkedArray) -> bool:
    """Whether both hold the same; NaN is equal to itself here."""
    return wanted.equals(found) or (
        pa.types.is_floating(wanted.type) and repr(wanted.to_pylist()) == repr(found.to_pylist())
    )


def _rows_of_lines(table: pa.Table) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        rows.setdefault(-1 if row["line"] is None else row["line"], []).append(row)
    return rows


def print_verdict(verdict: Verdict) -> None:
    """To the terminal."""
    from rich import box
    from rich.table import Table

    console = plain_console(soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    figures = ("rows", "largest diff.", "smallest cosine")
    for heading in ("view", "column", "type", *figures, ""):
        table.add_column(heading, justify="right" if heading in figures else "left")
    for column in verdict.columns:
        table.add_row(
            column.view,
            column.column,
            column.dtype,
            f"{column.rows:,}",
            f"{column.max_difference:.2g}" if column.rows else "-",
            f"{column.min_cosine:.9f}" if column.rows else "-",
            "FAIL" if column.failures else "pass" if column.rows else "",
        )
    texts = f"{verdict.sampled:,} of {count_noun(verdict.texts, 'text')} (seed {verdict.seed})"
    console.print(f"{verdict.path}: {texts} against {verdict.compared_with}")
    console.print(table)
    for view in verdict.hash_only:
        console.print(f"{view}: one row per word over the whole corpus; its hash was compared, not its vectors")
    allowed = {(column.dtype, FORMATS[column.format].rounding > 0): column.tolerance for column in verdict.columns}
    for (dtype, is_text), tolerance in sorted(allowed.items()):
        console.print(f"allowed   {tolerance} in {dtype}{', six decimals' if is_text else ''}")
    for column in verdict.columns:
        for failure in column.failures[:_PLACES]:
            console.print(f"FAIL      {column.view}, {column.column}: {failure}")
        if len(column.failures) > _PLACES:
            console.print(f"          and {len(column.failures) - _PLACES:,} texts more")
    for problem in verdict.problems:
        console.print(f"FAIL      {problem}")
    for file, reason in verdict.unverifiable.items():
        console.print(f"cannot verify {file}: {reason}")
    console.print({"fail": "FAIL", "pass": "pass"}.get(verdict.result, verdict.result))
