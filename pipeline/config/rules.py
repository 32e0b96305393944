"""Rules between settings: what pydantic cannot check one setting at a time. A rule yields one line for each mistake."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from layerbeam.pipeline.config.schema import Config, EmbedConfig, EncoderConfig, InputConfig, default_of, fields_of
from layerbeam.transforms.flow import layout
from layerbeam.transforms.settings import element_of, find_secret
from layerbeam.transforms.views.view import COLUMNS, ViewSettings

# Columns that no kept field may be called like, at any level and in any file format.
COLUMN_NAMES = {column.name for column in COLUMNS} | {"id", "embedding", "pooled_output"}
_LAYER_COLUMN = re.compile(r"(layer_\d+|embedding|pooled_output)(_std)?(_scale)?")


def find_contradictions(config: EmbedConfig, settings: Mapping[str, Any]) -> Iterator[str]:
    """What breaks a rule in a configuration. `settings`: the plain values, which tell what was set explicitly."""
    known: Collection[str] = ()
    yield from _secrets(config)
    if isinstance(config, Config):
        known = config.input.keep_fields
        yield from (f"input.{mistake}" for mistake in find_in_input(config.input, config.encoder))
    names: dict[str, str] = {}
    for name in config.views:
        other = names.setdefault(name.lower(), name)
        if other != name:
            yield f"views.{name}: differs from views.{other} in case only, and both are one folder on macOS; rename one"
        if name.lower() == layout.REJECTS:
            yield f"views.{name}: the name {name} is reserved; rename the view"
    for name, view in config.views.items():
        yield from (f"views.{name}.{mistake}" for mistake in _in_view(view, settings["views"][name], known))
    yield from (f"encoder.{mistake}" for mistake in find_in_encoder(config.encoder))
    if config.encoder.context != "text":
        unit = config.input.unit if isinstance(config, Config) else "record"
        yield from _in_context(config, settings, unit)


def _secrets(config: EmbedConfig) -> Iterator[str]:
    """Addresses with a secret, without it."""
    given = {"encoder.handle": [config.encoder.handle], "encoder.adapter": [config.encoder.adapter or ""]}
    if isinstance(config, Config):
        given |= {"input.files": config.input.files, "output.path": [config.output.path]}
    for setting, addresses in given.items():
        yield from (f"{setting}: {mistake}" for mistake in map(find_secret, addresses) if mistake)


def _misplaced(section: InputConfig | ViewSettings, by: str, given: Collection[str]) -> Iterator[str]:
    """Settings that only other levels or formats have, and values that only other levels allow."""
    chosen = getattr(section, by)
    for field in dataclasses.fields(section):
        only, value = field.metadata.get("only", (chosen,)), getattr(section, field.name)
        if field.name in given and chosen not in only and chosen != "auto":
            owners = " and ".join(", ".join(only).rsplit(", ", 1))
            yield f"{field.name}: {by} {chosen} has no such setting (it belongs to {owners})"
        elif isinstance(only, Mapping) and chosen in only and value is not None and value not in only[chosen]:
            yield f"{field.name}: is {value}; {by} {chosen} allows {', '.join(only[chosen])}"


def find_in_input(given: InputConfig, encoder: EncoderConfig) -> Iterator[str]:
    """What breaks a rule in the section `input`."""
    changed = [field.name for field in fields_of(InputConfig) if getattr(given, field.name) != default_of(field)]
    yield from _misplaced(given, "format", changed)
    yield from _in_unit(given, changed)
    yield from _in_pairs(given, encoder)
    yield from _in_words(given)
    yield from _in_quotes(given)
    yield from _in_path_fields(given.path_fields)
    yield from _in_kept_fields(given)


def _in_pairs(given: InputConfig, encoder: EncoderConfig) -> Iterator[str]:
    """What breaks a rule of pairs."""
    pair = "pair_field" if given.pair_field is not None else "pair_separator"
    if getattr(given, pair) is not None and given.unit != "record":
        yield f"{pair}: a pair is one text; remove it, or set unit: record"
    if getattr(given, pair) is not None and encoder.long_text == "window":
        yield f"{pair}: windows are for single texts; remove it, or set encoder.long_text: truncate"
    if given.pair_separator == "":
        yield "pair_separator: is empty; give the characters between the two texts, or null"
    if given.pair_field in given.text_fields:
        yield f"pair_field: {given.pair_field} is already input.text_field"


def _in_words(given: InputConfig) -> Iterator[str]:
    """What breaks a rule of words that the input gives."""
    lists = [name for name, type_ in given.keep_fields.items() if isinstance(type_, str) and type_ != element_of(type_)]
    if given.words != "given":
        hint = "set words: given; of conllu and conll give the type of one value, such as string"
        yield from (f"keep_fields.{name}: a list has a value for each word; {hint}" for name in lists)
    if not given.has_words:
        return
    if given.unit == "sentence":
        yield "unit: a sentence splitter knows nothing of the words that are given; leave records whole, or set chunk"
    if given.pair_field is not None:
        yield "pair_field: a text whose words are given has no second text; remove it"
    if len(given.text_fields) > 1:
        yield "text_field: several fields are joined as texts, not as words; name one"
    if given.format == "conll" and given.word_columns.count("word") != 1:
        yield f"column_names: is {given.column_names}; give one of them the name word"


def _in_quotes(given: InputConfig) -> Iterator[str]:
    """What breaks a rule of the characters in CSV and TSV."""
    if given.is_delimited and given.quote_mark == given.separator:
        yield f"quote: {given.quote_mark} is already input.delimiter"
    if given.is_delimited and given.escape in (given.quote_mark, given.separator) and given.escape is not None:
        yield f"escape: {given.escape} is already input.quote or input.delimiter; two quotes for one need no escape"


def _in_kept_fields(given: InputConfig) -> Iterator[str]:
    """What breaks a rule of names in `keep_fields`."""
    seen: dict[str, str] = {}
    if not given.has_fields and given.format != "auto":
        plain = [name for name in given.keep_fields if name not in given.path_fields]
        yield from (f"keep_fields.{name}: format {given.format} has no fields, only {{path: ...}}" for name in plain)
    for name in given.keep_fields:
        # Ignoring case, as many readers of Parquet do.
        column = name.lower()
        if column in COLUMN_NAMES or _LAYER_COLUMN.fullmatch(column):
            yield f"keep_fields.{name}: the output has a column of this name; rename the field"
        elif not name or name.startswith("_"):
            yield f"keep_fields.{name}: a column's name is not empty and has no `_` at its start"
        elif seen.setdefault(column, name) != name:
            yield f"keep_fields.{name}: differs from {seen[column]} in case only"


def _in_path_fields(path_fields: Mapping[str, str]) -> Iterator[str]:
    """Expressions that RE2 cannot read, such as a look-ahead, which Python knows."""
    for name, expression in path_fields.items():
        from layerbeam.transforms.input.path_fields import value_of_path  # it imports Arrow

        try:
            value_of_path(expression, "")
        except ValueError as error:
            yield f"keep_fields.{name}: path is no regular expression of RE2: {error}"


def _in_unit(given: InputConfig, changed: Collection[str]) -> Iterator[str]:
    """What breaks a rule of sentences and chunks."""
    chunk = given.chunk
    if given.unit != "chunk" and "chunk" in changed:
        yield "chunk: is for unit: chunk; set that, or remove it"
    if given.unit == "chunk" and chunk.overlap > chunk.tokens // 2:
        yield f"chunk.overlap: is {chunk.overlap}; at most half of chunk.tokens = {chunk.tokens}"
    if given.splitter is None:
        ignored = [name for name in ("sentences", "language") if name in changed]
        yield from (f"{name}: is for sentences and chunks that end at them; set unit, or remove it" for name in ignored)
    elif "language" in changed and given.sentences != "sentencex":
        yield f"language: is for sentencex only, and input.sentences is {given.sentences}; remove it"


def _in_context(config: EmbedConfig, settings: Mapping[str, Any], unit: str) -> Iterator[str]:
    """What breaks a rule of `encoder.context`, if that is not text."""
    context = config.encoder.context
    if unit == "record":
        yield "encoder.context: each record is one text; remove it, or set input.unit: sentence or chunk"
    elif unit == "chunk" and context != "record":
        yield f"encoder.context: is {context}, which is for input.unit: sentence; chunks allow text and record"
    if config.encoder.long_text != "window" and "long_text" in settings.get("encoder", {}):
        yield "encoder.long_text: what context puts together is encoded in windows if it is too long; remove long_text"
    for name, view in config.views.items():
        if view.level == "text" and view.pooling in ("cls", "pooler"):
            yield f"views.{name}.pooling: {view.pooling} is one vector of all that encoder.context puts together"


def _in_view(view: ViewSettings, given: Mapping[str, Any], known_fields: Collection[str]) -> Iterator[str]:
    yield from _misplaced(view, "level", given)
    if view.uses_pooler and view.layers is not None:
        yield "layers: pooling pooler reads the last layer; remove `layers`"
    if view.uses_pooler and "combine" in given:
        yield "combine: pooling pooler gives one vector; remove `combine`"
    if not view.uses_pooler and view.layers is None:
        yield "layers: is missing; for example [-1], [-4..-1] or all"
    yield from _in_selection(view)
    if view.aggregates and view.normalize:
        yield f"normalize: level {view.level} writes means and their standard deviations; remove `normalize`"
    for field in view.group_by:
        if field not in known_fields and field != "file":
            known = ", ".join(known_fields) or "none"
            yield f"group_by: {field} is not in input.keep_fields (there: {known}); file is possible, too"
    if view.aggregates and view.format == "tfrecord":
        yield f"format: a tfrecord holds texts, and level {view.level} has none; use parquet or jsonl"
    if view.include_text and view.is_extract_features:
        yield "include_text: the lines of extract_features.py have no text; use another format or `combine`"
    if view.format == "tfrecord" and view.dtype == "float16":
        yield "dtype: is float16, which a tf.train.Example cannot hold: use float32 or int8, or format parquet"


def _in_selection(view: ViewSettings) -> Iterator[str]:
    """What breaks a rule of the tokens or words that a view keeps."""
    if view.match_case and view.keep_words is None:
        yield "match_case: applies to keep_words, which is not set"
    if view.skip_tokens and view.level == "text" and not view.has_vector_lists:
        pooling = view.pooling or "mean"
        yield f"skip_tokens: is for pooling none, and pooling is {pooling}; set pooling: none, or remove it"
    if view.skip_tokens and view.keep_words is not None:
        yield "skip_tokens: keep_words already says which words have rows; remove one of the two"


def find_in_encoder(encoder: EncoderConfig) -> Iterator[str]:
    """What breaks a rule in the section `encoder`; what depends on `max_seq_length` only if that is not null."""
    buckets, longest = encoder.length_buckets, encoder.max_seq_length
    example = [32, 64, longest or 128]
    if encoder.calibration is not None and encoder.compute_dtype != "int8":
        yield f"calibration: applies to compute_dtype int8, which is {encoder.compute_dtype}"
    if encoder.compute_dtype == "int8":
        if encoder.xla:
            yield "compute_dtype: int8 is not for XLA, which has no such products: remove `xla`, or take float32"
        if encoder.device in ("gpu", "tpu"):
            yield f"compute_dtype: int8 is for processors, and device is {encoder.device}: take bfloat16 or float32"
    if buckets is None:
        if encoder.xla:
            yield f"xla: compiles for each shape of a batch; set encoder.length_buckets, such as {example}"
    elif not buckets or buckets[0] < 1 or sorted(set(buckets)) != buckets:
        yield f"length_buckets: is {buckets}; give ascending lengths, such as {example}"
    elif longest is not None and buckets[-1] < longest:
        yield (
            f"length_buckets: ends with {buckets[-1]}, but max_seq_length is {longest}: longer texts would have no "
            f"bucket; add {longest}"
        )
