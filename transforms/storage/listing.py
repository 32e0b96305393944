"""Paths, local or in a store, and which files exist, with their sizes and times."""

from __future__ import annotations

import collections
import contextlib
import errno
import fnmatch
import glob
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage import hf_store, stores

# Object stores answer slowly, and many at once.
FILES_AT_ONCE = 32
_UNLISTED = "cannot be listed"


class PatternError(OSError):
    """A pattern whose matches a store could not list."""


def is_local(path: str) -> bool:
    """Whether the path has no scheme, so that it is on this machine's file system."""
    return stores.scheme_of(path) is None


def join(folder: str, *names: str) -> str:
    """`folder/name`, on any file system."""
    return os.path.join(folder, *names) if is_local(folder) else stores.join(folder, *names)


def is_inside(path: str, folder: str) -> bool:
    """Whether the path is in the folder or below it; links are followed."""
    if is_local(path) != is_local(folder):
        return False
    if not is_local(path):
        return path.startswith(folder.rstrip("/") + "/")
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def reason_of(error: OSError) -> str:
    """What is wrong with a file, without its name."""
    return error.strerror or str(error)


def find_files(patterns: Iterable[str], at_most: int | None = None, *, paths: Iterable[str] = ()) -> list[InputFile]:
    """The files that match the globs, sorted by path; each file once, under the first path that was found.

    Local paths lose `./`, `//` and `a/../`; relative and absolute ones stay so.
    A local glob that is the path of a file stands for that one, too. A match that is not a readable file (a folder, a
    broken link, a pipe), and a folder on the way that cannot be listed, becomes an `InputFile` with a problem. Raises
    PatternError if a store cannot be listed.
    `at_most`: so many matches of each glob are looked at. `paths`: more files, whatever characters their paths have.
    """
    found: dict[str, InputFile] = {}
    failed: list[InputFile] = []
    for pattern in patterns:
        if is_local(pattern):
            is_glob = glob.has_magic(pattern)
            literal = [pattern] if _may_exist(pattern) else []
            others = itertools.islice(_match(pattern, failed), at_most) if is_glob else ()
            for path in itertools.chain(literal, others):
                # A glob matches folders next to the files; only a folder that was named itself is reported.
                if not (is_glob and os.path.isdir(path)):
                    plain = _without_detours(path)
                    found.setdefault(place_of(plain), _stat_input(plain))
        else:
            try:
                matches = stores.list_files(pattern, at_most)
            except OSError as error:
                raise PatternError(f"{pattern}: {reason_of(error)}") from error
            for file in matches:
                found.setdefault(file.path, file)
    for file in failed:
        found.setdefault(place_of(file.path), file)
    for path in paths:
        plain = _without_detours(path) if is_local(path) else path
        found.setdefault(place_of(plain), _stat_input(plain))
    return sorted(found.values(), key=lambda file: file.path)


def _stat_input(path: str) -> InputFile:
    """As `stat_file`. Files in /proc have the size 0, whatever they hold, and cannot be read in ranges."""
    found = stat_file(path)
    if not found.problem and not found.size and is_local(path):
        with contextlib.suppress(OSError), open(path, "rb", 0, opener=_open_at_once) as file:
            if file.read(1) and found == stat_file(path):
                return InputFile.unreadable(path, "holds bytes, and its size is 0; copy it to a disk")
    return found


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # some files in /proc would wait for their first byte


def place_of(path: str, version: str = "") -> str:
    """The same text for every spelling of a path: absolute if it is local. Links are not followed.

    And for a file of this version in a dataset of the Hub, at every commit that has it.
    """
    if is_local(path):
        return _without_detours(os.path.join(os.getcwd(), path))
    return hf_store.content_place(path, version) if version and hf_store.is_path(path) else path


def _without_detours(path: str) -> str:
    """The path without `./`, `//` and `a/../`, unless `a` is a link: then `a/..` is another folder."""
    plain = os.path.normpath(path)
    try:
        return plain if ".." not in path.split("/") or os.path.samefile(path, plain) else path
    except OSError:
        return path


def is_unlisted(file: InputFile) -> bool:
    """Whether it stands for a folder that could not be listed."""
    return file.problem.startswith(_UNLISTED)


def unlisted(folder: str, error: OSError) -> InputFile:
    """A folder that could not be listed: what is in it may exist or not."""
    return InputFile.unreadable(folder, f"{_UNLISTED} ({reason_of(error)})")


def _may_exist(path: str) -> bool:
    """False if there is certainly nothing of that name."""
    try:
        os.lstat(path)
    except OSError as error:
        return not _is_no_folder(error)
    return True


def _is_no_folder(error: OSError) -> bool:
    """Whether an error says that there is no such folder; other errors say nothing about what is in it."""
    return isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP


def _match(pattern: str, failed: list[InputFile]) -> Iterator[str]:
    """Like Python's glob, but `**` enters each folder once: links upwards, or to each other, would not end.

    Folders that cannot be listed are added to `failed`.
    """
    names = pattern.split("/")
    if not names[-1]:  # folders only
        return
    paths: Iterable[str] = ["/" if names[0] == "" else ""]
    for is_deep, group in itertools.groupby([*names, "*"] if names[-1] == "**" else names, "**".__eq__):
        paths = _walk(paths, failed) if is_deep else _match_below(paths, [name for name in group if name], failed)
    yield from paths


