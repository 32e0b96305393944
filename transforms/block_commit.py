"""The commit of a block as a file in `_commits`: looked up before the block is decoded, created when it is written.

Several attempts may process the same block: an engine gives a lost worker's work to another while the first still
lives, or a job that was given up continues. What keeps them from damaging each other:

* A part's name has the hash of its bytes. No attempt replaces or deletes what another one has written under a name;
  only the end of a run deletes parts, and only those that its index does not list.
* A commit is created if it is absent. Who comes second takes the first one's commit, and reports that.
* A commit that cannot be trusted (other settings, changed input, missing parts) is replaced. Two attempts may do this
  at once, and the later file stays; but each reports a commit whose parts are there, and the end of the run lists what
  was reported.
"""

from __future__ import annotations

import dataclasses
import json

from layerbeam.transforms import layout, storage
from layerbeam.transforms.commits import BlockId, Commit
from layerbeam.transforms.parts.part_format import Output


def find_commit(output: Output, block: BlockId) -> Commit | None:
    """The block's commit in `_commits`, if it has the run's settings, this content, and parts of full size."""
    record = storage.read_json(_path(output, block))
    if record is None:
        return None
    try:
        commit = Commit.from_json(record)
    except ValueError:
        return None
    is_same = (commit.fingerprint, commit.block.content) == (output.fingerprint, block.content)
    if not is_same or not all(_has_part(output, part.path, part.bytes) for part in commit.parts.values()):
        return None
    return dataclasses.replace(commit, block=block)


def put_commit(output: Output, commit: Commit) -> Commit:
    """Commit a block whose parts are written. Returns the commit that counts: another attempt's if that was first."""
    data = json.dumps(commit.to_json(), sort_keys=True).encode("ascii")
    path = _path(output, commit.block)
    if storage.create_if_absent(path, data):
        return commit
    first = find_commit(output, commit.block)
    if first is not None:
        return first.now(commit.block, [member.block for member in commit.members])
    with storage.write_atomically(path) as file:
        file.write(data)
    return commit


def _path(output: Output, block: BlockId) -> str:
    return storage.join(output.path, layout.commit_path(block.name))


def _has_part(output: Output, path: str, size: int) -> bool:
    found = storage.stat_if_exists(storage.join(output.path, path))
    return found is not None and found.size == size
