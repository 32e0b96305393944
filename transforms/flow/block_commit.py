"""The commit of a block as a file in `_commits`: looked up before the block is decoded, created when it is written.

Several attempts may process the same block: an engine gives a lost worker's work to another while the first still
lives, or a job that was given up continues. What keeps them from damaging each other:

* A part's name has the hash of its bytes. No attempt replaces or deletes what another one has written under a name;
  only the end of a run deletes parts, and only those that its index does not list.
* A commit is created if it is absent. Who comes second takes the first one's commit.
* A commit that cannot be trusted (other settings, changed input, missing parts) is replaced. Two attempts may do this
  at once, and the later file stays; the parts of both are there, and the end of the run lists those of the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import Commit, FileRange, name_of, parse_commit
from layerbeam.transforms.parts.part_format import Output


def find_commit(output: Output, files: Sequence[FileRange]) -> Commit | None:
    """The block's commit in `_commits`, if it has the run's settings, this content, and parts of full size."""
    data = storage.read_if_exists(_path(output, name_of(files)))
    commit = None if data is None else parse_commit(data)
    if commit is None or commit.fingerprint != output.fingerprint or not commit.has_content(files):
        return None
    return commit if all(_has_part(output, part.path, part.bytes) for part in commit.parts.values()) else None


def put_commit(output: Output, commit: Commit) -> Commit:
    """Commit a block whose parts are written. Returns the commit that counts: another attempt's if that was first."""
    path = _path(output, commit.name)
    if storage.create_if_absent(path, commit.to_line()):
        return commit
    first = find_commit(output, commit.files)
    counted = commit if first is None else first.now(commit.files)
    if first is not None and (counted == first or any(map(storage.find_change, commit.inputs))):
        return first
    with storage.write_atomically(path) as file:
        file.write(counted.to_line())
    return counted


def _path(output: Output, name: str) -> str:
    return storage.join(output.path, layout.commit_path(name))


def _has_part(output: Output, path: str, size: int) -> bool:
    found = storage.stat_if_exists(storage.join(output.path, path))
    return found is not None and found.size == size
