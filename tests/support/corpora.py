"""Generated corpora, and files read through the stages without Beam."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repository import DATA

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import Commit, FileRange
from layerbeam.transforms.flow.content_index import keys_of, texts_key, write_content_index
from layerbeam.transforms.input import text
from layerbeam.transforms.parts.block_store import BlockStore
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.read.block import read_blocks
from layerbeam.transforms.settings import BlockLimits, RecordFormat
from layerbeam.transforms.slice.slices import FileToRead, cut_file, number_slices, scan_range
from layerbeam.transforms.storage import compression
from layerbeam.transforms.tokenize.sentences import split_sentences

UNLIMITED = BlockLimits(1 << 30, 1 << 30, 1 << 30, 128, edit_tokens=1 << 30)


def read_file(
    path: Path,
    limits: BlockLimits = UNLIMITED,
    *,
    slice_bytes: int = 1 << 20,
    done: Iterable[TextBlock] = (),
    **record_format: Any,
) -> list[Any]:
    """All items from a file after scan, slices and blocks; keyword arguments are settings of the input format.

    `done`: blocks that an earlier run has committed.
    """
    (file,) = storage.find_files([str(path)])
    form = RecordFormat(**record_format)
    commits = [Commit(block.name, "f", counted_files(block), {}) for block in done]
    items: list[Any] = []
    # Without commits there is nothing to write; a folder takes a millisecond, and property tests call this often.
    with tempfile.TemporaryDirectory() if commits else contextlib.nullcontext("nowhere") as folder:
        store = BlockStore(Output(folder, "f"))
        work = FileToRead(file, content_index=content_index(Path(folder, "index"), commits) if commits else "")
        scans = [scan_range(*range_, limits, form) for range_ in cut_file(work, slice_bytes, form)]
        for piece in number_slices(reversed(scans), limits, form):
            items += read_blocks(piece, limits, form, store) if isinstance(piece, Slice) else [piece]
    return items


def read_sentences(path: Path, limits: BlockLimits = UNLIMITED, **record_format: Any) -> list[TextBlock]:
    """The blocks of a file with a text per sentence."""
    record_format = {"unit": "sentence"} | record_format
    blocks = read_file(path, limits, **record_format)
    return [split_sentences(block, RecordFormat(**record_format)) for block in blocks]


def content_index(path: Path, commits: Sequence[Commit]) -> str:
    """A file with these commits, as `write_content_index` writes it."""
    lines = [commit.to_line() for commit in commits]
    offsets = itertools.accumulate((len(line) + 1 for line in lines), initial=0)
    pairs = zip(commits, offsets, strict=False)
    ranges = [(own, offset) for commit, offset in pairs for own in commit.files]
    records = sorted(
        (key, keys_of(own)[1], offset)
        for own, offset in ranges
        for key in (keys_of(own)[0], texts_key(own))
        if key is not None
    )
    with open(path, "wb") as file:
        write_content_index(file, len(records), records, lines)
    return str(path)


def counted_files(block: TextBlock) -> tuple[FileRange, ...]:
    """What the block holds of its files, as its commit has it."""
    return tuple(
        dataclasses.replace(own, counts={name: int(values[number]) for name, values in block.counts.items()})
        for number, own in enumerate(block.files)
    )


def texts_of(items: Iterable[Any]) -> list[tuple[int, str]]:
    """(line, text) of each text in the blocks among these items."""
    return [
        (int(line), value)
        for block in items
        if isinstance(block, TextBlock)
        for line, value in zip(block.line, block.texts.to_pylist(), strict=True)
    ]


def random_lines(count: int, *, seed: int = 0, longest: int = 40) -> list[str]:
    """Lines of words from the small encoder's vocabulary; some are blank, some are equal."""
    words = [word for word in (DATA / "hf_uncased" / "vocab.txt").read_text().split() if word.isalpha()]
    random = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        length = int(random.integers(1, longest))
        line = " ".join(random.choice(words, length))
        lines.append("" if number % 17 == 5 else "the same line again" if number % 13 == 3 else line)
    return lines


@contextlib.contextmanager
def chunks_of(num_bytes: int) -> Iterator[None]:
    """Let files come in pieces of so many bytes, so that every seam lies everywhere at some time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_CHUNK_BYTES", num_bytes)
        patch.setattr(compression, "_COMPRESSED_CHUNK_BYTES", num_bytes)
        patch.setattr(text, "_BACKWARDS_BYTES", num_bytes)
        yield
