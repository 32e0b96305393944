"""A configuration from YAML, checked before anything starts. Each mistake is one line that says how to fix it.

Checks that need the encoder (which layers there are, how many positions) are in `config.job`.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import pydantic
import yaml

from layerbeam.pipeline.config.rules import find_contradictions
from layerbeam.pipeline.config.schema import SECTIONS, Config, EmbedConfig, default_of, fields_of
from layerbeam.pipeline.errors import UsageError, did_you_mean
from layerbeam.transforms.settings import Settings, adapter

# What is said for pydantic's errors of these types.
_MESSAGES = {
    "missing": "is missing",
    "string_too_short": "is empty",
    "too_short": "is empty; at least one is needed",
    "string_pattern_mismatch": "a view's name is also a folder's: letters, digits, `_` and `-`, without `_` or `-` at "
    "its start",
}
_SYNTAX_HINTS = {
    r"'\\t'|<block end>|entries are not": "; check the indentation (spaces, no tabs)",
    "start any token|alphabetic|mapping values": "; a value with such a character, `*` or `: ` needs quotes",
}
# Aliases of aliases make billions of values in a few lines, which a message or Beam's options would write out.
_MAX_VALUES = 1_000_000
_Sections = TypeVar("_Sections", bound=EmbedConfig)


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice in one mapping: YAML forbids it, and PyYAML silently takes the last."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        is_alias = self.check_event(yaml.AliasEvent)
        node: Any = super().compose_node(parent, index)
        if not is_alias:
            inner = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
            node.size = 1 if isinstance(node.value, str) else 1 + sum(value.size for value in inner)
        if getattr(node, "size", sys.maxsize) > _MAX_VALUES:  # a value within itself has no size yet
            raise yaml.YAMLError(f"its aliases (*) make more than {_MAX_VALUES:,} values")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in first:
                problem = f"`{name}` occurs twice, in lines {first[name]} and {line}; remove one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            first[name] = line
        return node


def parse_yaml(text: str | bytes, source: str = "YAML") -> Any:
    """The value of a YAML text. UsageError, whose message begins with `source`, if it is none."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{source}: {_explain_syntax(error, text)}") from error


def _explain_syntax(error: Any, text: str | bytes) -> str:
    """What is not YAML; below it the line, and a mark under the place."""
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    if isinstance(error, yaml.reader.ReaderError):
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        mark = yaml.Mark("", 0, shown.count("\n", 0, error.position), 0, shown, error.position)
    if mark is None:
        return f"is not YAML: {error}"
    # Of a bracket or quote that is not closed its own line says more than the one where the parser gives up.
    if context is not None and context.line < mark.line and "block" not in error.context:
        mark = context
    problem = getattr(error, "problem", None) or error.reason
    hint = next((hint for part, hint in _SYNTAX_HINTS.items() if re.search(part, problem)), "")
    return f"line {mark.line + 1} is not YAML: {problem}{hint}\n{mark.get_snippet(indent=2)}".replace("\t", " ")


def load(
    path: str, overrides: Mapping[str, Any] | None = None, *, shortcuts: Mapping[str, Any] | None = None
) -> Config:
    """The configuration in a YAML file, changed by `overrides` ({"encoder.max_seq_length": 64}), given by --set.

    `shortcuts`: further changes, given by the options for one setting. Raises UsageError with every mistake found.
    """
    try:
        settings = parse_yaml(_read(path), path)
    except OSError as error:
        if isinstance(error, IsADirectoryError):
            raise UsageError(f"{path}: is a folder; give a configuration, a YAML file") from error
        hint = "; `layerbeam init` writes one to begin with" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{path}: {error.strerror or error}{hint}") from error
    if not isinstance(settings, dict):
        raise UsageError(
            f"{path}: a configuration has sections (input, encoder, views, output); this is {settings!r:.60}"
        )
    overrides, shortcuts = overrides or {}, shortcuts or {}
    for key, value in {**overrides, **shortcuts}.items():
        _put(settings, key, value)
    return check_sections(Config, settings, source=path, overridden=overrides.keys() - shortcuts.keys())


def _read(path: str) -> bytes:
    if "://" not in path:
        with open(path, "rb") as file:
            return file.read()
    from layerbeam.transforms import storage  # importing it takes too long for `--help`

    return storage.read_bytes(path)


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for depth, section in enumerate(sections):
        inner = settings.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--set {key}: {'.'.join(sections[: depth + 1])} is not a section but {inner!r}")
        settings = inner
    settings[last] = value


