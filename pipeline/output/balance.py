"""What must hold at the end of a run: no line lost or duplicated, counts that balance; and the duplicate ids."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from layerbeam.transforms import metrics, storage
from layerbeam.transforms.columns import schema
from layerbeam.transforms.commits import Commit, InputFile, printable
from layerbeam.transforms.parts import FORMATS, read_tables
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.views import View

# 64 bits of a hash for each: 8 MB. So many different ids share a hash once in 37 million runs.
MAX_COMPARED_IDS = 1_000_000


def find_gaps(
    files: Iterable[InputFile], not_whole: Iterable[str], commits: Iterable[Commit], record_format: RecordFormat
) -> str | None:
    """The first line that is in no block or in two, as a message; None if every line is in exactly one.

    `not_whole`: paths of files that were skipped or are missing, which may have any blocks. `commits` are in the order
    of their lines within a file. A missing last block goes undetected if the file does not record where it ends
    (compressed files and Parquet).
    """
    excused = set(not_whole)
    blocks = defaultdict(list)
    for commit in commits:
        blocks[commit.block.file.path].append(commit.block)
    known = {file.path: file for file in files}
    for path in blocks.keys() - known.keys() - excused:
        return f"{printable(path)}: has blocks but is not an input file"
    paragraphs = record_format.format == "text" and record_format.record == "paragraph"
    for path, file in known.items():
        if path in excused:
            continue
        # Blank lines before a file's first paragraph are in no block.
        line = blocks[path][0].first_line if paragraphs and blocks[path] else 0
        for block in blocks[path]:
            if block.first_line > line:
                return f"{printable(path)}: lines {line} to {block.first_line - 1} are in no block"
            if block.first_line < line:
                return f"{printable(path)}: line {block.first_line} is in two blocks"
            line += block.num_lines
        if storage.is_compressed(path) or record_format.format == "parquet" or (paragraphs and not blocks[path]):
            continue
        end = blocks[path][-1].end_byte if blocks[path] else 0
        if end != file.size:
            return f"{printable(path)}: bytes {end:,} to {file.size:,} are in no block"
    return None


def count_duplicate_ids(output_path: str, views: Sequence[View], commits: Sequence[Commit]) -> int | None:
    """Records of the whole run with the id of an earlier one, from the `id` column of the smallest columnar view.

    None if that would take much memory or time: over a million records, or no columnar view with all records.
    Duplicates within one block are in the counts of its commit.
    """
    with_all_records = {
        view.name: view
        for view in views
        if FORMATS[view.format].is_columnar and view.level in ("token", "text", "record") and view.keep_words is None
    }
    if not with_all_records or sum(commit.counts.get(metrics.EMBEDDED, 0) for commit in commits) > MAX_COMPARED_IDS:
        return None
    parts = {name: [c.parts[name].path for c in commits if name in c.parts] for name in with_all_records}
    smallest = min(parts, key=lambda name: sum(c.parts[name].rows for c in commits if name in c.parts))
    columns = schema(with_all_records[smallest])
    hashes = [np.fromiter(_id_hashes(storage.join(output_path, path), columns), np.uint64) for path in parts[smallest]]
    return sum(map(len, hashes)) - len(np.unique(np.concatenate(hashes))) if hashes else 0


def _id_hashes(path: str, columns: pa.Schema) -> Iterator[int]:
    """64 bits for the id of each record in a part. The rows of a record are adjacent."""
    table = pa.concat_tables(read_tables(path, columns, ["line", "id"]))
    first = np.flatnonzero(np.diff(table["line"].to_numpy(), prepend=-1))
    for value in table["id"].take(first).drop_null().to_pylist():
        yield int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
