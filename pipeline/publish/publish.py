"""`layerbeam publish`: a finished run as a dataset on Hugging Face's Hub, with a card."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from collections.abc import Mapping
from typing import Any

from layerbeam.pipeline.console import count_noun, echo, size_text
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.lock import only_writer
from layerbeam.pipeline.publish.card import MARK, render_card
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.storage.hf_store import HfStore, explain

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
# Of one commit: the Hub takes long for more. What is committed stays, if a later one fails.
_FILES_AT_ONCE = 200
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
            return _upload(run, card, repository, public=public)
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


def _upload(run: Run, card: str, repository: str, *, public: bool) -> Published:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api: Any = HfApi()
    given = {"repo_id": repository, "repo_type": "dataset"}
    root = f"hf://datasets/{repository}/"
    files = _files_of(run)
    with explain(api.endpoint, repository, "main", repository):
        api.create_repo(**given, private=not public, exist_ok=True)
        is_private = api.repo_info(**given, revision="main").private
        there = {found.path.removeprefix(root): found.version for found in HfStore().list(root)}
    if not (public or is_private):
        raise UsageError(f"{repository}: is public already; give --public, or another name")
    old = sorted(name for name in there.keys() - files.keys() if name.split("/")[0] in run.views and "/" in name)
    new = [name for name, sha256 in files.items() if sha256 is None or there.get(name) != sha256]
    size = size_text(sum(os.path.getsize(os.path.join(run.path, name)) for name in (*new, *_HEADS)))
    count = f"{len(new) + len(_HEADS):,} of {count_noun(len(files) + len(_HEADS), 'file')}"
    echo(f"to publish: {count}, {size}")
    *before, last = list(storage.in_batches(new, _FILES_AT_ONCE)) or [[]]
    for batch in (*before, [*last, *_HEADS]):
        operations: list[Any] = [CommitOperationAdd(name, os.path.join(run.path, name)) for name in batch]
        for operation in operations:
            listed = files.get(operation.path_in_repo)
            if listed is not None and operation.upload_info.sha256.hex() != listed:
                raise UsageError(
                    f"{run.path}: {operation.path_in_repo} has other bytes than the index lists; run `layerbeam verify "
                    "--checksums`, then its configuration again, which repairs it"
                )
        if batch[-1] == _HEADS[-1]:
            operations += map(CommitOperationDelete, old)
        with explain(api.endpoint, repository, "main", repository):
            api.create_commit(**given, operations=operations, commit_message=f"layerbeam {run.manifest['fingerprint']}")
    address = f"{api.endpoint}/datasets/{repository}"
    return Published(run.path, card, address, len(files) + len(_HEADS), len(new) + len(_HEADS), len(old))


def _files_of(run: Run) -> Mapping[str, str | None]:
    """The files of all views, with their SHA-256; with None the normalizer, and the file of a view without rows."""
    has_normalizer = os.path.exists(os.path.join(run.path, layout.NORMALIZER))
    files: dict[str, str | None] = {layout.NORMALIZER: None} if has_normalizer else {}
    for name in run:
        files |= {part.path: part.sha256 for part in run.view(name).parts}
        if not run.view(name).parts:
            empty = storage.file_names(os.path.join(run.path, name), f"{layout.EMPTY}.")
            files |= dict.fromkeys(f"{name}/{file}" for file in empty)
    return files
