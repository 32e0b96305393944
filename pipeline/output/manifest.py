"""`manifest.json`: what a run was and what came of it, read back with distrust; and the fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from layerbeam.transforms import storage
from layerbeam.transforms.columns import schema, vector_type
from layerbeam.transforms.commits import Commit, InputFile, Part, SkippedFile
from layerbeam.transforms.views import COLUMNS, View

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"

_NAMED_VECTORS = 4


def fingerprint(identity: Mapping[str, Any]) -> str:
    """16 hex digits for everything that decides rows, columns, values or where blocks are cut."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode("ascii")).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`setting: old value -> new value` for each that differs.

    >>> differences({"encoder": {"max_seq_length": 64}}, {"encoder": {"max_seq_length": 128}})
    ['encoder.max_seq_length: 64 -> 128']
    """
    before, after = dict(_flat(old)), dict(_flat(new))
    names = sorted(before.keys() | after.keys())
    return [
        f"{name}: {before.get(name, 'not set')} -> {after.get(name, 'not set')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# What readers of a manifest rely on: in it, in each of its views, and in a view that is one table.
_ENTRIES = {
    "schema_version": int,
    "fingerprint": str,
    "identity": dict,
    "encoder": dict,
    "settings": dict,
    "complete": bool,
    "problems": list,
    "counts": dict,
    "views": dict,
    "inputs": list,
}
_VIEW_ENTRIES = {
    "level": str,
    "columns": dict,
    "vectors": list,
    "width": int,
    "dtype": str,
    "rows": int,
    "bytes": int,
    "parts": int,
}
_TABLE_ENTRIES = _VIEW_ENTRIES | {"path": str, "sha256": str}


class ManifestError(ValueError):
    """There is no manifest, or none to rely on; the message says why."""


class NoManifestError(ManifestError):
    """There is none, or it is not whole."""


def read_manifest(output_path: str) -> dict[str, Any]:
    """What the last run that ended wrote, of any folder, also a stranger's. ManifestError where it is none to rely on.

    Whether a later run has begun since, only `_SUCCESS` tells.
    """
    path = storage.join(output_path, MANIFEST)
    manifest = storage.read_json(path)
    if manifest is None:
        why = f"{MANIFEST} cannot be read" if storage.exists(path) else f"no {MANIFEST} in it"
        raise NoManifestError(f"{output_path}: holds no finished run ({why}); run its configuration to the end")
    version = manifest.get("schema_version")
    if version not in (None, SCHEMA_VERSION):
        raise ManifestError(
            f"{output_path}: was written with schema_version {version}, this layerbeam reads {SCHEMA_VERSION}; read it "
            f"with the layerbeam that wrote it: {manifest.get('versions')}"
        )
    amiss = ", ".join(sorted(_invalid_entries(manifest)))
    if amiss:
        raise ManifestError(
            f"{output_path}: {MANIFEST} is no manifest of layerbeam: it has no {amiss} of the right type"
        )
    for name, view in manifest["views"].items():
        if name in ("", ".", "..") or "/" in name or str(view.get("path", f"{name}/")).rpartition("/")[0] != name:
            raise ManifestError(f"{output_path}: {MANIFEST} names files that do not lie in the folder; do not trust it")
    return manifest


def _invalid_entries(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The entries that are missing or of another type."""
    yield from _of_other_type(manifest, _ENTRIES)
    views = manifest.get("views")
    for name, view in views.items() if isinstance(views, dict) else ():
        if isinstance(view, dict):
            wanted = _TABLE_ENTRIES if view.get("level") == "word_type" else _VIEW_ENTRIES
            yield from (f"views.{name}.{entry}" for entry in _of_other_type(view, wanted))
        else:
            yield f"views.{name}"


def _of_other_type(entries: Mapping[str, Any], wanted: Mapping[str, type]) -> Iterator[str]:
    return (name for name, type_ in wanted.items() if not isinstance(entries.get(name), type_))


def load_manifest(output_path: str) -> dict[str, Any] | None:
    """As `read_manifest`; None where there is none to rely on: the next run makes it anew."""
    try:
        return read_manifest(output_path)
    except (ManifestError, OSError):
        return None


@dataclasses.dataclass(frozen=True)
class MissingInput:
    """An input file of an earlier run that no glob matches any more; its parts stay until somebody says otherwise."""

    path: str


# What is known of an input file, or of a block of it.
Report = InputFile | SkippedFile | MissingInput | Commit


def recorded_inputs(manifest: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """What a manifest says of each input file, by its path; nothing where it is none, or damaged."""
    entries = (manifest or {"inputs": []})["inputs"]
    return {entry["path"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("path"), str)}


def is_up_to_date(file: InputFile, done: Iterable[Commit], entry: Mapping[str, Any] | None) -> bool:
    """Whether an earlier run read the file to its end, as it is now (size and time), and all its blocks are there.

    `entry`: what the manifest's `inputs` say of the file.
    """
    if entry is None:
        return False
    blocks = sum(commit.block.file == file for commit in done)
    recorded = (entry.get("size"), entry.get("modified"), entry.get("blocks"), entry.get("left_out"))
    return recorded == (file.size, file.modified, blocks, None)


@dataclasses.dataclass(frozen=True)
class RunIdentity:
    """What is known of a run before it starts: the part of the manifest that no data decides. Plain JSON values."""

    fingerprint: str
    identity: Mapping[str, Any]
    encoder: Mapping[str, Any]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}


def shape_text(encoder: Mapping[str, Any]) -> str:
    """`12 layers of 768`."""
    return f"{encoder['num_hidden_layers']} layers of {encoder['hidden_size']}"


def describe_views(views: Iterable[View]) -> dict[str, dict[str, Any]]:
    """Columns and shapes of each view: what is known of it before any row is."""
    return {
        view.name: {
            "level": view.level,
            "columns": {field.name: str(field.type) for field in schema(view)},
            "vectors": list(view.vector_columns),
            "width": view.width,
            "dtype": view.dtype,
            "format": view.format,
        }
        for view in views
    }


def view_schema(entry: Mapping[str, Any]) -> pa.Schema:
    """The columns of a view as the manifest describes them; only `id` and kept fields may be null."""
    vector = pa.field("vector", vector_type(entry["dtype"], entry["width"]), nullable=False)
    own = {column.name for column in COLUMNS}
    return pa.schema(
        vector.with_name(name)
        if type_.startswith("fixed_size_list")
        else pa.field(name, pa.type_for_alias(type_), nullable=name not in own)
        for name, type_ in entry["columns"].items()
    )


def vectors_text(view: Mapping[str, Any]) -> str:
    """`layer_0 ... layer_6, each 384 x float32`."""
    names = view["vectors"]
    shown = ", ".join(names) if len(names) <= _NAMED_VECTORS else f"{names[0]} ... {names[-1]}"
    return f"{shown}{', each' if len(names) > 1 else ':'} {view['width']} x {view['dtype']}"


def table_parts(manifest: Mapping[str, Any]) -> dict[str, Part]:
    """The table of each `word_type` view: it is made of all blocks, whose own parts of the view are sums."""
    return {
        name: Part(view["path"], view["rows"], view["bytes"], view["sha256"])
        for name, view in manifest["views"].items()
        if view["level"] == "word_type"
    }


def count_rows(parts: Sequence[Part]) -> dict[str, int]:
    """Rows, bytes and number of these parts."""
    return {"rows": sum(part.rows for part in parts), "bytes": sum(part.bytes for part in parts), "parts": len(parts)}
