"""The configuration: every setting once, with its meaning, unit and default; checked before anything starts.

What depends on the encoder (which layers there are, how many positions) is checked in `config.layers`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from layerbeam.pipeline.config.rules import check_encoding, input_contradictions
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.transforms.layout import REJECTS

RESERVED_VIEW_NAMES = (REJECTS,)
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


# A path on this machine may begin with ~.
_Path = Annotated[str, AfterValidator(os.path.expanduser)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _setting(default: Any, meaning: str, **limits: Any) -> Any:
    return Field(default, description=meaning, **limits)


class InputConfig(_Section):
    """What is read."""

    files: list[_Path] = Field(
        description="globs, on any Beam file system (local, gs://, s3://, hdfs://); .gz, .bz2 and .zst are read",
        min_length=1,
    )
    format: Literal["text", "jsonl", "parquet"] = _setting("text", "what the files hold")
    record: Literal["line", "paragraph", "file"] = _setting(
        "line", "text: what one record is; a worker holds all that comes of a record at once, also of a file"
    )
    unit: Literal["record", "sentence"] = _setting("record", "what is embedded as one text")
    encoding: Annotated[str, AfterValidator(check_encoding)] = _setting(
        "utf-8", "of text and jsonl: or a single-byte one (latin-1, cp1252, ...); a UTF-8 byte order mark is dropped"
    )
    invalid_bytes: Literal["reject", "replace"] = _setting("reject", "what happens to a record that is not valid text")
    text_field: str = _setting("text", "jsonl, parquet: the field with the text")
    pair_field: str | None = _setting(None, "jsonl, parquet: the field with the second text of a pair")
    pair_separator: str | None = _setting(None, 'text: " ||| " reads pairs as extract_features.py does')
    id_field: str | None = _setting(None, "jsonl, parquet: goes through as column `id`")
    keep_fields: dict[str, Literal["string", "int64", "float64", "bool"]] = _setting(
        {}, "jsonl, parquet: more fields that go through, with their types"
    )
    blank: Literal["skip", "keep"] = _setting("skip", "what happens to a record of nothing but white space")
    max_rejected: float = _setting(
        1.0, "share of the records; with more rejected the run ends with status 3 and no _SUCCESS", ge=0, le=1
    )
    slice_bytes: int = _setting(
        1 << 20, "the most bytes of a file in a block, and in what a worker is handed at once", ge=1, le=1 << 30
    )


class EncoderConfig(_Section):
    """What turns tokens into vectors."""

    handle: str = _setting(
        "minilm",
        "minilm, hf://org/name, an https:// address of TF Hub, or a folder or archive on any file system",
        min_length=1,
    )
    max_seq_length: int = _setting(128, "tokens of one text that are encoded, [CLS] and [SEP] included", ge=3)
    long_text: Literal["truncate", "window", "reject"] = _setting("truncate", "what happens to a longer text")
    window_overlap: int = _setting(64, "tokens that two neighbouring windows share", ge=0)
    do_lower_case: bool | None = _setting(None, "null: as the encoder's own files say")
    compute_dtype: Literal["float32", "bfloat16"] = _setting("float32", "number type of the matrix products")
    engine: Literal["auto", "native", "savedmodel"] = _setting(
        "auto", "who runs the forward pass: native for plain BERT, savedmodel calls a SavedModel as it is"
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = _setting(
        "auto", "all but auto fail where TensorFlow does not see it"
    )
    batch_tokens: int = _setting(
        1024,
        "tokens in one batch, padding included (a GPU wants 16,384 to 65,536); changes no value beyond rounding",
        ge=1,
    )
    length_buckets: list[int] | None = _setting(
        None, "pad to these lengths only, so that shapes are few (GPU, TPU, XLA)"
    )
    xla: bool = _setting(False, "compile the forward pass with XLA")
    resource_hints: dict[str, str] = _setting(
        {}, "Beam's resource hints for the machines that encode, by Beam's names, such as accelerator and min_ram"
    )


def _check_layers(layers: Any) -> Any:
    """One plain sentence instead of one from each branch of the union."""
    if layers == "all" or layers is None:
        return layers
    items = layers if isinstance(layers, list) else []
    for item in items:
        if not (type(item) is int or (isinstance(item, str) and _RANGE.fullmatch(item))):
            raise ValueError(f"{item!r} is neither a layer's number nor a range such as 0..12")
    if not items:
        raise ValueError("should be all or a list of layers, for example [-1], [-4..-1] or [0..12]")
    return layers


class ViewConfig(_Section):
    """One thing to keep of the forward pass: a dataset of its own."""

    level: Literal["token", "word", "text", "record", "word_type"] = Field(description="what one row is")
    layers: Annotated[list[int | str] | Literal["all"] | None, BeforeValidator(_check_layers)] = _setting(
        None,
        "integers and ranges such as 0..12, or all; 0 is the embedding layer's output, -1 the encoder's last block",
    )
    numbering: Literal["hidden_states", "extract_features"] = _setting(
        "hidden_states",
        "what `layers` that are not negative count from: 0 is the embedding layer's output, or, as in "
        "extract_features.py, the first block's",
    )
    combine: Literal["separate", "sum", "mean", "concat"] = _setting("separate", "how several layers become columns")
    words: Literal["basic", "whitespace"] = _setting("basic", "word, word_type: what a word is")
    pooling: Literal["first", "last", "mean", "sum", "max", "cls", "pooler", "mean_max"] = _setting(
        "mean", "word: first, last, mean, sum, max; text: cls, pooler, mean, max, mean_max"
    )
    keep_words: list[str] | str | None = _setting(None, "list or file: only these forms get rows")
    match_case: bool = _setting(False, "whether keep_words regards case")
    include_text: bool = _setting(False, "token, word: the text beside each row")
    special_tokens: bool = _setting(True, "token: keep rows of [CLS] and [SEP]; text: count them in pooling")
    by: list[str] = _setting([], "word_type: one row per form and these kept fields")
    min_count: int = _setting(1, "word_type: rarer forms get no row", ge=1)
    dims: int | None = _setting(None, "keep the first n dimensions of the result", ge=1)
    normalize: bool = _setting(False, "to unit length, last")
    dtype: Literal["float32", "float16"] = _setting("float32", "number type of the vectors in the file")
    format: Literal["parquet", "tfrecord", "jsonl"] = _setting("parquet", "file format")
    compress: bool = _setting(True, "tfrecord, jsonl: gzip; Parquet is always zstd")


class OutputConfig(_Section):
    """Where the files go."""

    path: _Path = Field(description="the folder, local or on any Beam file system", min_length=1)
    part_bytes: int = _setting(
        134_217_728, "vectors of the largest part of a block before compression, estimated from the bytes of text", ge=1
    )
    byte_stream_split: bool = _setting(
        False, "float32 Parquet: some 8 % smaller, for readers that know it (Spark only since 2026)"
    )


class Config(_Section):
    """A whole run."""

    input: InputConfig
    encoder: EncoderConfig = EncoderConfig()
    views: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")], ViewConfig] = Field(
        description="at least one view, by name", min_length=1
    )
    output: OutputConfig
    beam: dict[str, Any] = _setting({}, "Beam's own options by their own names; the command line wins")


# Settings that only some levels know; a view of another level that names one is mistaken.
LEVELS = {
    "words": ("word", "word_type"),
    "keep_words": ("token", "word", "word_type"),
    "match_case": ("token", "word", "word_type"),
    "pooling": ("word", "text"),
    "include_text": ("token", "word"),
    "special_tokens": ("token", "text"),
    "by": ("word_type",),
    "min_count": ("word_type",),
}
POOLINGS = {"word": ("first", "last", "mean", "sum", "max"), "text": ("cls", "pooler", "mean", "max", "mean_max")}


class RepeatedKeyError(yaml.YAMLError):
    """A key that comes twice in one mapping: YAML forbids it, and PyYAML takes the last without a word."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in first:
                raise RepeatedKeyError(f"`{name}` comes twice, in lines {first[name]} and {line}; take one away")
            first[name] = line
        return node