def _match_below(folders: Iterable[str], names: Sequence[str], failed: list[InputFile]) -> Iterator[str]:
    for name in names:
        folders = _match_name(folders, name, failed)
    yield from folders


def _match_name(folders: Iterable[str], name: str, failed: list[InputFile]) -> Iterator[str]:
    """The entries of the folders that a name with or without wildcards stands for."""
    for folder in folders:
        if not glob.has_magic(name):
            path = os.path.join(folder, name)
            if _may_exist(path):
                yield path
        else:
            names = (one for one in _list(folder, failed) if name[0] == "." or one[0] != ".")
            yield from (os.path.join(folder, one) for one in fnmatch.filter(names, name))


def _list(folder: str, failed: list[InputFile]) -> list[str]:
    """The names in a folder; none if it is no folder."""
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if not _is_no_folder(error):
            failed.append(unlisted(folder, error))
        return []


def _walk(tops: Iterable[str], failed: list[InputFile]) -> Iterator[str]:
    """The folders and all folders below them, each once. Skips names with a leading dot, as glob does.

    All that is reached without links comes first: a link to such a folder gives its files no second path, and the path
    that a file gets does not depend on the order in which a disk lists names.
    """
    folders, links = collections.deque[str](), collections.deque[str]()

    def add(paths: Iterable[str]) -> None:
        for path in sorted(paths):
            (links if os.path.islink(path) else folders).append(path)

    add(tops)
    seen = set[str]()
    while folders or links:
        folder = (folders or links).popleft()
        place = os.path.realpath(folder)
        if place in seen:
            continue
        seen.add(place)
        names = _list(folder, failed)
        yield folder
        add(path for name in names if name[0] != "." and _is_folder(path := os.path.join(folder, name), failed))


def _is_folder(path: str, failed: list[InputFile]) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if not _is_no_folder(error):
            failed.append(unlisted(path, error))
        return False


def stat_file(path: str) -> InputFile:
    """Current size and time of a file, or the reason why it cannot be read."""
    try:
        if not is_local(path):
            return stores.stat(path) or InputFile.unreadable(path, "No such file")
        status = os.stat(path)
    except OSError as error:
        return InputFile.unreadable(path, reason_of(error))
    if stat.S_ISDIR(status.st_mode):
        return InputFile.unreadable(path, f"is a folder; to read the files in it, write {path.rstrip('/')}/*")
    if not stat.S_ISREG(status.st_mode):
        return InputFile.unreadable(path, "is not a regular file")
    return InputFile(path, status.st_size, status.st_mtime)


def stat_if_exists(path: str) -> InputFile | None:
    """Current size and time of a file; None if there is none. OSError if nobody can tell now."""
    if not is_local(path):
        return stores.stat(path)
    try:
        status = os.stat(path)
    except OSError as error:
        if is_absent(path, error):
            return None
        raise
    return InputFile(path, status.st_size, status.st_mtime) if stat.S_ISREG(status.st_mode) else None


def find_change(file: InputFile) -> InputFile | None:
    """The reason to skip a file that is missing or has another size or time than when it was found; None if equal."""
    now = stat_file(file.path)
    if now.problem:
        return now
    return None if now == file else InputFile.unreadable(file.path, "changed while it was being read; run again")


def exists(path: str) -> bool:
    """Whether there is a file or folder of that name."""
    if is_local(path):
        return os.path.lexists(path)
    with stores.store_of(path) as store:
        return store.exists(path)


def check_bucket(folder: str) -> None:
    """Raises OSError if the store's bucket is missing or access is denied; the folder itself may be missing."""
    next(stores.list_prefix(join(folder, "_")), None)


def list_folder(folder: str) -> dict[str, int]:
    """{name: size in bytes} of the files directly in the folder; empty if there is no folder."""
    return dict(file_sizes(folder))


def file_sizes(folder: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    """(name, size in bytes) of what `file_names` gives."""
    if not is_local(folder):
        found = ((f.path.removeprefix(join(folder, "")), f.size) for f in stores.list_prefix(join(folder, prefix)))
        yield from ((name, size) for name, size in found if "/" not in name)
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # an unfinished file has got its name meanwhile
                if entry.name.startswith(prefix) and entry.is_file():
                    yield entry.name, entry.stat().st_size


def file_names(folder: str, prefix: str = "") -> Iterator[str]:
    """The names of the files directly in the folder that begin so, in any order; local ones are not held in memory."""
    if not is_local(folder):
        yield from (name for name, _ in file_sizes(folder, prefix))
    else:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if entry.name.startswith(prefix) and entry.is_file())


def is_absent(path: str, error: OSError) -> bool:
    """Whether reading a file failed because there is none, or none that we may read.

    Another error may pass: then nobody knows what the file holds.
    """
    lasting = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
    return isinstance(error, lasting) or not (is_local(path) or exists(path))


def list_tree(folder: str) -> dict[str, InputFile]:
    """The files in and below a folder of a store, by their path relative to it."""
    root = folder.rstrip("/") + "/"
    return {file.path.removeprefix(root): file for file in stores.list_prefix(root)}
