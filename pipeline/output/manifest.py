"""`manifest.json`: what a run was and its result, checked when it is read back; and the fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from layerbeam.transforms import storage
from layerbeam.transforms.columns import schema, vector_type
from layerbeam.transforms.commits import Commit, InputFile, Part, SkippedFile, adapter
from layerbeam.transforms.layout import MANIFEST
from layerbeam.transforms.views import COLUMNS, View

SCHEMA_VERSION = 1

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


class ManifestView(TypedDict):
    """What a manifest says of a view. `path` and `sha256`: of the one file of a `word_type` view."""

    level: str
    columns: dict[str, str]
    vectors: list[str]
    width: int
    dtype: str
    format: NotRequired[str]
    rows: int
    bytes: int
    parts: int
    path: NotRequired[str]
    sha256: NotRequired[str]


class InputEntry(TypedDict):
    """What a manifest says of an input file. `left_out`: why it was skipped, or None; then there may be no size."""

    path: str
    size: NotRequired[int]
    modified: NotRequired[float]
    left_out: str | None
    blocks: int
    records: int


class Manifest(TypedDict):
    """`manifest.json`: the `RunIdentity`, and the result of the run."""

    schema_version: int
    fingerprint: str
    identity: dict[str, Any]
    encoder: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    versions: NotRequired[dict[str, str]]
    complete: bool
    problems: list[str]
    counts: dict[str, int]
    ids_compared_in: NotRequired[str]
    views: dict[str, ManifestView]
    inputs: list[InputEntry]


class ManifestError(ValueError):
    """There is no usable manifest; the message says why."""


class NoManifestError(ManifestError):
    """There is no manifest, or it is not JSON."""


def read_manifest(output_path: str) -> Manifest:
    """The manifest of the last run that ended, from any folder, also an untrusted one. ManifestError if it is unusable.

    Only `_SUCCESS` tells whether a later run has begun since.
    """
    path = storage.join(output_path, MANIFEST)
    manifest: Any = storage.read_json(path)
    if manifest is None:
        why = f"{MANIFEST} cannot be read" if storage.exists(path) else f"no {MANIFEST} in it"
        raise NoManifestError(f"{output_path}: holds no finished run ({why}); run its configuration to the end")
    version = manifest.get("schema_version")
    if version not in (None, SCHEMA_VERSION):
        raise ManifestError(
            f"{output_path}: was written with schema_version {version}, this layerbeam reads {SCHEMA_VERSION}; read it "
            f"with the layerbeam that wrote it: {manifest.get('versions')}"
        )
    invalid = ", ".join(sorted(_invalid_entries(manifest)))
    if invalid:
        raise ManifestError(
            f"{output_path}: {MANIFEST} is not a manifest of layerbeam: it has no {invalid} of the right type"
        )
    for name, view in manifest["views"].items():
        if name in ("", ".", "..") or "/" in name or view.get("path", f"{name}/").rpartition("/")[0] != name:
            raise ManifestError(f"{output_path}: {MANIFEST} names files that do not lie in the folder; do not trust it")
    return manifest  # type: ignore[no-any-return] # validated


def _invalid_entries(manifest: Any) -> set[str]:
    """The entries that are missing or of another type."""
    from pydantic import ValidationError

    try:
        adapter(Manifest).validate_python(manifest, strict=True)
    except ValidationError as error:
        return {".".join(map(str, problem["loc"])) for problem in error.errors()}
    views = manifest["views"].items()
    tables = [(name, view) for name, view in views if view["level"] == "word_type"]
    return {f"views.{name}.{entry}" for name, view in tables for entry in ("path", "sha256") if entry not in view}


def load_manifest(output_path: str) -> Manifest | None:
    """As `read_manifest`, but None if there is no usable manifest: the next run rewrites it."""
    try:
        return read_manifest(output_path)
    except (ManifestError, OSError):
        return None


@dataclasses.dataclass(frozen=True)
class MissingInput:
    """An input file of an earlier run that no glob matches any more; its parts stay until --prune-missing."""

    path: str


# What is known of an input file, or of a block of it.
Report = InputFile | SkippedFile | MissingInput | Commit


def is_up_to_date(file: InputFile, done: Iterable[Commit], entry: InputEntry | None) -> bool:
    """Whether an earlier run read the file to its end, in its present state (size and time), and all its blocks exist.

    `entry`: that of the file in the manifest.
    """
    if entry is None:
        return False
    blocks = sum(commit.block.file == file for commit in done)
    recorded = (entry.get("size"), entry.get("modified"), entry["blocks"], entry["left_out"])
    return recorded == (file.size, file.modified, blocks, None)


@dataclasses.dataclass(frozen=True)
class RunIdentity:
    """What is known of a run before it starts: the part of the manifest that does not depend on data. JSON values."""

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
    """Columns and shapes of each view, as far as they are known before any row."""
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


def table_parts(manifest: Manifest) -> dict[str, Part]:
    """The one table of each `word_type` view; the parts of its blocks are sums."""
    return {
        name: Part(view["path"], view["rows"], view["bytes"], view["sha256"])
        for name, view in manifest["views"].items()
        if view["level"] == "word_type"
    }


def count_rows(parts: Sequence[Part]) -> dict[str, int]:
    """Rows, bytes and number of these parts."""
    return {"rows": sum(part.rows for part in parts), "bytes": sum(part.bytes for part in parts), "parts": len(parts)}