def parse_yaml(text: str | bytes) -> Any:
    """The value in a YAML text. yaml.YAMLError or ValueError for what is none, RepeatedKeyError among them."""
    return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader


def load(path: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration in a YAML file, with `overrides` ({"encoder.max_seq_length": 64}) put over it.

    UsageError, with every mistake found, where it does not hold.
    """
    try:
        settings = parse_yaml(_read(path))
    except OSError as error:
        hint = "; `layerbeam init` writes one to begin with" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{path}: {error.strerror or error}{hint}") from error
    except RepeatedKeyError as error:
        raise UsageError(f"{path}: {error}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise UsageError(
            f"{path}: a configuration has sections (input, encoder, views, output); this is {settings!r:.60}"
        )
    for key, value in (overrides or {}).items():
        _put(settings, key, value)
    return check(settings, source=path)


def _read(path: str) -> bytes:
    if "://" not in path:  # Beam takes 0.9 s to be imported
        with open(path, "rb") as file:
            return file.read()
    from layerbeam.transforms import storage

    return storage.read_bytes(path)


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for depth, section in enumerate(sections):
        inner = settings.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {key}: {'.'.join(sections[: depth + 1])} is no section but {inner!r}")
        settings = inner
    settings[last] = value


def check(settings: Mapping[str, Any], *, source: str) -> Config:
    """The configuration of plain values; `source` is named in errors."""
    try:
        config = Config.model_validate(settings)
    except pydantic.ValidationError as error:
        raise UsageError("\n".join(_explain(source, mistake) for mistake in error.errors())) from None
    mistakes = list(_contradictions(config))
    if mistakes:
        raise UsageError("\n".join(f"{source}: {mistake}" for mistake in mistakes))
    return config


def restore(settings: Mapping[str, Any], *, source: str) -> Config:
    """The configuration that a manifest holds, with every default in it: it was checked before its run began."""
    try:
        return Config.model_validate(settings)
    except pydantic.ValidationError as error:
        raise UsageError(
            f"{source}: its settings are of another version of layerbeam: {_explain(source, error.errors()[0])}"
        ) from None


def _explain(source: str, mistake: Any) -> str:
    """One line for one of pydantic's errors."""
    place = [str(part) for part in mistake["loc"] if part != "[key]"]
    name = ".".join(place)
    if mistake["type"] == "extra_forbidden":
        known = _known_keys(place[:-1])
        hint = did_you_mean(place[-1], known) or f"; known here: {', '.join(known)}"
        return f"{source}: {name}: unknown setting{hint}"
    if mistake["type"] == "missing":
        return f"{source}: {name}: is missing"
    if name.startswith("views.") and mistake["type"] == "string_pattern_mismatch":
        return (
            f"{source}: {name}: a view's name is a folder's: letters, digits, `_` and `-`, no `_` or `-` at its start"
        )
    if mistake["type"] == "string_too_short":
        return f"{source}: {name}: is empty"
    if mistake["type"] == "too_short":
        return f"{source}: {name}: is empty; at least one is needed"
    message = mistake["msg"].removeprefix("Value error, ").replace("Input should", "should")
    return f"{source}: {name}: {message}; given: {mistake['input']!r:.80}"


def _known_keys(place: list[str]) -> list[str]:
    model: Any = Config
    for part in place:
        if model is not Config and not hasattr(model, "model_fields"):
            return []
        if part in model.model_fields:
            annotation = model.model_fields[part].annotation
            model = ViewConfig if part == "views" else annotation
        # The name of a view is no field: the model stays ViewConfig.
    return list(model.model_fields)


def _contradictions(config: Config) -> Iterator[str]:
    yield from input_contradictions(config)
    names: dict[str, str] = {}
    for name, view in config.views.items():
        where = f"views.{name}"
        given = view.model_fields_set
        other = names.setdefault(name.lower(), name)
        if other != name:
            yield f"{where}: differs from views.{other} in case only, and both are one folder on macOS; rename one"
        if name.lower() in RESERVED_VIEW_NAMES:
            yield f"{where}: the name {name} is taken; call the view something else"
        for key, levels in LEVELS.items():
            if key in given and view.level not in levels:
                yield f"{where}.{key}: level {view.level} has no such setting (it belongs to {' and '.join(levels)})"
        allowed = POOLINGS.get(view.level, ())
        if "pooling" in given and allowed and view.pooling not in allowed:
            yield f"{where}.pooling: is {view.pooling}; level {view.level} allows {', '.join(allowed)}"
        pooler = view.level == "text" and view.pooling == "pooler"
        if pooler and view.layers is not None:
            yield f"{where}.layers: pooling pooler reads the last layer; take `layers` away"
        if pooler and "combine" in given:
            yield f"{where}.combine: pooling pooler gives one vector; take `combine` away"
        if view.match_case and view.keep_words is None:
            yield f"{where}.match_case: is about keep_words, which is not set"
        if view.level == "word_type" and view.normalize:
            yield f"{where}.normalize: level word_type gives means beside their standard deviations; take it away"
        if view.level == "word_type" and view.format == "tfrecord":
            yield f"{where}.format: tfrecord holds texts, and level word_type has none; take parquet or jsonl"
        for field in view.by:
            if field not in config.input.keep_fields:
                known = ", ".join(config.input.keep_fields) or "none"
                yield f"{where}.by: {field} is not in input.keep_fields (there: {known})"
        lines = view.format == "jsonl" and view.level == "token" and view.combine == "separate"
        if lines and view.include_text:
            yield f"{where}.include_text: extract_features.py's lines have no text; take another format or combine"
        if view.format == "tfrecord" and view.dtype == "float16":
            yield f"{where}.dtype: is float16; a tf.train.Example holds float32 only: take float32, or format parquet"
        if view.format == "parquet" and not view.compress:
            yield f"{where}.compress: is false; Parquet is always compressed (zstd): take `compress` away"
        if not pooler and view.layers is None:
            yield f"{where}.layers: is missing; for example [-1], [-4..-1] or all"
    if config.encoder.long_text == "window" and config.encoder.window_overlap >= config.encoder.max_seq_length - 2:
        yield (
            f"encoder.window_overlap: is {config.encoder.window_overlap}; it must be below max_seq_length - 2 = "
            f"{config.encoder.max_seq_length - 2}, or a window makes no progress"
        )
    buckets, longest = config.encoder.length_buckets, config.encoder.max_seq_length
    if buckets is not None and (not buckets or buckets[0] < 1 or sorted(set(buckets)) != buckets):
        yield f"encoder.length_buckets: is {buckets}; give lengths that ascend, such as [32, 64, {longest}]"
    elif buckets is not None and buckets[-1] < longest:
        yield (
            f"encoder.length_buckets: ends with {buckets[-1]}, and max_seq_length is {longest}: longer texts would "
            f"have no bucket; add {longest}"
        )
    if config.encoder.xla and buckets is None:
        yield (
            "encoder.xla: compiles for each shape of batch, so it needs few; give encoder.length_buckets, such as "
            f"[32, 64, {longest}]"
        )
