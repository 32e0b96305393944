"""The recorded commits of an output folder, and what `verify --checksums` found damaged."""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import Commit, Part, parse_commit
from layerbeam.transforms.settings import adapter

# Commits in one file, once a run is about to end.
COMPACTED = 1000


def recorded(output_path: str, is_known: Callable[[str], bool] = lambda _: False) -> Iterator[tuple[Commit, bytes]]:
    """The commits in `_commits`, then those in the index, each with its line of JSON. Damaged ones are skipped.

    In this order, because the end of another attempt moves them from one to the other. `is_known`: whether the commit
    of a block, by its name, was given already, so that it need not be read again after it was compacted.
    """
    index = (line.rstrip(b"\n") for line in index_lines_if_any(output_path))
    for line in itertools.chain(_log_lines(output_path, is_known), index):
        commit = parse_commit(line)
        if commit is not None:
            yield commit, line


def _log_lines(output_path: str, is_known: Callable[[str], bool]) -> Iterator[bytes]:
    folder = storage.join(output_path, layout.COMMITS)
    compacted = (name for name in storage.file_names(folder) if name.endswith(".jsonl"))
    single = (name for name in storage.file_names(folder) if name.endswith(".json"))
    for names in (compacted, (name for name in single if not is_known(name.removesuffix(".json")))):
        for batch in storage.in_batches(names):
            for data in _read_all([storage.join(folder, name) for name in batch]):
                yield from data.splitlines()


def index_lines(output_path: str) -> Iterator[bytes]:
    """The lines of `parts.jsonl`, one for each block. OSError if it cannot be read."""
    with storage.open_binary(storage.join(output_path, layout.PARTS)) as file:
        yield from file


def index_lines_if_any(output_path: str) -> Iterator[bytes]:
    """As `index_lines`, without lines if there is no index."""
    try:
        yield from index_lines(output_path)
    except OSError as error:
        if not storage.is_absent(storage.join(output_path, layout.PARTS), error):
            raise


def compact(output_path: str, names: Sequence[str]) -> None:
    """Put commits of `_commits`, given by the names of their files, into one file there, which is quickly read.

    The files stay: a worker that comes too late must see that its block is committed.
    """
    folder = storage.join(output_path, layout.COMMITS)
    lines = (line for data in _read_all([storage.join(folder, name) for name in names]) for line in data.splitlines())
    data = b"".join(line + b"\n" for line in lines)
    with storage.write_atomically(storage.join(folder, f"{hashlib.sha256(data).hexdigest()[:16]}.jsonl")) as file:
        file.write(data)


def _read_all(paths: Sequence[str]) -> Iterator[bytes]:
    """The contents of the files that exist; those of a store are asked for at once."""
    if not paths or storage.is_local(paths[0]):
        found = map(storage.read_if_exists, paths)
        yield from (data for data in found if data is not None)
        return
    with concurrent.futures.ThreadPoolExecutor(storage.FILES_AT_ONCE) as threads:
        yield from (data for data in threads.map(storage.read_if_exists, paths) if data is not None)


def size_problem(part: Part, size: int | None) -> str | None:
    """What is wrong with a part whose file has this size, or is missing."""
    if size is None:
        return "is missing"
    return None if size == part.bytes else f"has {size:,} bytes, not {part.bytes:,}"


def load_damaged(output_path: str) -> set[str]:
    """Paths of the files that `verify --checksums` found changed and no run has rewritten since."""
    try:
        data = storage.read_if_exists(storage.join(output_path, layout.DAMAGED)) or b""
        return set(filter(layout.is_part_path, adapter(list[str]).validate_python(storage.parse_json(data))))
    except ValueError:
        return set()


def note_damaged(output_path: str, paths: Iterable[str]) -> None:
    """Make the next run rewrite these files. OSError if the folder cannot be written."""
    with storage.write_atomically(storage.join(output_path, layout.DAMAGED)) as file:
        file.write(json.dumps(sorted(paths), indent=1).encode("ascii") + b"\n")