def check(settings: Mapping[str, Any], *, source: str) -> Config:
    """The configuration made of plain values. Raises UsageError; `source` is the name in its messages."""
    return check_sections(Config, settings, source=source)


def check_sections(
    sections: type[_Sections], settings: Mapping[str, Any], *, source: str, overridden: Collection[str] = ()
) -> _Sections:
    """As `check`, also for `EmbedConfig`. `overridden`: the settings that --set gave; messages name it for these."""
    try:
        config: _Sections = adapter(sections).validate_python(settings)
    except pydantic.ValidationError as error:
        mistakes = [_explain(mistake) for mistake in error.errors()]
    else:
        mistakes = list(find_contradictions(config, settings))
        if not mistakes:
            return config
    raise UsageError("\n".join(_name_source(mistake, source, overridden) for mistake in mistakes))


def _name_source(mistake: str, source: str, overridden: Collection[str]) -> str:
    name = mistake.partition(": ")[0]
    is_overridden = any(name == key or name.startswith(f"{key}.") for key in overridden)
    return f"--set {mistake}" if is_overridden else f"{source}: {mistake}"


def check_embedding(encoder: str | Mapping[str, Any], views: Mapping[str, Any], *, source: str) -> EmbedConfig:
    """Encoder and views for texts that come from no file. `encoder`: a handle or a section; UsageError as `check`."""
    settings = {"encoder": {"handle": encoder} if isinstance(encoder, str) else encoder, "views": views}
    config = check_sections(EmbedConfig, settings, source=source)
    for name, view in config.views.items():
        if view.aggregates or view.level == "record":
            raise UsageError(f"{source}: views.{name}.level: {view.level} is for runs over files only")
    return config


def restore(settings: Mapping[str, Any], *, source: str) -> Config:
    """The configuration in a manifest, which has every default in it and was checked before its run began."""
    try:
        config: Config = adapter(Config).validate_python(settings)
    except pydantic.ValidationError as error:
        raise UsageError(
            f"{source}: its settings are of another version of layerbeam: {_explain(error.errors()[0])}"
        ) from None
    return config


def _explain(mistake: Any) -> str:
    """One line for one of pydantic's errors."""
    place = [str(part) for part in mistake["loc"] if part != "[key]"]
    name, kind = ".".join(place), mistake["type"]
    if kind == "unexpected_keyword_argument":
        known = [field.name for field in fields_of(_section_at(place[:-1]))]
        hint = did_you_mean(place[-1], known) or _elsewhere(place[-1]) or f"; known here: {', '.join(known)}"
        return f"{name}: unknown setting{hint}"
    if kind in _MESSAGES:
        what = _MESSAGES[kind]
    else:
        message = mistake["msg"].removeprefix("Value error, ").replace("Input should", "should")
        if kind == "dataclass_type":
            message = "should be a mapping of settings"
        what = f"{message}; given: {mistake['input']!r:.80}"
        if isinstance(mistake["input"], bool) and kind in ("string_type", "literal_error"):
            words, word = ("`on` and `yes`", "on") if mistake["input"] else ("`off` and `no`", "no")
            what += f"; YAML reads {words} so: quote the word, as in {place[-1]}: '{word}'"
        if place[-1] == "language":
            what += "; sentencex reads any other language by the rules of English: set language: en for that"
        if place[-1] == "level" and mistake["input"] == "sentence":
            what += "; for one row per sentence, level: text with input.unit: sentence"
    return f"{name}: {what}"


def _section_at(place: Sequence[str]) -> type[Settings]:
    """The settings at this place, such as `input.chunk` or `views.NAME`."""
    section = SECTIONS[place[0]] if place else Config
    for name in place[1:]:
        inner = next((default_of(field) for field in fields_of(section) if field.name == name), None)
        section = type(inner) if isinstance(inner, Settings) else section
    return section


def _elsewhere(name: str) -> str:
    """`; did you mean ...?` if other sections have a setting of this name, else an empty string."""
    owners = [
        section for section, settings in SECTIONS.items() if name in {field.name for field in fields_of(settings)}
    ]
    places = [f"`{'views.NAME' if section == 'views' else section}.{name}`" for section in owners]
    return f"; did you mean {' or '.join(places)}?" if places else ""
