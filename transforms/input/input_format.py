"""What an input format is: how its files are cut into blocks, read again and decoded."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice, TextBlock
from layerbeam.transforms.flow.commits import FileRange, InputFile
from layerbeam.transforms.input.cuts import RankedRecords
from layerbeam.transforms.settings import BlockLimits, RecordFormat

# By the values of `RecordFormat.format`. The package fills it when it is imported.
INPUT_FORMATS: dict[str, InputFormat] = {}


class InputFormat(abc.ABC):
    """One input format. `title`: in messages; `endings`: file name suffixes, unique to this format.

    `joins_files`: whether small files may share a block. `pieces_are_blocks`: whether each piece of a plain file, as
    `pieces` gives it, is one block; then it keeps to `max_records`.

    Raises (the methods that open a file) UnreadableFileError, or another OSError, for a file that cannot be read.
    """

    title: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    joins_files: ClassVar[bool] = True
    pieces_are_blocks: ClassVar[bool] = True

    def recognizes(self, head: bytes, lines: Sequence[bytes]) -> bool:
        """Whether the first bytes of a file show this format. `lines`: those among them that are not blank."""
        return False

    def may_begin(self, lines: Sequence[bytes]) -> bool:
        """Whether text that begins with these lines may be of this format."""
        return True

    def is_one_record(self, record_format: RecordFormat) -> bool:
        """Whether each file is one record."""
        return False

    def is_seekable(self, record_format: RecordFormat) -> bool:
        """Whether the records of a plain file can be found from any byte of it."""
        return False

    def ranges(self, file: InputFile, slice_bytes: int, record_format: RecordFormat) -> list[tuple[int, int | None]]:
        """The byte ranges of a plain file that can be scanned independently; by default the whole file."""
        return [(0, file.size)] if file.size else []

    def pieces(
        self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat
    ) -> Iterator[tuple[int, int | None, int]]:
        """(first byte, byte after the last, line ends or rows) of the sections of a range that are read independently.

        By default each block; a compressed file is only opened.
        """
        if slice_.end is None:
            with storage.open_binary(slice_.file.path, 1) as opened:
                opened.read(1)
            yield slice_.start, None, 0
        else:
            for block, _ in self.cut(slice_, limits, record_format):
                yield block.first_byte, block.end_byte, block.num_lines

    def ranked(self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat) -> Iterator[RankedRecords]:
        """The records that begin in a slice of a plain file, if it is seekable."""
        raise NotImplementedError

    @abc.abstractmethod
    def cut(self, slice_: Slice, limits: BlockLimits, record_format: RecordFormat) -> Iterator[tuple[FileRange, Any]]:
        """Identity and content of each block of a slice: consecutive, and the same whenever the bytes are the same."""

    @abc.abstractmethod
    def read(self, block: FileRange, record_format: RecordFormat) -> Any:
        """The content of a block, read again. UnreadableFileError if the file has something else at that place."""

    @abc.abstractmethod
    def decode(self, block: FileRange, content: Any, record_format: RecordFormat) -> TextBlock:
        """The texts of a block. A record that cannot be decoded becomes a reject."""

    @abc.abstractmethod
    def count(self, file: InputFile, record_format: RecordFormat, at_most: int) -> int:
        """The records of a file, or `at_most` if it has more."""
