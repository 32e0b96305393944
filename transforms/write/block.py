"""Blocks of vectors written as parts, and rejects as JSON Lines."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import Int64Array, TokenBlock, VectorBlock, row_of_each
from layerbeam.transforms.columns import make_table, schema, texts_of_rows
from layerbeam.transforms.commits import BlockId, Commit, InputFile, Member, Part, Rejected
from layerbeam.transforms.layout import EMPTY, REJECTS, part_name, rejects_path
from layerbeam.transforms.parts import format_of, part_path, table_path
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.views import View
from layerbeam.transforms.write.word_types import row_groups, sum_words

# Names of the unknown token; a vocabulary with both (MPNet) uses the first.
UNKNOWN = ("[UNK]", "<unk>")
_GZIP_LEVEL = 1


def write_part(output: Output, view: View, name: str, table: pa.Table) -> Part:
    """Write the view's rows of the block of that name as `<view>/<name>-<hash>.<format>`.

    Equal tables give equal bytes.
    """
    tables = row_groups(view, table) if view.aggregates else [table]
    return _write(output, view, lambda sha256: part_path(view, part_name(name, sha256)), tables)


def write_word_types(output: Output, view: View, number: int, of: int, table: pa.Table) -> Part:
    """Write part `number` of the table of a `word_type` view, which has `of` parts."""
    return _write(output, view, lambda _: table_path(view, number, of), [table])


def write_empty_part(output: Output, view: View) -> Part:
    """A part without rows, so that readers know the columns of a view that has none."""
    return _write(output, view, lambda _: part_path(view, EMPTY), [schema(view).empty_table()])


def _write(output: Output, view: View, path_of: Callable[[str], str], tables: Sequence[pa.Table]) -> Part:
    """Write a file whose path `path_of` gives from the SHA-256 of its bytes; the suffix is always the same."""
    any_path = path_of("")
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(output.write_atomically(path_of))
        stream = file
        if any_path.endswith(".gz"):  # without time and name in the header, so that equal data gives equal bytes
            stream = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
        format_of(any_path).write(view, tables[0].schema, tables, stream, output)
    return Part(path_of(file.sha256), sum(table.num_rows for table in tables), file.num_bytes, file.sha256)


def write_rejects(output: Output, name: str, rejected: Sequence[Rejected]) -> Part:
    """Write one JSON object per rejected record; `raw` holds its bytes in base64."""

    def path_of(sha256: str) -> str:
        return rejects_path(part_name(name, sha256))

    with output.write_atomically(path_of) as file:
        for reject in rejected:
            file.write(json.dumps(reject.to_json()).encode("ascii") + b"\n")
    return Part(path_of(file.sha256), len(rejected), file.num_bytes, file.sha256)


def count_tokens(tokens: TokenBlock, unknown_id: int) -> dict[str, Int64Array]:
    """Counts of a block: tokens with a vector, [UNK] tokens, truncated texts and the tokens they lost."""
    texts, text = tokens.text, row_of_each(tokens.row_splits)
    return {
        metrics.TOKENS: texts.count_texts(text[tokens.start >= 0]),
        metrics.UNKNOWN_TOKENS: texts.count_texts(text[tokens.token_ids == unknown_id]),
        metrics.TRUNCATED_TEXTS: texts.count_texts(np.flatnonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: texts.count_lines(texts.line, tokens.num_dropped),
    }


def _counts_of_files(tokens: TokenBlock, vocabulary: pa.StringArray) -> dict[str, Int64Array]:
    """All that the commit of a block counts, of each of its files."""
    unknown = (vocabulary.index(name).as_py() for name in UNKNOWN)
    counts = tokens.text.counts | count_tokens(tokens, next((token_id for token_id in unknown if token_id >= 0), -1))
    for of_view in tokens.rows.values():
        counts |= of_view.counts
    return counts


def _table_of(view: View, block: VectorBlock, vocabulary: pa.StringArray) -> pa.Table:
    if view.aggregates:
        return sum_words(view, block.tokens, block.vectors[view.name])
    return make_table(view, block.tokens, block.vectors[view.name], vocabulary)


def write_parts(
    output: Output, views: Sequence[View], vocabulary: pa.StringArray, block: VectorBlock
) -> Iterator[Commit | InputFile]:
    """Write the parts and the rejects of one block. Yields what to commit: `put_commit` makes the block done.

    If an earlier commit lists parts of the same texts, these stay as they are. A file that has changed since it was
    found gives an `InputFile` with its problem and has no rows. If all files of a block have, there is no commit.
    """
    files = block.tokens.text.files
    changed: set[int] = set()
    while len(changed) < len(files):
        commit = _write_files(output, views, vocabulary, block, changed)
        found = {number: storage.find_change(own.file) for number, own in enumerate(files) if number not in changed}
        changes = {number: change for number, change in found.items() if change is not None}
        yield from changes.values()
        if not changes:
            yield commit
            return
        changed |= changes.keys()


def _write_files(
    output: Output, views: Sequence[View], vocabulary: pa.StringArray, block: VectorBlock, changed: Collection[int]
) -> Commit:
    """The commit of a block's files but those that have changed, after its parts are written."""
    text = block.tokens.text
    of_files = _counts_of_files(block.tokens, vocabulary)
    kept = [number for number in range(len(text.files)) if number not in changed]
    own = text.block if not changed else BlockId.of_files([text.files[number] for number in kept])
    counts = {name: int(values[kept].sum()) for name, values in of_files.items()}
    problem = metrics.unbalanced(counts)
    if problem is not None:
        raise AssertionError(f"{own.name}: records are missing: {problem}")
    # Other counts mean that a new view adds or rejects texts. Then batches, and so rounding, may differ in all views.
    earlier = text.earlier
    is_kept = earlier is not None and earlier.counts.items() <= counts.items()
    parts = dict(earlier.parts) if earlier is not None and is_kept else {}
    rows: dict[str, Int64Array] = {}
    for view in views:
        texts = texts_of_rows(view, block.tokens)
        rows[view.name] = text.count_texts(texts)
        if view.name in parts:
            continue
        table = _table_of(view, block, vocabulary)
        if changed:
            table = table.filter(pa.array(np.isin(text.file_lines(text.line[texts])[0], kept)))
        if table.num_rows:
            parts[view.name] = write_part(output, view, own.name, table)
    numbers = {file.file.path: number for number, file in enumerate(text.files)}
    rejected = [reject for reject in text.rejected if numbers[reject.file] not in changed]
    if rejected and REJECTS not in parts:
        # Those of each file together, as its rows are.
        rejected.sort(key=lambda reject: numbers[reject.file])
        parts[REJECTS] = write_rejects(output, own.name, rejected)
    rows[REJECTS] = np.bincount([numbers[reject.file] for reject in rejected], minlength=len(text.files))
    members = tuple(
        Member(
            text.members[number],
            {name: int(values[number]) for name, values in of_files.items()},
            {name: int(values[number]) for name, values in rows.items() if values[number]},
        )
        for number in (kept if text.members else ())
    )
    return Commit(output.fingerprint, own, counts, parts, output.attempt, members, text.slice_files)
