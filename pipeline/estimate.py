"""How much a run will write, told before it starts, from a sample of the first files."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator

import numpy as np

from pipeline.resolve import Job
from pipeline.resume import Work
from pipeline.terminal import size_text
from transforms import filesystem
from transforms.read import read_blocks
from transforms.records import BlockLimits, Slice, TextBlock
from transforms.sequences import tokenize_block
from transforms.slices import FileToRead
from transforms.views import View
from transforms.wordpiece import WordPiece

_SAMPLED_FILES = 8
_SAMPLED_BYTES = 1 << 16
_SAMPLED_FILE_BYTES = 16 << 20  # of a file that is one record all of it is read


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What is left to do: rows and bytes of each view."""

    rows: dict[str, int]
    view_bytes: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.view_bytes.values())


def estimate(job: Job, work: Work) -> Estimate:
    """From the first 64 KiB of up to 8 of the files, spread over all of them, counted up by bytes."""
    wordpiece = WordPiece(job.encoder.vocabulary, job.encoder.do_lower_case)
    to_read = [file for file in work.to_read if file.file.size]
    sampled = texts = tokens = 0
    for block in first_blocks(job, work):
        counted = tokenize_block(block, wordpiece, job.sequences)
        size = block.block.end_byte - block.block.first_byte
        sampled += size
        texts += len(block.texts)
        tokens += len(counted.token_ids)
    compressed = [file for file in to_read if filesystem.is_compressed(file.file.path)][:_SAMPLED_FILES]
    share = float(np.mean([_stored_share(file) for file in compressed])) if compressed else 1.0
    left = sum(_bytes_left(file, share) for file in to_read)
    scale = left / sampled if sampled else 0.0
    texts, tokens = round(texts * scale), round(tokens * scale)
    rows = {view.name: rows_of(view, texts=texts, tokens=tokens) for view in job.views}
    return Estimate(rows, {view.name: round(rows[view.name] * _row_bytes(view)) for view in job.views})


def _row_bytes(view: View) -> float:
    return len(view.vector_columns) * view.width * value_bytes(view)


def value_bytes(view: View) -> float:
    """Bytes of one value in the view's files; as JSON it is some ten characters, half of that compressed."""
    if view.format == "jsonl":
        return 5 if view.compress else 10.5
    return np.dtype(view.dtype).itemsize


def first_blocks(job: Job, work: Work) -> Iterator[TextBlock]:
    """The beginnings of some of the files, spread over all of them."""
    to_read = [file for file in work.to_read if file.file.size]
    if job.records.is_whole_file:
        to_read = [file for file in to_read if file.file.size <= _SAMPLED_FILE_BYTES]
    for index in sorted({round(i) for i in np.linspace(0, len(to_read) - 1, _SAMPLED_FILES)}) if to_read else []:
        block = _first_block(to_read[index], job)
        if block is not None:
            yield block


def rows_of(view: View, *, texts: int, tokens: int) -> int:
    """Rows that the view makes of so many texts and tokens, [CLS] and [SEP] among them."""
    if view.level in ("text", "record"):
        return texts
    if view.level in ("word", "word_type"):
        return tokens - 2 * texts  # a word has a token at least
    return tokens if view.special_tokens else tokens - 2 * texts


def _first_block(file: FileToRead, job: Job) -> TextBlock | None:
    limits = BlockLimits(_SAMPLED_BYTES, 1 << 62, 1 << 62, job.config.encoder.max_seq_length)
    end = None if filesystem.is_compressed(file.file.path) else file.file.size
    block = next(read_blocks(Slice(file.file, 0, end, 0), limits, job.records), None)
    return block if isinstance(block, TextBlock) else None


def _stored_share(file: FileToRead) -> float:
    """Stored bytes per byte of text at the beginning of a compressed file; 1 where it can't be read."""
    try:
        with filesystem.open_binary(file.file.path) as stored:
            first = next(filesystem.read_chunks(stored, file.file.path), b"")
            return stored.tell() / max(len(first), 1)
    except OSError:
        return 1.0


def _bytes_left(file: FileToRead, stored_share: float) -> float:
    # Of a file that changed nobody knows yet which blocks are still right: all of it may be done again.
    unchanged = (commit.block for commit in file.done if commit.block.file == file.file)
    done = sum(block.end_byte - block.first_byte for block in unchanged)
    share = stored_share if filesystem.is_compressed(file.file.path) else 1.0
    return max(file.file.size / share - done, 0.0)


def describe(estimate: Estimate, view: View) -> str:
    """`about 6.6 GB in `tokens`: 1.07 M tokens x 4 layers x 384 x 4 bytes`."""
    rows = f"{count_text(estimate.rows[view.name])} {view.level}s"
    layers = len(view.layers) if view.combine == "separate" and not view.uses_pooler else 1
    factors = [rows, *([f"{layers} layers"] if layers > 1 else []), str(view.width)]
    size = size_text(estimate.view_bytes[view.name])
    return f"about {size} in `{view.name}`: {' x '.join(factors)} x {value_bytes(view):g} bytes"


def free_bytes(output_path: str) -> int | None:
    """Free space where the output goes; None where nobody can say (object stores)."""
    if not filesystem.is_local(output_path):
        return None
    folder = os.path.abspath(output_path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def count_text(count: int) -> str:
    """
    >>> count_text(1_070_000), count_text(12_345)
    ('1.07 M', '12,345')
    """
    return f"{count / 1e6:.3g} M" if count >= 1_000_000 else f"{count:,}"
