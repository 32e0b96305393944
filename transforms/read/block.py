"""Slices read as blocks of texts in any format. Blocks that are done and unchanged are not decoded."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.blocks import Slice, TextBlock, counts_of_file, row_splits_of
from layerbeam.transforms.commits import BlockId, Commit, InputFile, hash_paths
from layerbeam.transforms.input import FORMATS
from layerbeam.transforms.input.records import UnreadableFileError, filled_share, is_blank, no_records
from layerbeam.transforms.read.sentences import split_sentences
from layerbeam.transforms.settings import LINES, BlockLimits, RecordFormat

# A block of several files ends when it is so many times as full as a block should be. The sizes of the files decide
# which are read together; their records may be much shorter than expected then.
_OVERFULL = 2.0


def read_blocks(
    slice_: Slice,
    limits: BlockLimits,
    record_format: RecordFormat = LINES,
    fingerprint: str | None = None,
    *,
    known: Callable[[BlockId], Commit | None] = lambda _: None,
) -> Iterator[TextBlock | Commit | InputFile]:
    """Yields the slice's blocks in order; for a block that is done and unchanged, its commit.

    `known` gives the commit of a block with the same bytes, if there is one. If it has another `fingerprint`, it lacks
    views that the run has, and its block is read and knows the commit.

    If reading fails, an `InputFile` with the problem follows the blocks before the failure. What `known` raises is
    passed on: it is not the input's fault.
    """
    if slice_.others:
        yield from _read_files(slice_, limits, record_format, fingerprint, known)
        return
    reader, readers = slice_.reader
    for number, item in enumerate(_cut_blocks(slice_, limits, record_format)):
        if isinstance(item, InputFile):
            yield item
            return
        if number % readers == reader:
            yield _read_block(*item, record_format, fingerprint, known)


def _read_block(
    block: BlockId,
    content: Any,
    record_format: RecordFormat,
    fingerprint: str | None,
    known: Callable[[BlockId], Commit | None],
) -> TextBlock | Commit:
    commit = known(block)
    done = _if_done(block, commit, fingerprint)
    return done or dataclasses.replace(_decode(block, content, record_format), earlier=commit)


def _read_files(
    slice_: Slice,
    limits: BlockLimits,
    record_format: RecordFormat,
    fingerprint: str | None,
    known: Callable[[BlockId], Commit | None],
) -> Iterator[TextBlock | Commit | InputFile]:
    """Blocks of several small files. A file that fills a block, or is done, is on its own."""
    files = (slice_.file, *slice_.others)
    slice_files = hash_paths(file.path for file in files)
    waiting: list[tuple[BlockId, Any]] = []
    filled = 0.0

    def take() -> TextBlock | Commit:
        members = tuple(block for block, _ in waiting)
        block = BlockId.of_files(members)
        commit = known(block)
        done = _if_done(block, commit, fingerprint, members)
        if done is not None:
            return done
        texts = [_decode(own, content, record_format) for own, content in waiting]
        return dataclasses.replace(join_files(block, texts), earlier=commit, slice_files=slice_files)

    for file in files:
        end = None if storage.is_compressed(file.path) else file.size
        cut = _cut_blocks(Slice(file, 0, end, 0), limits, record_format)
        items = list(itertools.islice(cut, 2))
        if len(items) == 1 and not isinstance(items[0], InputFile):
            block, content = items[0]
            done = _if_done(block, known(block), fingerprint)
            if done is not None and done.parts:  # without texts it is quickly read, and stays with its neighbours
                yield done
                continue
            waiting.append((block, content))
            records = 1 if FORMATS[record_format.format].is_one_record(record_format) else block.num_lines
            filled += filled_share(block.end_byte - block.first_byte, records, limits)
            if filled >= _OVERFULL:
                yield take()
                waiting, filled = [], 0.0
        elif items and isinstance(items[-1], InputFile):  # it has changed
            yield items[-1]
        else:
            for item in itertools.chain(items, cut):
                yield item if isinstance(item, InputFile) else _read_block(*item, record_format, fingerprint, known)
    if waiting:
        yield take()


def join_files(block: BlockId, texts: Sequence[TextBlock]) -> TextBlock:
    """The texts of several files, each of them whole, as one block."""
    firsts = row_splits_of(np.array([one.block.num_lines for one in texts]))[:-1]
    pairs = pair_offset = None
    if any(one.pairs is not None for one in texts):
        nothing = (pa.nulls(len(one.texts), pa.string()) for one in texts)
        pairs = pa.concat_arrays([n if one.pairs is None else one.pairs for one, n in zip(texts, nothing, strict=True)])
        offsets = (np.zeros_like(one.offset) if one.pair_offset is None else one.pair_offset for one in texts)
        pair_offset = np.concatenate(list(offsets))
    return TextBlock(
        block,
        texts=pa.concat_arrays([one.texts for one in texts]),
        line=np.concatenate(
            [one.line - one.block.first_line + first for one, first in zip(texts, firsts, strict=True)]
        ),
        sentence=np.concatenate([one.sentence for one in texts]),
        offset=np.concatenate([one.offset for one in texts]),
        counts={name: np.concatenate([one.counts[name] for one in texts]) for name in texts[0].counts},
        rejected=[reject for one in texts for reject in one.rejected],
        pairs=pairs,
        pair_offset=pair_offset,
        fields={name: pa.concat_arrays([one.fields[name] for one in texts]) for name in texts[0].fields},
        members=tuple(one.block for one in texts),
    )


def _if_done(
    block: BlockId, commit: Commit | None, fingerprint: str | None, members: Sequence[BlockId] = ()
) -> Commit | None:
    """The commit, if it has all views of the run."""
    if commit is None or fingerprint not in (None, commit.fingerprint):
        return None
    return commit.now(block, members)


def _cut_blocks(
    slice_: Slice, limits: BlockLimits, record_format: RecordFormat
) -> Iterator[tuple[BlockId, Any] | InputFile]:
    """Identity and content of each block, one held back: the last one may be the file's. A file has at least one."""
    held: tuple[BlockId, Any] | None = None
    try:
        for item in FORMATS[record_format.format].cut(slice_, limits, record_format):
            if held is not None:
                yield held
            held = item
        # Line numbers are from the scan, bytes from this read. They belong together if the file is unchanged.
        change = storage.find_change(slice_.file)
        if change is not None:
            raise UnreadableFileError(change.problem)
    except OSError as error:
        if held is not None:
            yield held
        yield InputFile.unreadable(slice_.file.path, storage.reason_of(error))
        return
    if held is None and slice_.start == 0:
        held = BlockId(slice_.file, 0, 0, 0, 0, hashlib.sha256().hexdigest(), is_last=True), None
    if held is not None:
        block, content = held
        is_at_end = block.end_byte == slice_.file.size or (slice_.end is None and slice_.max_records is None)
        yield dataclasses.replace(block, is_last=block.is_last or is_at_end), content


def read_block(block: BlockId, record_format: RecordFormat = LINES) -> TextBlock:
    """The texts of one block, read again as by `read_blocks`.

    Raises UnreadableFileError if the file is missing or has other records at that place.
    """
    now = storage.stat_file(block.file.path)
    if now.problem:
        raise UnreadableFileError(now.problem)
    content = FORMATS[record_format.format].read(block, record_format) if block.num_lines else None
    return _decode(block, content, record_format)


def _decode(block: BlockId, content: Any, record_format: RecordFormat) -> TextBlock:
    """The block's texts: blank records dropped or kept, each record counted once, pairs and sentences split."""
    if block.num_lines:
        result = FORMATS[record_format.format].decode(block, content, record_format)
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
    return split_sentences(result, record_format) if record_format.unit == "sentence" else result


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
