"""The input files: what the globs match, under the paths that an earlier run recorded."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence

from layerbeam.pipeline.console import count_noun, echo_warning
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile, printable
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.content import format_by_name
from layerbeam.transforms.settings import RecordFormat
from layerbeam.transforms.slice.slices import (
    count_records,
)

_NAMED = 5  # files of a folder that are not read
_WALKED = 1000  # folders that are looked into for advice


def find_inputs(patterns: list[str], output_path: str, *, at_most: int | None = None) -> list[InputFile]:
    """What the globs match, without the output folder. UsageError if that is no file that can be read.

    A folder stands for the files in it whose names end as an input format's do; a warning names others but hidden ones.
    `at_most`: so many files of each pattern are enough.
    """
    failed = list[InputFile]()
    try:
        in_folders = {pattern: _files_of_folder(pattern, failed) for pattern in patterns}
        # A local glob that is the name of a folder, too, stands for both.
        globs = [p for p in patterns if not in_folders[p] or (storage.is_local(p) and glob.has_magic(p))]
        matches = storage.find_files(globs, at_most, paths=itertools.chain(*in_folders.values()))
    except storage.PatternError as error:
        raise UsageError(f"input.files: {error}") from error
    found = [_of_input(file) for file in [*matches, *failed] if not storage.is_inside(file.path, output_path)]
    if all(file.problem for file in found):
        relative = any(storage.is_local(pattern) and not os.path.isabs(pattern) for pattern in patterns)
        here = f" (from {os.getcwd()})" if relative else ""
        unreadable = [f"; {printable(file.path)}: {file.problem}" for file in found]
        # In a glob [a] is the letter a; a folder may be called [a].
        as_names = [p.replace("[", "[[]") for p in patterns if "[" in p and storage.is_local(p)]
        hints = [f"; to read brackets as they are, write {p}" for p in as_names if storage.find_files([p], 1)]
        problems = "".join([*unreadable, *hints])
        raise UsageError(f"input.files: no file matches {', '.join(patterns)}{here}{problems}")
    return found


def _of_input(file: InputFile) -> InputFile:
    """The same, but a folder says why none of its files is read."""
    if storage.is_unlisted(file) or not file.problem or not storage.is_local(file.path) or not os.path.isdir(file.path):
        return file
    endings = [ending for format_ in INPUT_FORMATS.values() for ending in format_.endings]
    advice, names = "name the files in it", list(_names_below(file.path))
    for ending in endings:
        if any(name.endswith(ending) for name in names):
            advice = f"those in folders of it are {printable(glob.escape(file.path))}/**/*{ending}"
            break
    what = f"is a folder without a file that ends in {', '.join(endings)}; {advice}"
    return InputFile.unreadable(file.path, what)


def _names_below(folder: str) -> Iterator[str]:
    """The names of files in a local folder and the first folders below it, as a glob finds them."""
    for _, folders, names in itertools.islice(os.walk(folder), _WALKED):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (name for name in names if not name.startswith("."))


def _files_of_folder(path: str, failed: list[InputFile]) -> list[str]:
    is_folder = os.path.isdir(path) if storage.is_local(path) else path.endswith("/")
    try:
        names = storage.list_folder(path) if is_folder else {}
    except OSError as error:
        if not storage.is_local(path):
            raise storage.PatternError(f"{path}: {storage.reason_of(error)}") from error
        failed.append(storage.unlisted(path.rstrip("/") or "/", error))
        return []
    names = {name: size for name, size in names.items() if not name.startswith(".")}  # as a glob does
    read = [name for name in names if format_by_name(name) is not None]
    others = sorted(name for name in names.keys() - {*read} if not name.startswith("_"))  # such as _SUCCESS
    if read and others:
        shown = printable(", ".join(others[:_NAMED])) + (", ..." if len(others) > _NAMED else "")
        what = f"{printable(path)}: {count_noun(len(others), 'file')} with other endings not read ({shown})"
        echo_warning(f"input.files: {what}; to read such files, name them or a glob")
    return [storage.join(path, name) for name in read]


def in_shard(found: Iterable[InputFile], shard: str | None) -> list[InputFile]:
    """The files of a shard such as 3/64; of None all. A folder that cannot be listed may have files of every shard.

    The hash is of the path alone, however it was written and, on the Hub, at whatever commit: files come and go without
    moving others.
    """
    number, count = map(int, (shard or "1/1").split("/"))
    return [file for file in found if storage.is_unlisted(file) or _shard_of(file.path, count) == number]


def _shard_of(path: str, count: int) -> int:
    """The shard of a file, from 1 to `count`."""
    place = storage.place_of(path, "any").encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.sha256(place).digest()[:8], "big") % count + 1


def as_recorded(found: Iterable[InputFile], recorded: Collection[tuple[str, str]]) -> list[InputFile]:
    """The files under the paths that an earlier run recorded, each with its version; sorted by path."""
    paths = {storage.place_of(path, version): path for path, version in recorded}
    known = set(paths.values())
    renamed = (
        file
        if file.path in known
        else dataclasses.replace(file, path=paths.get(storage.place_of(file.path, file.version), file.path))
        for file in found
    )
    return sorted(renamed, key=lambda file: file.path)


def unlisted_files(found: Iterable[InputFile], recorded_files: Iterable[tuple[str, str]]) -> list[InputFile]:
    """The files of earlier runs that are below a folder that cannot be listed now: nobody knows whether they exist."""
    folders = {storage.join(storage.place_of(file.path), ""): file for file in found if storage.is_unlisted(file)}
    return [
        InputFile.unreadable(path, f"is in {printable(file.path)}, which {file.problem}")
        for path in (sorted({path for path, _ in recorded_files}) if folders else ())
        for folder, file in folders.items()
        if storage.place_of(path).startswith(folder)
    ]


def first_records(
    found: Sequence[InputFile], limit: int, record_format: RecordFormat
) -> tuple[list[InputFile], dict[str, int]]:
    """(the files that hold the first records, how many of them are in a file that has more)."""
    kept: list[InputFile] = []
    limited: dict[str, int] = {}
    for file in found:
        if limit == 0:
            break
        kept.append(file)
        if not file.problem:
            count = count_records(file, record_format, limit + 1)
            if count > limit:
                limited[file.path] = limit
            limit -= min(count, limit)
    return kept, limited
