"""Rules between settings: what pydantic cannot check one setting at a time. A rule yields one line for each mistake."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from layerbeam.pipeline.config.schema import Config, EmbedConfig, InputConfig, default_of, fields_of
from layerbeam.transforms import layout
from layerbeam.transforms.views import COLUMNS, ViewSettings

RESERVED_VIEW_NAMES = (layout.REJECTS,)
# Columns that no kept field may be called like, at any level and in any file format.
COLUMN_NAMES = {column.name for column in COLUMNS} | {"id", "embedding", "pooled_output"}
_LAYER_COLUMN = re.compile(r"layer_\d+(_std)?|(embedding|pooled_output)_std")


def find_contradictions(config: EmbedConfig, settings: Mapping[str, Any]) -> list[str]:
    """What breaks a rule in a configuration. `settings`: the plain values, which tell what was set explicitly."""
    found = [mistake for rule in _INPUT_RULES if isinstance(config, Config) for mistake in rule(config)]
    found += _view_names(config)
    for name, view in config.views.items():
        given = settings["views"][name]
        found += [f"views.{name}.{mistake}" for rule in _VIEW_RULES for mistake in rule(view, given, config)]
    return found + [f"encoder.{mistake}" for rule in _ENCODER_RULES for mistake in rule(config)]


def _misplaced(section: InputConfig | ViewSettings, by: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Settings that only other levels or formats have, and values that only other levels allow."""
    chosen = getattr(section, by)
    for field in dataclasses.fields(section):
        only, value = field.metadata.get("only", (chosen,)), getattr(section, field.name)
        if field.name in given and chosen not in only:
            yield f"{field.name}: {by} {chosen} has no such setting (it belongs to {' and '.join(only)})"
        elif isinstance(only, Mapping) and chosen in only and value not in only[chosen]:
            yield f"{field.name}: is {value}; {by} {chosen} allows {', '.join(only[chosen])}"


def _settings_of_other_formats(config: Config) -> Iterator[str]:
    changed = {f.name: f for f in fields_of(InputConfig) if getattr(config.input, f.name) != default_of(f)}
    yield from (f"input.{mistake}" for mistake in _misplaced(config.input, "format", changed))


def _pairs(config: Config) -> Iterator[str]:
    given = config.input
    pair = "pair_field" if given.pair_field is not None else "pair_separator"
    if getattr(given, pair) is not None and given.unit == "sentence":
        yield f"input.{pair}: a pair is one text; remove it, or set unit: record"
    if getattr(given, pair) is not None and config.encoder.long_text == "window":
        yield f"input.{pair}: windows are for single texts; remove it, or set encoder.long_text: truncate"
    if given.pair_separator == "":
        yield "input.pair_separator: is empty; give the characters between the two texts, or null"
    if given.pair_field == given.text_field:
        yield f"input.pair_field: {given.pair_field} is already input.text_field"


def _kept_fields(config: Config) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in config.input.keep_fields:
        # Ignoring case, as many readers of Parquet do.
        column = name.lower()
        if column in COLUMN_NAMES or _LAYER_COLUMN.fullmatch(column):
            yield f"input.keep_fields.{name}: the output has a column of this name; rename the field"
        elif not name or name.startswith("_"):
            yield f"input.keep_fields.{name}: a column's name is not empty and has no `_` at its start"
        elif seen.setdefault(column, name) != name:
            yield f"input.keep_fields.{name}: differs from {seen[column]} in case only"


def _view_names(config: EmbedConfig) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in config.views:
        if seen.setdefault(name.lower(), name) != name:
            other = seen[name.lower()]
            yield f"views.{name}: differs from views.{other} in case only, and both are one folder on macOS; rename one"
        if name.lower() in RESERVED_VIEW_NAMES:
            yield f"views.{name}: the name {name} is reserved; rename the view"


def _settings_of_other_levels(view: ViewSettings, given: Mapping[str, Any], config: EmbedConfig) -> Iterator[str]:
    yield from _misplaced(view, "level", given)


def _layers(view: ViewSettings, given: Mapping[str, Any], config: EmbedConfig) -> Iterator[str]:
    if view.uses_pooler and view.layers is not None:
        yield "layers: pooling pooler reads the last layer; remove `layers`"
    if view.uses_pooler and "combine" in given:
        yield "combine: pooling pooler gives one vector; remove `combine`"
    if not view.uses_pooler and view.layers is None:
        yield "layers: is missing; for example [-1], [-4..-1] or all"


def _rows(view: ViewSettings, given: Mapping[str, Any], config: EmbedConfig) -> Iterator[str]:
    if view.match_case and view.keep_words is None:
        yield "match_case: applies to keep_words, which is not set"
    if view.aggregates and view.normalize:
        yield f"normalize: level {view.level} writes means and their standard deviations; remove `normalize`"
    known = config.input.keep_fields if isinstance(config, Config) else {}
    for field in view.group_by:
        if field not in known:
            yield f"group_by: {field} is not in input.keep_fields (there: {', '.join(known) or 'none'})"


def _file_format(view: ViewSettings, given: Mapping[str, Any], config: EmbedConfig) -> Iterator[str]:
    if view.aggregates and view.format == "tfrecord":
        yield f"format: a tfrecord holds texts, and level {view.level} has none; use parquet or jsonl"
    if view.include_text and (view.format, view.level, view.combine) == ("jsonl", "token", "separate"):
        yield "include_text: the lines of extract_features.py have no text; use another format or `combine`"
    if view.format == "tfrecord" and view.dtype == "float16":
        yield "dtype: is float16; a tf.train.Example holds float32 only: use float32, or format parquet"
    if view.format == "parquet" and not view.compress:
        yield "compress: is false; Parquet is always compressed (zstd): remove `compress`"


def _window(config: EmbedConfig) -> Iterator[str]:
    encoder, most = config.encoder, config.encoder.max_seq_length - 2
    if encoder.long_text == "window" and encoder.window_overlap >= most:
        yield (
            f"window_overlap: is {encoder.window_overlap}; it must be below max_seq_length - 2 = {most}, "
            "or a window makes no progress"
        )


def _buckets(config: EmbedConfig) -> Iterator[str]:
    buckets, longest = config.encoder.length_buckets, config.encoder.max_seq_length
    if buckets is None:
        if config.encoder.xla:
            yield f"xla: compiles for each shape of a batch; set encoder.length_buckets, such as [32, 64, {longest}]"
    elif not buckets or buckets[0] < 1 or sorted(set(buckets)) != buckets:
        yield f"length_buckets: is {buckets}; give ascending lengths, such as [32, 64, {longest}]"
    elif buckets[-1] < longest:
        yield (
            f"length_buckets: ends with {buckets[-1]}, but max_seq_length is {longest}: longer texts would have no "
            f"bucket; add {longest}"
        )


_INPUT_RULES: list[Callable[[Config], Iterator[str]]] = [_settings_of_other_formats, _pairs, _kept_fields]
_VIEW_RULES: list[Callable[[ViewSettings, Mapping[str, Any], EmbedConfig], Iterator[str]]] = [
    _settings_of_other_levels,
    _layers,
    _rows,
    _file_format,
]
_ENCODER_RULES: list[Callable[[EmbedConfig], Iterator[str]]] = [_window, _buckets]
