"""`manifest.json`: what a run was and its result, checked when it is read back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NotRequired

import pyarrow as pa
from pydantic import AfterValidator, Field, ValidationError
from typing_extensions import TypedDict

from layerbeam.pipeline.config.identity import SCHEMA_VERSION, RunIdentity
from layerbeam.pipeline.errors import OutputError
from layerbeam.transforms import storage
from layerbeam.transforms.flow import layout
from layerbeam.transforms.settings import adapter
from layerbeam.transforms.views.columns import schema
from layerbeam.transforms.views.number_types import list_type, scale_of, vector_type
from layerbeam.transforms.views.view import COLUMNS, FileFormat, Level, NumberTypeName, ViewSpec

LIST = "list<"  # the beginning of the Arrow type of a list


class DescribedView(TypedDict):
    """What a record and a manifest say of a view before it has rows."""

    level: Level
    columns: dict[str, str]
    vectors: Annotated[list[str], Field(min_length=1)]
    width: Annotated[int, Field(ge=0, lt=1 << 31)]
    dtype: NumberTypeName
    format: FileFormat


def check_columns(view: Any) -> Any:
    """The view. ValueError if a column is of an unknown type, or that of a vector is missing."""
    names = set[str]()
    with contextlib.suppress(ValueError):  # its message may have a lone surrogate, which pydantic cannot pass on
        names.update(view_schema(view).names)
    if not names.issuperset(view["vectors"]):
        raise ValueError("a column is missing or of an unknown type")
    return view


class ManifestView(DescribedView):
    """What a manifest says of a view."""

    rows: int
    bytes: int
    parts: int


class InputEntry(TypedDict):
    """What is known of an input file. `left_out`: why it was skipped, or None; then there may be no size."""

    path: str
    size: NotRequired[int]
    modified: NotRequired[float]
    version: NotRequired[str]
    left_out: str | None
    blocks: int
    records: int


class Canaries(TypedDict):
    """Canary texts, and by view and column their vectors: base64 of float32 [n, W], the lowest byte first."""

    texts: list[str]
    vectors: dict[str, dict[str, str]]


class Manifest(RunIdentity):
    """`manifest.json`. `left_out`: why rows of some input files may be missing or old, by path.

    `made_with`: texts, by the version of TensorFlow and the processor that encoded them.
    """

    complete: bool
    problems: list[str]
    counts: dict[str, int]
    made_with: dict[str, int]
    ids_compared_in: NotRequired[str]
    canaries: NotRequired[Canaries]
    views: dict[str, Annotated[ManifestView, AfterValidator(check_columns)]]
    left_out: dict[str, str]


def read_manifest(output_path: str) -> Manifest:
    """The manifest of the last run that ended, from any folder, also an untrusted one. OutputError if it is unusable.

    Only `_SUCCESS` tells whether a later run has begun since.
    """
    path = storage.join(output_path, layout.MANIFEST)
    manifest: Any = storage.read_json(path)
    if manifest is None:
        why = f"{layout.MANIFEST} cannot be read" if storage.exists(path) else f"no {layout.MANIFEST} in it"
        raise OutputError(f"{output_path}: holds no finished run ({why}); run its configuration to the end")
    version = manifest.get("schema_version")
    if version not in (None, SCHEMA_VERSION):
        raise OutputError(
            f"{output_path}: was written with schema_version {version}, this layerbeam reads {SCHEMA_VERSION}; read it "
            f"with the layerbeam that wrote it: {manifest.get('versions')}"
        )
    invalid = ", ".join(sorted(invalid_entries(Manifest, manifest)))
    if invalid:
        raise OutputError(
            f"{output_path}: {layout.MANIFEST} is not a manifest of layerbeam: it has no {invalid} of the right type"
        )
    for name in manifest["views"]:
        if name in ("", ".", "..") or "/" in name:
            raise OutputError(
                f"{output_path}: {layout.MANIFEST} names files that do not lie in the folder; do not trust it"
            )
    return manifest  # type: ignore[no-any-return] # validated


def invalid_entries(type_: Any, record: Any) -> set[str]:
    """The entries that are missing or of another type."""
    try:
        adapter(type_).validate_python(record, strict=True)
    except ValidationError as error:
        return {".".join(map(str, problem["loc"])) for problem in error.errors()}
    return set()


def load_manifest(output_path: str) -> Manifest | None:
    """As `read_manifest`, but None if there is no usable manifest: the next run rewrites it."""
    try:
        return read_manifest(output_path)
    except (OutputError, OSError):
        return None


def describe_views(views: Iterable[ViewSpec]) -> dict[str, dict[str, Any]]:
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
    """The columns of a view's files as the manifest describes them; only `id` and kept fields may be null."""
    columns = entry["columns"]
    vectors = {name for name, type_ in columns.items() if "fixed_size_list" in type_}
    own = {*(column.name for column in COLUMNS), *vectors, *map(scale_of, vectors)}

    def type_of(name: str, type_: str) -> pa.DataType:
        is_list = type_.startswith(LIST)
        if name in vectors:
            found: pa.DataType = vector_type(entry["dtype"], entry["width"])
        else:
            found = pa.float32() if is_list else pa.type_for_alias(type_)  # the scales of a list of vectors
        return list_type(found) if is_list else found

    return pa.schema(pa.field(name, type_of(name, type_), nullable=name not in own) for name, type_ in columns.items())
