"""Blocks of vectors written as parts; each gives the commit that `BlockStore.put` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import Int64Array, TokenBlock, VectorBlock
from layerbeam.transforms.flow.commits import Commit, InputFile, name_of
from layerbeam.transforms.flow.layout import REJECTS
from layerbeam.transforms.hardware import made_with
from layerbeam.transforms.parts import part_folder
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.write import write_part, write_rejects
from layerbeam.transforms.views.columns import make_table, texts_of_rows, unknown_id
from layerbeam.transforms.views.number_types import is_coarse, zero_rows
from layerbeam.transforms.views.view import ViewSpec
from layerbeam.transforms.write.word_types import row_groups, sum_words

_SAMPLED_VECTORS = 64  # of a block, to see whether int8 suits the encoder


def count_tokens(tokens: TokenBlock, unknown_id: int) -> dict[str, Int64Array]:
    """Counts of a block: tokens with a vector, [UNK] tokens, truncated texts and the tokens they lost."""
    texts = tokens.text
    return {
        metrics.TOKENS: texts.count_lines(texts.line, tokens.in_each_text(tokens.start >= 0)),
        metrics.UNKNOWN_TOKENS: texts.count_lines(texts.line, tokens.in_each_text(tokens.token_ids == unknown_id)),
        metrics.TRUNCATED_TEXTS: texts.count_texts(np.flatnonzero(tokens.num_dropped)),
        metrics.DROPPED_TOKENS: texts.count_lines(texts.line, tokens.num_dropped),
    }


def counts_of_files(tokens: TokenBlock, vocabulary: pa.StringArray) -> dict[str, Int64Array]:
    """All that the commit of a block counts, of each of its files."""
    counts = tokens.text.counts | count_tokens(tokens, unknown_id(vocabulary))
    for name, of_view in tokens.rows.items():
        counts |= of_view.counts
        empty = of_view.text[np.diff(of_view.splits) == 0]
        counts |= {f"{metrics.EMPTY_TEXTS}:{name}": tokens.text.count_texts(empty)} if len(empty) else {}
    return counts


def _count_vectors(view: ViewSpec, block: VectorBlock) -> dict[str, Int64Array]:
    """What the commit counts of a view's vectors."""
    zeros = {} if view.aggregates else _count_zeros(view, block)
    return zeros | (_count_coarse(view, block) if view.dtype == "int8" else {})


def _count_zeros(view: ViewSpec, block: VectorBlock) -> dict[str, Int64Array]:
    """The rows of which a vector has no value but zero."""
    is_zero = np.any([zero_rows(vectors) for vectors in block.vectors[view.name]], axis=0)
    text = block.tokens.rows[view.name].text if view.has_vector_lists else texts_of_rows(view, block.tokens)
    counts = block.tokens.text.count_texts(text[is_zero])
    return {f"{metrics.ZERO_VECTORS}:{view.name}": counts} if counts.any() else {}


def _count_coarse(view: ViewSpec, block: VectorBlock) -> dict[str, Int64Array]:
    """1, in the block's first file, for the view if its vectors suffice, and for each column too fine for int8."""
    first = np.eye(1, len(block.tokens.text.files), dtype=np.int64)[0]
    counts: dict[str, Int64Array] = {}
    for column, vectors in zip(view.vector_columns, block.vectors[view.name], strict=True):
        found = is_coarse(vectors[:: 1 + len(vectors) // _SAMPLED_VECTORS])
        counts |= {} if found is None else {f"{metrics.INT8_SAMPLED}:{view.name}": first}
        counts |= {f"{metrics.INT8_COARSE}:{view.name}:{column}": first} if found else {}
    return counts


def _table_of(view: ViewSpec, block: VectorBlock, vocabulary: pa.StringArray, changed: Collection[int]) -> pa.Table:
    """The view's rows of the files but those that have changed; of word types one for each form."""
    tokens, vectors = block.tokens, block.vectors[view.name]
    table = sum_words(view, tokens, vectors) if view.aggregates else make_table(view, tokens, vectors, vocabulary)
    if not changed:
        return table
    number_of_file, _ = tokens.text.file_lines(tokens.text.line[texts_of_rows(view, tokens)])
    return table.filter(pa.array(~np.isin(number_of_file, list(changed))))


def write_parts(store: BlockStore, vocabulary: pa.StringArray, block: VectorBlock) -> Iterator[Commit | InputFile]:
    """Write the parts and the rejects of one block. Yields what to commit: `store.put` makes the block done.

    If an earlier commit lists parts of the same texts, these stay as they are. A file that has changed since it was
    found gives an `InputFile` with its problem and has no rows. If all files of a block have, there is no commit.
    """
    files = block.tokens.text.files
    changed: set[int] = set()
    while len(changed) < len(files):
        commit = _write_files(store, vocabulary, block, changed)
        found = {number: storage.find_change(held.file) for number, held in enumerate(files) if number not in changed}
        changes = {number: change for number, change in found.items() if change is not None}
        yield from changes.values()
        if not changes:
            yield commit
            return
        changed |= changes.keys()


def _write_files(store: BlockStore, vocabulary: pa.StringArray, block: VectorBlock, changed: Collection[int]) -> Commit:
    """The commit of a block's files but those that have changed, after its parts are written."""
    output, views, text = store.output, store.views, block.tokens.text
    of_files = counts_of_files(block.tokens, vocabulary)
    for view in views:
        of_files |= _count_vectors(view, block)
    files = tuple(
        dataclasses.replace(file_range, counts={name: int(values[number]) for name, values in of_files.items()})
        for number, file_range in enumerate(text.files)
        if number not in changed
    )
    name = name_of(files)
    counts = metrics.total(file_range.counts for file_range in files)
    problem = metrics.unbalanced(counts)
    if problem is not None:
        raise AssertionError(f"{name}: records are missing: {problem}")
    # Other counts mean that a new view adds or rejects texts. Then batches, and so rounding, may differ in all views.
    earlier = store.find_earlier(text.content_index, text.files)
    is_kept = earlier is not None and earlier.counts.items() <= counts.items()
    parts = dict(earlier.parts) if earlier is not None and is_kept else {}
    for view in views:
        if part_folder(view) in parts:
            continue
        table = _table_of(view, block, vocabulary, changed)
        if table.num_rows:
            tables = row_groups(view, table) if view.aggregates else [table]
            parts[part_folder(view)] = write_part(output, view, name, *tables)
    numbers = {file_range.file.path: number for number, file_range in enumerate(files)}
    rejected = [reject for reject in text.rejected if reject.file in numbers]
    if rejected and REJECTS not in parts:
        parts[REJECTS] = write_rejects(output, name, sorted(rejected, key=lambda reject: numbers[reject.file]))
    return Commit(name, output.fingerprint, files, parts, output.attempt, text.together, made_with())
