"""Slices read as blocks of records in any format. Blocks that are done and unchanged are not decoded."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import storage
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.flow.blocks import GivenWords, Slice, TextBlock, counts_of_file, row_splits_of
from layerbeam.transforms.flow.commits import Commit, FileRange, InputFile, hash_paths
from layerbeam.transforms.flow.content_index import IndexedFile
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.path_fields import add_path_fields
from layerbeam.transforms.input.records import UnreadableFileError, filled_share, is_blank, no_records
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.write import NOT_COPIED, Move
from layerbeam.transforms.settings import LINES, BlockLimits, RecordFormat

# A pack ends when it is fuller than a block should be by this factor: the sizes of files decide which are read
# together, and their records may be much shorter than expected.
_OVERFULL = 2.0


def read_blocks(
    slice_: Slice,
    limits: BlockLimits,
    record_format: RecordFormat = LINES,
    store: BlockStore | None = None,
) -> Iterator[TextBlock | Commit | InputFile]:
    """Yields the slice's blocks in order; for a block that is done and unchanged, its commit.

    If reading fails, an `InputFile` with the problem follows the blocks before the failure. What `store` raises is
    passed on: it is not the input's fault.
    """
    if slice_.others or (slice_.content_index and slice_.is_whole_file):
        yield from _read_small_files(slice_, limits, record_format, store)
        return
    reader, readers = slice_.reader
    for number, item in enumerate(cut_blocks(slice_, limits, record_format)):
        if isinstance(item, InputFile):
            yield item
            return
        if number % readers == reader:
            yield _read_block([item], slice_, record_format, store)


def _read_block(
    found: Sequence[tuple[FileRange, Any]],
    slice_: Slice,
    record_format: RecordFormat,
    store: BlockStore | None,
    together: str | None = None,
) -> TextBlock | Commit:
    """The block of these file ranges, with their contents, or its commit if it is done."""
    index = slice_.content_index
    done = None if store is None else store.find(index, [file_range for file_range, _ in found])
    if done is not None:
        return done
    block = _join([decode_block(file_range, content, record_format) for file_range, content in found])
    copied = None if store is None or len(found) > 1 else store.find_texts(index, block)
    return dataclasses.replace(block, content_index=index, together=together) if copied is None else copied


def _read_small_files(
    slice_: Slice, limits: BlockLimits, record_format: RecordFormat, store: BlockStore | None
) -> Iterator[TextBlock | Commit | InputFile]:
    """The blocks of the files of a pack, or of one whole file. A file that fills a block is on its own.

    Rows of a file whose bytes, or texts, an earlier commit has are copied; the other files form new blocks.
    """
    files = (slice_.file, *slice_.others)
    limits = limits.of_packs if slice_.others else limits
    together = hash_paths(file.path for file in files) if slice_.others else None
    waiting: list[tuple[FileRange, Any]] = []
    # By the place of the commit: two commits may have one name, of a pack whose files have all changed.
    copies: dict[int, tuple[Commit, list[Move]]] = {}
    filled = 0.0
    for file in files:
        end = None if storage.is_compressed(file.path) else file.size
        cut = cut_blocks(Slice(file, 0, end, 0), limits, record_format)
        items = list(itertools.islice(cut, 2))
        if len(items) == 1 and not isinstance(items[0], InputFile):
            file_range, content = items[0]
            found = _find_source(file_range, content, slice_.content_index, record_format, store)
            if found is not None:
                source, move = found
                copies.setdefault(source.offset, (source.commit, []))[1].append(move)
                continue
            waiting.append((file_range, content))
            records = 1 if INPUT_FORMATS[record_format.format].is_one_record(record_format) else file_range.num_lines
            filled += filled_share(file_range.num_bytes, records, limits)
            if filled >= _OVERFULL:
                yield _read_block(waiting, slice_, record_format, store, together)
                waiting, filled = [], 0.0
        elif slice_.others and items and isinstance(items[-1], InputFile):  # it has changed
            yield items[-1]
        else:
            for item in itertools.chain(items, cut):
                yield item if isinstance(item, InputFile) else _read_block([item], slice_, record_format, store)
    if waiting:
        yield _read_block(waiting, slice_, record_format, store, together)
    for commit, moves in copies.values():
        assert store is not None  # noqa: S101 - for mypy
        try:
            yield store.copy(commit, moves)
        except NOT_COPIED:
            first, *others = (move.target.file for move in moves)
            yield from _read_small_files(Slice(first, 0, None, 0, others=tuple(others)), limits, record_format, store)


def _find_source(
    file_range: FileRange, content: Any, index: str, record_format: RecordFormat, store: BlockStore | None
) -> tuple[IndexedFile, Move] | None:
    """An earlier commit with rows for the bytes, or the texts, of a small file, and the move that copies them."""
    if store is None or not index:
        return None
    source = next(store.sources(index, file_range), None)
    if source is not None:
        return source, Move(source.file_range, file_range)
    if not record_format.has_fields or record_format.has_words:
        return None
    texts = decode_block(file_range, content, record_format)
    source = next(store.sources(index, texts.files[0], by_texts=True), None)
    return None if source is None else (source, Move(source.file_range, texts.files[0], texts))


def _join(texts: Sequence[TextBlock]) -> TextBlock:
    """The texts of several files, each of them whole, as one block."""
    if len(texts) == 1:
        return texts[0]
    files = tuple(one.files[0] for one in texts)
    firsts = row_splits_of(np.array([file_range.num_lines for file_range in files]))[:-1]
    nothing, names = np.zeros(1, np.int64), dict.fromkeys(name for one in texts for name in one.counts)
    pairs, pair_offset = _join_pairs(texts) if any(one.pairs is not None for one in texts) else (None, None)
    lines = (one.line - one.files[0].first_line + first for one, first in zip(texts, firsts, strict=True))
    return TextBlock(
        files,
        texts=pa.concat_arrays([one.texts for one in texts]),
        line=np.concatenate(list(lines)),
        sentence=np.concatenate([one.sentence for one in texts]),
        offset=np.concatenate([one.offset for one in texts]),
        counts={name: np.concatenate([one.counts.get(name, nothing) for one in texts]) for name in names},
        rejected=[reject for one in texts for reject in one.rejected],
        pairs=pairs,
        pair_offset=pair_offset,
        fields={name: pa.concat_arrays([one.fields[name] for one in texts]) for name in texts[0].fields},
        words=_join_words([one.words for one in texts if one.words is not None]),
    )


def _join_words(words: Sequence[GivenWords]) -> GivenWords | None:
    """The words of several files, if they give them."""
    return GivenWords.of(pa.concat_arrays([one.lists for one in words])) if words else None


def _join_pairs(texts: Sequence[TextBlock]) -> tuple[pa.StringArray, npt.NDArray[np.int32]]:
    """The second texts of several files, null where a file has none, and their first code points."""
    nulls = (pa.nulls(len(one.texts), pa.string()) for one in texts)
    pairs = pa.concat_arrays([n if one.pairs is None else one.pairs for one, n in zip(texts, nulls, strict=True)])
    offsets = (np.zeros_like(one.offset) if one.pair_offset is None else one.pair_offset for one in texts)
    return pairs, np.concatenate(list(offsets))


def cut_blocks(
    slice_: Slice, limits: BlockLimits, record_format: RecordFormat
) -> Iterator[tuple[FileRange, Any] | InputFile]:
    """Each block and its content, one late, because the last one must say so. A file has at least one block."""
    held: tuple[FileRange, Any] | None = None
    problem = None
    try:
        for item in INPUT_FORMATS[record_format.format].cut(slice_, limits, record_format):
            if held is not None:
                yield held
            held = item
        # Line numbers are from the scan, bytes from this read. They belong together if the file is unchanged.
        problem = storage.find_change(slice_.file)
    except OSError as error:
        problem = InputFile.unreadable(slice_.file.path, storage.reason_of(error))
    if held is None and slice_.start == 0 and problem is None:
        held = FileRange(slice_.file, 0, 0, 0, 0, hashlib.sha256().hexdigest(), is_last=True), None
    if held is not None:
        file_range, content = held
        ends = slice_.max_records is None if slice_.end is None else file_range.end_byte == slice_.file.size
        yield dataclasses.replace(file_range, is_last=file_range.is_last or (ends and problem is None)), content
    if problem is not None:
        yield problem


def read_block(files: Sequence[FileRange], record_format: RecordFormat = LINES) -> TextBlock:
    """The texts of one block, read again as by `read_blocks`.

    Raises UnreadableFileError if a file is missing or has other records at that place.
    """
    texts = []
    for file_range in files:
        now = storage.stat_file(file_range.file.path)
        if now.problem:
            raise UnreadableFileError(now.problem)
        content = INPUT_FORMATS[record_format.format].read(file_range, record_format) if file_range.num_lines else None
        texts.append(decode_block(file_range, content, record_format))
    return _join(texts)


def decode_block(block: FileRange, content: Any, record_format: RecordFormat) -> TextBlock:
    """The block's records: blank ones dropped or kept, each counted once, pairs split."""
    if block.num_lines:
        result = INPUT_FORMATS[record_format.format].decode(block, content, record_format)
    else:
        result = no_records(block, record_format)
    keep_blank = record_format.blank == "keep"
    if not keep_blank:
        full = ~is_blank(result.texts)
        if result.pairs is not None:
            full |= ~is_blank(result.pairs)
        if not full.all():
            result.counts[metrics.BLANK] += np.count_nonzero(~full)
            result = result.take(np.flatnonzero(full))
            result.counts[metrics.EMBEDDED] -= np.count_nonzero(~full)
    if record_format.id_field is not None:
        ids = result.fields["id"].drop_null()
        result.counts |= counts_of_file({metrics.DUPLICATE_IDS: len(ids) - len(ids.unique())})
    if result.pairs is not None:
        blank = is_blank(result.pairs)
        result.counts |= counts_of_file({metrics.WITHOUT_PAIR: int(np.count_nonzero(blank))})
        result.pairs = pc.if_else(blank, pa.scalar(None, pa.string()), result.pairs)
    if record_format.pair_separator is not None:
        result.texts, result.pairs, result.pair_offset = _split_pairs(result.texts, record_format.pair_separator)
    return add_path_fields(result, record_format)


def _split_pairs(
    texts: pa.StringArray, separator: str
) -> tuple[pa.StringArray, pa.StringArray | None, npt.NDArray[np.int32] | None]:
    """(first texts, second texts, first code point of each second text); (texts, None, None) if no text is a pair.

    Like extract_features.py, which strips a line, then splits it at the last separator: `a ||| ` without a second text
    is the single text `a ||| `.
    """
    first: list[str] = texts.to_pylist()
    second: list[str | None] = [None] * len(first)
    offset = np.zeros(len(first), np.int32)
    for index in np.flatnonzero(pc.match_substring(texts, separator).to_numpy(zero_copy_only=False)).tolist():
        text = first[index]
        before = len(text) - len(text.lstrip())
        head, found, tail = text.strip().rpartition(separator)
        if found and tail.strip():
            place = before + len(head)
            first[index], second[index] = text[:place], text[place + len(separator) :]
            offset[index] = place + len(separator)
    if not offset.any():
        return texts, None, None
    return pa.array(first, pa.string()), pa.array(second, pa.string()), offset
