"""`layerbeam verify`: rows of a finished run against the plain computation, made anew from the text.

Texts are drawn at random. Of each block that holds one, all rows are compared by line, place and token; of each text
drawn, all vectors. What is compared with: the SavedModel itself, one text at a time, or `transforms.reference`.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import config as configuration
from pipeline.errors import UsageError
from pipeline.estimate import count_noun
from pipeline.fit import open_for
from pipeline.manifest import MANIFEST, differences, listed_commits, load_json, stray_parts
from pipeline.resolve import Job, resolve
from transforms import filesystem, metrics
from transforms.encoders import EncoderSource, load_encoder, load_weights, open_encoder
from transforms.read import read_block
from transforms.records import Commit, Part, TextBlock
from transforms.reference import ReferenceWordPiece, forward
from transforms.threads import load_tensorflow
from transforms.views import View

Array = npt.NDArray[Any]

DEFAULT_SAMPLE = 100
_PLACES = 5


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """A value x may be off by `absolute + relative * |x|`."""

    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"{self.absolute:.0e} + {self.relative:.0e} |x|"


# By the number type in the file. Rounding: float32 is summed in another order (3e-6 in BERT-base, see the README);
# float16 keeps 11 bits.
TOLERANCES = {"float32": Tolerance(1e-4, 1e-5), "float16": Tolerance(1e-4, 1e-3)}


@dataclasses.dataclass
class Compared:
    """One vector column of a view: how far it is off, and where it is more than the tolerance."""

    view: str
    column: str
    dtype: str
    tolerance: Tolerance
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
        norms = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
        cosines = np.where(norms > 0, (got * expected).sum(axis=1) / np.where(norms > 0, norms, 1), 1.0)
        self.min_cosine = float(np.min([self.min_cosine, cosines.min(initial=1)]))
        allowed = self.tolerance.absolute + self.tolerance.relative * np.abs(expected)
        wrong = np.flatnonzero(~(off <= allowed).all(axis=1))
        if len(wrong):
            self.failures.append(f"{where}, row {wrong[0]} of the text: off by {off[wrong[0]].max():.3g}")


@dataclasses.dataclass
class Verdict:
    """What `verify` found. `problems`: rows or files that are not as they should be; `unverifiable`: files, and why."""

    path: str
    texts: int
    sampled: int
    seed: int
    compared_with: str
    columns: list[Compared]
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
        return {"result": self.result} | dataclasses.asdict(self)


def verify(output_path: str, *, sample: int = DEFAULT_SAMPLE, seed: int = 0) -> Verdict:
    """Compare `sample` texts, drawn with `seed`. UsageError where there is no finished run or another encoder."""
    manifest = load_json(filesystem.join(output_path, MANIFEST))
    if manifest is None:
        raise UsageError(
            f"{output_path}: holds no finished run (no {MANIFEST} in it); run its configuration to the end"
        )
    job = _job_of(manifest, output_path)
    commits = listed_commits(output_path)
    if job.records.unit == "sentence":
        load_tensorflow(1)
    expected = Expected(job.encoder, job.config.encoder.max_seq_length)
    embedded = np.array([metrics.embedded_texts(commit.counts) for commit in commits], np.int64)
    columns = {
        (view.name, column): Compared(view.name, column, view.dtype, TOLERANCES[view.dtype])
        for view in job.views
        for column in view.vector_columns
    }
    verdict = Verdict(output_path, int(embedded.sum()), 0, seed, expected.path, list(columns.values()))
    verdict.problems += _check_files(output_path, manifest, job.views, commits)
    for number, texts in _draw(embedded, sample, seed):
        commit = commits[number]
        try:
            block = read_block(commit.block, job.records)
        except OSError as error:
            path = filesystem.printable(commit.block.file.path)
            verdict.unverifiable[path] = error.strerror or str(error)
            continue
        verdict.sampled += len(texts)
        for view in job.views:
            of_view = {column: columns[view.name, column] for column in view.vector_columns}
            verdict.problems += _check_part(output_path, commit, block, view, texts, expected, of_view)
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


def _check_files(
    output_path: str, manifest: Mapping[str, Any], views: Sequence[View], commits: Sequence[Commit]
) -> list[str]:
    """Parts that are missing, of another size, or there without being listed: whoever reads the folder doubles rows."""
    problems = []
    for view in views:
        rows = sum(commit.parts[view.name].rows for commit in commits if view.name in commit.parts)
        if rows != manifest["views"][view.name]["rows"]:
            problems.append(
                f"{view.name}: parts.jsonl lists {rows:,} rows, {MANIFEST} {manifest['views'][view.name]['rows']:,}"
            )
        sizes = filesystem.list_folder(filesystem.join(output_path, view.name))
        for part in (commit.parts[view.name] for commit in commits if view.name in commit.parts):
            size = sizes.get(part.path.split("/")[1])
            if size != part.bytes:
                found = "is missing" if size is None else f"has {size:,} bytes, not {part.bytes:,}"
                problems.append(f"{part.path} {found}")
        listed = {commit.parts[view.name].path for commit in commits if view.name in commit.parts}
        stray = stray_parts(output_path, view.name, listed or {f"{view.name}/empty.parquet"})
        problems += [f"{path} is there and not listed in parts.jsonl" for path in stray]
    return problems


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
    commit: Commit,
    block: TextBlock,
    view: View,
    texts: Sequence[int],
    expected: Expected,
    columns: Mapping[str, Compared],
) -> list[str]:
    """Compare the rows of a block with what its texts should give, and the vectors of some of them."""
    texts_of_block = block.texts.to_pylist()
    pairs = [None] * len(texts_of_block) if block.pairs is None else block.pairs.to_pylist()
    through = [
        tuple(map(_comparable, row)) for row in zip(*(block.fields[n].to_pylist() for n, _ in view.fields), strict=True)
    ]
    through = through or [()] * len(texts_of_block)
    wanted = [
        [row + fields for row in expected.rows(view, text, pair)]
        for text, pair, fields in zip(texts_of_block, pairs, through, strict=True)
    ]
    keys = [(int(line), int(sentence)) for line, sentence in zip(block.line, block.sentence, strict=True)]
    part = commit.parts.get(view.name)
    if part is None:
        return [f"{view.name}: {commit.block.name} has no part"] if any(wanted) else []
    try:
        with filesystem.open_binary(filesystem.join(output_path, part.path)) as file:
            parquet = pq.ParquetFile(file)
            found = _rows_of_texts(parquet, [*expected.COLUMNS[view.level], *(name for name, _ in view.fields)])
            problems = _compare_rows(part, dict(zip(keys, wanted, strict=True)), found)
            for index in texts:
                rows, place = found.get(keys[index], ([], 0))
                if rows != wanted[index] or not rows:
                    continue  # reported above
                where = f"{filesystem.printable(commit.block.file.path)} line {keys[index][0]}"
                got = _read_rows(parquet, list(columns), place, len(rows))
                vectors = expected.vectors(view, texts_of_block[index], pairs[index])
                for (name, compared), values in zip(columns.items(), vectors, strict=True):
                    compared.add(got[name], values, where)
    except (OSError, pa.ArrowException) as error:
        return [f"{part.path} cannot be read: {str(error).splitlines()[0]}"]
    return problems


_Rows = dict[tuple[int, int], tuple[list[tuple[Any, ...]], int]]


def _rows_of_texts(parquet: pq.ParquetFile, names: list[str]) -> _Rows:
    """{(line, sentence): (its rows, where they begin)}; rows of one text in two places count as one, too long."""
    table = parquet.read(columns=["line", "sentence", *names])
    found: _Rows = {}
    for place, (line, sentence, *rest) in enumerate(
        zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    ):
        found.setdefault((line, sentence), ([], place))[0].append(tuple(map(_comparable, rest)))
    return found


def _comparable(value: Any) -> Any:
    """The value, but NaN as text: it is not equal to itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _compare_rows(part: Part, wanted: Mapping[tuple[int, int], list[tuple[Any, ...]]], found: _Rows) -> list[str]:
    problems: collections.Counter[str] = collections.Counter()
    first: dict[str, int] = {}
    if list(found) != sorted(found):
        problems["not in the order of their lines"] += 1
        first["not in the order of their lines"] = next(iter(found))[0]
    for line, sentence in sorted(wanted.keys() | found.keys()):
        should, (rows, _) = wanted.get((line, sentence), []), found.get((line, sentence), ([], 0))
        if rows == should:
            continue
        if not rows:
            kind = "missing"
        elif not should:
            kind = "there, and no text has them"
        elif len(rows) > len(should) and set(rows) == set(should):
            kind = "doubled"
        elif len(rows) != len(should):
            kind = "of another number than its tokens"
        else:
            kind = "of other tokens or in another order"
        problems[kind] += 1
        first.setdefault(kind, line)
    return [
        f"{part.path}: rows of {count_noun(count, 'text')} are {kind} (the first at line {first[kind]})"
        for kind, count in problems.items()
    ]


