"""`layerbeam extract-features`: a folder of documents, each as google-research's extract_features.py would write it.

A run like any other, in a folder of its own inside the output folder, whose parts are put together to one file per
document.
"""

from __future__ import annotations

import collections
import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import listed_commits
from layerbeam.pipeline.output.manifest import read_manifest
from layerbeam.transforms import storage
from layerbeam.transforms.commits import Commit
from layerbeam.transforms.write.block import TEMPORARY

OWN_FOLDER = ".layerbeam"
VIEW = "features"
# Which files of the output folder are ours, and what they were made of.
DOCUMENTS = "documents.json"

# Of a document, for each byte of its compressed parts.
EXTRA_BYTES_RATIO = 2.1

# Settings that a person gives here as arguments.
ARGUMENTS = {
    "input.files": "INPUT_FOLDER",
    "output.path": "OUTPUT_FOLDER",
    f"views.{VIEW}.layers": "LAYERS",
    "encoder.handle": "BERT_MODEL_DIR",
    "encoder.max_seq_length": "MAX_SEQUENCE_LENGTH",
    "encoder.batch_tokens": "BATCH_SIZE",
}


def settings(
    input_folder: str,
    output_folder: str,
    *,
    layers: Sequence[int],
    handle: str,
    max_seq_length: int,
    batch_size: int,
    sentences: bool = False,
) -> dict[str, Any]:
    """The configuration that the command's arguments stand for: configs/extract_features.yaml with these values."""
    return {
        "input": {
            "files": [_pattern(input_folder)],
            "blank": "keep",
            # The mark that replaces a wrong byte is dropped by WordPiece: as if the byte were not there.
            "invalid_bytes": "replace",
            # A pair is one text, as long as its two are; a sentence is part of one.
            **({"unit": "sentence"} if sentences else {"pair_separator": " ||| "}),
        },
        "encoder": {
            "handle": handle,
            "max_seq_length": max_seq_length,
            "batch_tokens": batch_size * max_seq_length,
        },
        "views": {
            VIEW: {
                "level": "token",
                "layers": list(layers),
                "layer_numbering": "extract_features",
                "format": "jsonl",
                # They stay beside the documents put together from them.
                "compress": True,
            }
        },
        "output": {"path": own_folder(output_folder)},
    }


def own_folder(output_folder: str) -> str:
    """Where the run's own files lie."""
    return storage.join(output_folder, OWN_FOLDER)


def _pattern(input_folder: str) -> str:
    """All files in the folder and below it; the same however the folder is written."""
    if storage.is_local(input_folder):
        return os.path.join(glob.escape(os.path.abspath(input_folder)), "**")
    return storage.join(input_folder.rstrip("/"), "**")


def document_name(path: str) -> str:
    """The name of a document's file of vectors.

    >>> document_name("corpus/a.b.txt"), document_name("notes.gz"), document_name("x/README")
    ('a.b.jsonl', 'notes.jsonl', 'README.jsonl')
    """
    name = os.path.basename(path)
    if storage.is_compressed(name):
        name = os.path.splitext(name)[0]
    return os.path.splitext(name)[0] + ".jsonl"


def check_folders(input_folder: str, output_folder: str) -> None:
    """UsageError, before anything is written, where the documents cannot become files of the output folder."""
    if storage.is_local(input_folder) and not os.path.isdir(input_folder):
        problem = "is no folder" if os.path.lexists(input_folder) else "No such folder"
        raise UsageError(f"INPUT_FOLDER: {input_folder}: {problem}")
    if storage.is_inside(storage.join(output_folder, "any.jsonl"), input_folder):
        raise UsageError(
            f"OUTPUT_FOLDER: {output_folder} lies in INPUT_FOLDER: what is written would be read as a document; "
            "give a folder outside of it"
        )
    found = storage.find_files([_pattern(input_folder)])
    if not found:
        raise UsageError(f"INPUT_FOLDER: {input_folder}: there is no file in it")
    ours = _load(output_folder)
    documents: dict[str, str] = {}
    for file in found:
        name = document_name(file.path)
        other = documents.setdefault(name, file.path)
        if other != file.path:
            raise UsageError(
                f"INPUT_FOLDER: {other} and {file.path} would both be written as {name}; rename one of them"
            )
        if name not in ours and storage.exists(storage.join(output_folder, name)):
            raise UsageError(
                f"OUTPUT_FOLDER: {output_folder} has a {name} that this command did not write, and {file.path} would "
                "be written over it; move it away, or give another folder"
            )


