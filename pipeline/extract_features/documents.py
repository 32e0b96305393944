"""`layerbeam extract-features`: a folder of documents, each as google-research's extract_features.py would write it.

An ordinary run, in its own folder inside the output folder. Its parts are then concatenated to one file per document.
"""

from __future__ import annotations

import collections
import glob
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from layerbeam.pipeline.dataset.index import read_index
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.manifest import read_manifest
from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import Part

VIEW = "features"
# The index of the documents that this command wrote, and of the parts they were made of.
DOCUMENTS = "documents.json"

# Bytes of a document per byte of its compressed parts.
EXTRA_BYTES_RATIO = 2.1

_MAX_NAME_BYTES = 255

# Settings that are arguments of this command.
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
    """The configuration for the command's arguments: configs/extract_features.yaml with these values."""
    return {
        "input": {
            "files": [_pattern(input_folder)],
            "format": "text",
            "blank": "keep",
            "max_missing": 0,  # documents are deleted by --prune-missing only
            # WordPiece drops the character that replaces an invalid byte, as if the byte were not there.
            "invalid_bytes": "replace",
            # A pair is one text; sentences would split it.
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
                # The parts stay next to the documents made of them.
                "compress": True,
            }
        },
        "output": {"path": own_folder(output_folder)},
    }


def own_folder(output_folder: str) -> str:
    """The output folder of the run itself."""
    return storage.join(output_folder, ".layerbeam")


def _pattern(input_folder: str) -> str:
    """A glob for all files in the folder and below it, the same for every spelling of the folder."""
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
    """UsageError, before anything is written, if the documents cannot become files of the output folder."""
    if storage.is_local(input_folder) and not os.path.isdir(input_folder):
        problem = "is not a folder" if os.path.lexists(input_folder) else "No such folder"
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
        if storage.is_local(output_folder) and len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise UsageError(
                f"INPUT_FOLDER: {file.path} would be written under a name of {len(os.fsencode(name))} bytes, {name}; "
                f"file systems allow {_MAX_NAME_BYTES}: rename it"
            )
        if name not in ours and storage.exists(storage.join(output_folder, name)):
            raise UsageError(
                f"OUTPUT_FOLDER: {output_folder} has a {name} that this command did not write, and {file.path} would "
                "be written over it; move it away, or give another folder"
            )


def assemble(output_folder: str, *, prune_missing: bool = False) -> dict[str, list[str]]:
    """Concatenate the parts of each document that was read to its end, unless that is done already.

    A document appears whole or not at all. Returns the names under `written`, `unchanged` and `removed`.
    """
    own = own_folder(output_folder)
    manifest = read_manifest(own)
    index = read_index(own)
    inputs = {entry["path"]: entry for entry in index.inputs(manifest["left_out"])}
    parts: dict[str, list[Part]] = collections.defaultdict(list)
    for commit in index:
        parts[commit.files[0].file.path] += [commit.parts[VIEW]] if VIEW in commit.parts else []
    wanted = {}
    for path, entry in inputs.items():
        if entry["left_out"] is None:
            digest = hashlib.sha256("".join(part.sha256 for part in parts[path]).encode("ascii")).hexdigest()
            wanted[document_name(path)] = {"file": path, "parts": digest}
    before = _load(output_folder)
    sizes = storage.list_folder(output_folder)
    unchanged = [
        name
        for name, document in wanted.items()
        if before.get(name, {}) | document == before.get(name) and sizes.get(name) == before[name].get("bytes")
    ]
    written = sorted(wanted.keys() - set(unchanged))
    removed = sorted(
        name
        for name, document in before.items()
        if prune_missing and name not in wanted and document["file"] not in inputs
    )
    # Listed before they exist, so that a run that is killed here recognizes them as its own.
    now = before | {name: {"file": wanted[name]["file"]} for name in written}
    if written:
        _save(output_folder, now)
    for name in written:
        size = _concatenate(own, parts[wanted[name]["file"]], storage.join(output_folder, name))
        now[name] = wanted[name] | {"bytes": size}
    for name in removed:
        storage.delete_files(output_folder, [name])
        del now[name]
    if now != before:
        _save(output_folder, now)
    storage.delete_unfinished(output_folder)
    return {"written": written, "unchanged": sorted(unchanged), "removed": removed}


def _concatenate(own: str, parts: Sequence[Part], target: str) -> int:
    """Write the parts one after the other, decompressed. Returns the number of bytes."""
    with storage.write_atomically(target) as file:
        for part in parts:
            with storage.open_binary(storage.join(own, part.path)) as stream:
                for chunk in storage.read_chunks(stream, part.path):
                    file.write(chunk)
    return file.num_bytes


def _load(output_folder: str) -> dict[str, Any]:
    """The index of written documents; entries that are not plain file names are ignored."""
    documents = storage.read_json(storage.join(own_folder(output_folder), DOCUMENTS)) or {}
    return {
        name: document
        for name, document in documents.items()
        if re.fullmatch(r"[^/]+\.jsonl", name) and isinstance(document, dict) and isinstance(document.get("file"), str)
    }


def _save(output_folder: str, documents: Mapping[str, Any]) -> None:
    own = own_folder(output_folder)
    with storage.write_atomically(storage.join(own, DOCUMENTS)) as file:
        file.write(json.dumps(documents, indent=1, sort_keys=True).encode("ascii") + b"\n")
