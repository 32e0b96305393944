"""Whether every line of every file is in just one block, or said to be left out: what no runner may lose or double."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from layerbeam.transforms import storage
from layerbeam.transforms.commits import Commit, InputFile, printable
from layerbeam.transforms.settings import RecordFormat


def find_gaps(
    files: Iterable[InputFile], not_whole: Iterable[str], commits: Iterable[Commit], record_format: RecordFormat
) -> str | None:
    """What is missing or doubled, or None.

    `not_whole`: paths of files that were left out or are gone, of which there may be blocks or none. `commits` are in
    the order of their lines within a file. Where the file does not say where it ends (compressed, Parquet), a last
    block is not missed.
    """
    excused = set(not_whole)
    blocks = defaultdict(list)
    for commit in commits:
        blocks[commit.block.file.path].append(commit.block)
    known = {file.path: file for file in files}
    for path in blocks.keys() - known.keys() - excused:
        return f"{printable(path)}: has blocks, and nobody found the file"
    paragraphs = record_format.format == "text" and record_format.record == "paragraph"
    for path, file in known.items():
        if path in excused:
            continue
        of_file = blocks[path]
        # Blank lines before a file's first paragraph are in no block.
        line = of_file[0].first_line if paragraphs and of_file else 0
        for block in of_file:
            if block.first_line > line:
                return f"{printable(path)}: lines {line} to {block.first_line - 1} are in no block"
            if block.first_line < line:
                return f"{printable(path)}: line {block.first_line} is in two blocks"
            line += block.num_lines
        if storage.is_compressed(path) or record_format.format == "parquet" or (paragraphs and not of_file):
            continue
        end = of_file[-1].end_byte if of_file else 0
        if end != file.size:
            return f"{printable(path)}: bytes {end:,} to {file.size:,} are in no block"
    return None