def assemble(output_folder: str, *, prune_missing: bool = False) -> dict[str, list[str]]:
    """Put the parts of each document that was read to its end together, where that is not done yet.

    A document appears whole or not at all. Gives the names: those `written`, those `unchanged`, those `removed`.
    """
    own = own_folder(output_folder)
    manifest = read_manifest(own)
    commits: dict[str, list[Commit]] = collections.defaultdict(list)
    for commit in listed_commits(own):
        commits[commit.block.file.path].append(commit)
    wanted = {
        document_name(entry["path"]): {"file": entry["path"], "parts": _digest(commits[entry["path"]])}
        for entry in manifest["inputs"]
        if entry["left_out"] is None
    }
    before = _load(output_folder)
    sizes = storage.list_folder(output_folder)
    unchanged = [
        name
        for name, document in wanted.items()
        if before.get(name, {}) | document == before.get(name) and sizes.get(name) == before[name].get("bytes")
    ]
    written = sorted(set(wanted) - set(unchanged))
    inputs = {entry["path"] for entry in manifest["inputs"]}
    removed = [
        name
        for name, document in before.items()
        if prune_missing and name not in wanted and document["file"] not in inputs
    ]
    # Ours before they are there: a run that is killed here finds its own files again.
    now = before | {name: {"file": wanted[name]["file"]} for name in written}
    if written:
        _save(output_folder, now)
    for name in written:
        paths = [commit.parts[VIEW].path for commit in commits[wanted[name]["file"]] if VIEW in commit.parts]
        size = _concatenate(own, paths, storage.join(output_folder, name))
        now[name] = wanted[name] | {"bytes": size}
    storage.delete_files(storage.join(output_folder, name) for name in removed)
    for name in removed:
        del now[name]
    if now != before:
        _save(output_folder, now)
    storage.delete_folder(storage.join(own, TEMPORARY))
    return {"written": written, "unchanged": sorted(unchanged), "removed": sorted(removed)}


def _digest(commits: Sequence[Commit]) -> str:
    parts = "".join(commit.parts[VIEW].sha256 for commit in commits if VIEW in commit.parts)
    return hashlib.sha256(parts.encode("ascii")).hexdigest()


def _concatenate(own: str, paths: Sequence[str], target: str) -> int:
    """Write the parts one after the other, decompressed; how many bytes they are."""
    with storage.write_whole(target, temporary=storage.join(own, TEMPORARY)) as file:
        for path in paths:
            with storage.open_binary(storage.join(own, path)) as part:
                for chunk in storage.read_chunks(part, path):
                    file.write(chunk)
    return file.num_bytes


def _load(output_folder: str) -> dict[str, Any]:
    """What was written of which document; what is no plain name is none of ours, whoever put it there."""
    documents = storage.read_json(storage.join(own_folder(output_folder), DOCUMENTS)) or {}
    return {
        name: document
        for name, document in documents.items()
        if name == os.path.basename(name)
        and name not in ("", ".", "..")
        and isinstance(document, dict)
        and isinstance(document.get("file"), str)
    }


def _save(output_folder: str, documents: Mapping[str, Any]) -> None:
    own = own_folder(output_folder)
    with storage.write_whole(storage.join(own, DOCUMENTS), temporary=storage.join(own, TEMPORARY)) as file:
        file.write(json.dumps(documents, indent=1, sort_keys=True).encode("ascii") + b"\n")
