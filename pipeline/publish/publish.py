"""`layerbeam publish`: a finished run as a dataset on Hugging Face's Hub, with a card."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from layerbeam.pipeline.console import count_noun, echo, size_text
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.publish.card import MARK, digits_of_folders, render_card
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.storage.hf_store import HfStore, explain

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# Of one commit: the Hub takes long for more. What is committed stays, if a later one fails.
_FILES_AT_ONCE = 200
# A file of which the index has no hash.
_UNKNOWN = Part("", 0, 0, "")
# What a reader needs next to the files of the views; committed last.
_HEADS = (layout.PARTS, layout.MANIFEST, layout.SUCCESS, layout.CARD)


@dataclasses.dataclass(frozen=True)
class Published:
    """What was done. `address`: of the dataset; None if only the card was written."""

    path: str
    card: str
    address: str | None
    files: int
    uploaded: int
    deleted: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


def print_published(done: Published) -> None:
    """Print it in a line or two."""
    print(f"card: {done.card}")
    if done.address is not None:
        deleted = f", {count_noun(done.deleted, 'old file')} deleted" if done.deleted else ""
        print(f"published: {done.address} ({count_noun(done.files, 'file')}, {done.uploaded:,} of them now{deleted})")


def publish(output_path: str, repository: str | None, *, public: bool = False) -> Published:
    """Write the card of a finished run and, if a repository is given, make the Hub have the run and the card.

    The listed parts, the index, the manifest and the card are published: no rejects, and no files that are not listed.
    What the Hub has already is not sent again. UsageError if the run is not finished; OSError if the Hub refuses.
    """
    if repository is not None and not _NAME.fullmatch(repository):
        raise UsageError(f"{repository}: is not of the form org/name")
    if not storage.is_local(output_path):
        raise UsageError(f"{output_path}: is not on this machine; copy the folder to a disk and publish that")
    if repository is not None and not storage.is_installed("huggingface_hub"):
        raise UsageError(f"publish: needs a package that is not installed; run: {storage.install_command('hf')}")
    open_run(output_path)  # an unfinished run is no reason to take the lock
    with only_writer(output_path):
        run = open_run(output_path)
        problems = run.check_files()
        if problems:
            raise UsageError(f"{output_path}: {problems[0]}; run its configuration again, which repairs it")
        card = _write_card(run, repository)
        if repository is None:
            return Published(output_path, card, None, 0, 0, 0)
        try:
            with tempfile.TemporaryDirectory() as folder:
                return _upload(run, card, repository, folder, public=public)
        except OSError as error:
            reason = f"{repository}: {storage.reason_of(error)}; run the same command again to resume"
            if error.errno == errno.EACCES:
                raise UsageError(reason) from error
            raise OSError(reason) from None


def _write_card(run: Run, repository: str | None) -> str:
    """Write the card, unless there is one of somebody's own; returns its path."""
    path = os.path.join(run.path, layout.CARD)
    found = storage.read_if_exists(path)
    if found is not None and MARK.encode() not in found:
        echo(f"{path}: is kept: it is not a card that layerbeam wrote")
    else:
        with storage.write_atomically(path) as file:
            file.write(render_card(run, repository).encode("utf-8", "replace"))
    return path


def _upload(run: Run, card: str, repository: str, folder: str, *, public: bool) -> Published:
    """Make the Hub have the files. `folder`: for the index, if it is another one there."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api: Any = HfApi()
    given = {"repo_id": repository, "repo_type": "dataset"}
    root = f"hf://datasets/{repository}/"
    files = _files_of(run)
    here = {name: os.path.join(run.path, file.path) for name, file in files.items()}
    here |= {name: os.path.join(run.path, name) for name in _HEADS}
    if any(map(digits_of_folders, map(run.view, run))):
        here[layout.PARTS] = _write_index(run, os.path.join(folder, layout.PARTS))
    with explain(api.endpoint, repository, "main", repository):
        api.create_repo(**given, private=not public, exist_ok=True)
        is_private = api.repo_info(**given, revision="main").private
        there = {found.path.removeprefix(root): found.version for found in HfStore().list(root)}
    if not (public or is_private):
        raise UsageError(f"{repository}: is public already; give --public, or another name")
    old = sorted(name for name in there.keys() - files.keys() if name.split("/")[0] in run.views and "/" in name)
    new = [name for name, file in files.items() if not file.sha256 or there.get(name) != file.sha256]
    size = size_text(sum(os.path.getsize(here[name]) for name in (*new, *_HEADS)))
    count = f"{len(new) + len(_HEADS):,} of {count_noun(len(files) + len(_HEADS), 'file')}"
    echo(f"to publish: {count}, {size}")
    *before, last = list(storage.in_batches(new, _FILES_AT_ONCE)) or [[]]
    for batch in (*before, [*last, *_HEADS]):
        operations: list[Any] = [CommitOperationAdd(name, here[name]) for name in batch]
        _check_bytes(run, files, operations)
        if batch[-1] == _HEADS[-1]:
            operations += map(CommitOperationDelete, old)
        with explain(api.endpoint, repository, "main", repository):
            api.create_commit(**given, operations=operations, commit_message=f"layerbeam {run.manifest['fingerprint']}")
    address = f"{api.endpoint}/datasets/{repository}"
    return Published(run.path, card, address, len(files) + len(_HEADS), len(new) + len(_HEADS), len(old))


def _check_bytes(run: Run, files: Mapping[str, Part], additions: Sequence[Any]) -> None:
    """UsageError if a file to add has other bytes than the index lists."""
    for addition in additions:
        listed = files.get(addition.path_in_repo, _UNKNOWN).sha256
        if listed and addition.upload_info.sha256.hex() != listed:
            raise UsageError(
                f"{run.path}: {addition.path_in_repo} has other bytes than the index lists; run `layerbeam verify "
                "--checksums`, then its configuration again, which repairs it"
            )


def _files_of(run: Run) -> Mapping[str, Part]:
    """The files of all views by their names on the Hub; the normalizer, and that of no rows, without a SHA-256."""
    names = [layout.NORMALIZER] if os.path.exists(os.path.join(run.path, layout.NORMALIZER)) else []
    files: dict[str, Part] = {}
    for view in map(run.view, run):
        digits = digits_of_folders(view)
        files |= {_name_there(part, digits): part for part in view.parts}
        if not view.parts:
            empty = storage.file_names(os.path.join(run.path, view.name), f"{layout.EMPTY}.")
            names += [f"{view.name}/{file}" for file in empty]
    return {name: dataclasses.replace(_UNKNOWN, path=name) for name in names} | files


def _name_there(part: Part, digits: int) -> str:
    """The name of a part on the Hub, in a folder for those whose SHA-256 begins with the same digits."""
    folder, _, name = part.path.rpartition("/")
    return f"{folder}/sha256.{part.sha256[:digits]}/{name}" if digits else part.path


def _write_index(run: Run, path: str) -> str:
    """Write the index with the names on the Hub; returns its path."""
    digits = {name: digits_of_folders(run.view(name)) for name in run}
    with open(path, "wb") as file:
        for block in run.blocks(with_tables=True):
            parts = {
                name: dataclasses.replace(part, path=_name_there(part, digits.get(name, 0)))
                for name, part in block.parts.items()
            }
            file.write(dataclasses.replace(block, parts=parts).to_line() + b"\n")
    return path