def _read_rows(parquet: pq.ParquetFile, columns: list[str], start: int, count: int) -> dict[str, Array]:
    """{column: [count, W]}, from the row groups that hold them only."""
    groups, before, skipped = [], 0, 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if before + rows <= start:
            skipped += rows
        elif before < start + count:
            groups.append(group)
        before += rows
    table = parquet.read_row_groups(groups, columns=columns).slice(start - skipped, count)
    return {name: table[name].combine_chunks().flatten().to_numpy().reshape(count, -1) for name in columns}


@dataclasses.dataclass(frozen=True)
class _Sequence:
    """What the encoder reads: token ids, segment ids, which are not special tokens; and how many were cut off."""

    ids: list[int]
    segments: list[int]
    is_text: npt.NDArray[np.bool_]
    dropped: int


class Expected:
    """What the encoder should give for a text, text by text. `path` says how it is computed."""

    # Of the columns beside the vectors, those that `rows` gives.
    COLUMNS: Mapping[str, tuple[str, ...]] = {
        "token": ("token_index", "token_id", "segment_id", "token"),
        "text": ("text", "num_tokens", "num_dropped"),
    }

    def __init__(self, encoder: EncoderSource, max_seq_length: int) -> None:
        self._encoder = encoder
        self._wordpiece = ReferenceWordPiece(encoder.vocabulary, encoder.do_lower_case)
        self._max_seq_length = max_seq_length
        self._saved_model: Any = None
        self._weights = load_weights(encoder) if encoder.config else {}
        self._last: tuple[tuple[str, str | None], dict[int, Array], Array | None] | None = None
        self.path = "the plain NumPy computation"
        if encoder.kind == "savedmodel":
            load_tensorflow(1)
            called = open_encoder(encoder.handle, do_lower_case=encoder.do_lower_case, engine="savedmodel")
            self._saved_model = load_encoder(called, layers=called.layers, pooler=called.has_pooler)
            self.path = "the SavedModel, one text at a time"

    def _sequence(self, text: str, pair: str | None) -> _Sequence:
        """As extract_features.py makes it: of a pair, tokens are taken one by one from the end of the longer text."""
        first, second = self._wordpiece.tokenize(text), self._wordpiece.tokenize(pair or "")
        total, room = len(first) + len(second), self._max_seq_length - (3 if second else 2)
        while len(first) + len(second) > room:
            (first if len(first) > len(second) else second).pop()
        special = self._wordpiece.ids
        ids = [special["[CLS]"], *first, special["[SEP]"]]
        segments = [0] * len(ids) + [1] * (len(second) + 1 if second else 0)
        places = [0, len(ids) - 1]
        if second:
            ids += [*second, special["[SEP]"]]
            places.append(len(ids) - 1)
        is_text = np.ones(len(ids), bool)
        is_text[places] = False
        return _Sequence(ids, segments, is_text, total - len(first) - len(second))

    def rows(self, view: View, text: str, pair: str | None = None) -> list[tuple[Any, ...]]:
        """The text's rows in a view, without vectors."""
        sequence = self._sequence(text, pair)
        if view.level == "text":
            return [(text, int(sequence.is_text.sum()), sequence.dropped)]
        rows = [
            (index, token, segment, self._encoder.vocabulary[token])
            for index, (token, segment) in enumerate(zip(sequence.ids, sequence.segments, strict=True))
        ]
        return rows if view.special_tokens else [row for row in rows if sequence.is_text[row[0]]]

    def vectors(self, view: View, text: str, pair: str | None = None) -> list[Array]:
        """The text's vectors in a view, an array for each vector column."""
        sequence = self._sequence(text, pair)
        if self._last is None or self._last[0] != (text, pair):
            self._last = ((text, pair), *self._encode(sequence.ids, sequence.segments))
        _, layers, pooled_output = self._last
        if view.uses_pooler:
            assert pooled_output is not None
            columns = [pooled_output[None]]
        else:
            columns = [layers[layer].astype(np.float64) for layer in view.layers]
            if view.combine == "concat":
                columns = [np.concatenate(columns, axis=1)]
            elif view.combine != "separate":
                columns = [np.sum(columns, axis=0) / (len(columns) if view.combine == "mean" else 1)]
            if not view.special_tokens and (view.level == "token" or view.pooling != "cls"):
                columns = [values[sequence.is_text] for values in columns]
            if view.level == "text":
                columns = [_pool(values, view.pooling) for values in columns]
        columns = [values[:, : view.width] for values in columns]
        if view.normalize:
            columns = [values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30) for values in columns]
        return columns

    def _encode(self, ids: list[int], segments: list[int]) -> tuple[dict[int, Array], Array | None]:
        """All layers [S, H] that there are, and the pooled output [H]."""
        config = self._encoder.config
        if self._saved_model is None:
            assert config is not None
            layers, pooled = forward(config, self._weights, ids, segments)
            return dict(enumerate(layers)), pooled
        batch = (np.array(values, np.int32) for values in ([ids], [len(ids)], [segments]))
        given, pooled = self._saved_model(*batch)
        if config is not None:
            # TF Hub's SavedModels do not give the embedding layer's output.
            embeddings_only = dataclasses.replace(config, num_hidden_layers=0)
            given[0] = forward(embeddings_only, self._weights, ids, segments)[0][0]
        return given, None if pooled is None else pooled[0]


def _pool(values: Array, pooling: str) -> Array:
    """[1, H] of a text's vectors [n, H]; zeros of none."""
    if not len(values):
        return np.zeros((1, values.shape[1]))
    pooled: Array = {"cls": values[0], "mean": values.mean(0), "max": values.max(0)}[pooling]
    return pooled[None]


def print_verdict(verdict: Verdict) -> None:
    """To the terminal."""
    from rich import box
    from rich.table import Table

    from pipeline.summary import plain_console

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
            f"{column.max_difference:.2g}",
            f"{column.min_cosine:.9f}",
            "FAIL" if column.failures else "pass" if column.rows else "",
        )
    texts = f"{verdict.sampled:,} of {count_noun(verdict.texts, 'text')} (seed {verdict.seed})"
    console.print(f"{verdict.path}: {texts} against {verdict.compared_with}")
    console.print(table)
    for dtype in sorted({column.dtype for column in verdict.columns}):
        console.print(f"allowed   {TOLERANCES[dtype]} in {dtype}")
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
