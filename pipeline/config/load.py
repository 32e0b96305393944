"""A configuration from YAML, checked before anything starts. Each mistake is one line that says how to fix it.

Checks that need the encoder (which layers there are, how many positions) are in `config.job`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic
import yaml

from layerbeam.pipeline.config.rules import find_contradictions
from layerbeam.pipeline.config.schema import SECTIONS, Config, EmbedConfig, fields_of
from layerbeam.pipeline.errors import UsageError, did_you_mean

# Former names of settings.
_RENAMED = {
    "by": "group_by",
    "dims": "truncate_dim",
    "max_rejected": "max_reject_rate",
    "numbering": "layer_numbering",
    "part_bytes": "target_part_bytes",
}
# What is said for pydantic's errors of these types.
_MESSAGES = {
    "missing": "is missing",
    "string_too_short": "is empty",
    "too_short": "is empty; at least one is needed",
    "string_pattern_mismatch": "a view's name is also a folder's: letters, digits, `_` and `-`, without `_` or `-` at "
    "its start",
}
_Sections = TypeVar("_Sections", bound=EmbedConfig)


class RepeatedKeyError(yaml.YAMLError):
    """A key that occurs twice in one mapping: YAML forbids it, and PyYAML silently takes the last."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in first:
                raise RepeatedKeyError(f"`{name}` occurs twice, in lines {first[name]} and {line}; remove one")
            first[name] = line
        return node


def parse_yaml(text: str | bytes) -> Any:
    """The value of a YAML text. Raises yaml.YAMLError, RepeatedKeyError among them, or ValueError."""
    return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader


def load(path: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration in a YAML file, changed by `overrides` ({"encoder.max_seq_length": 64}).

    Raises UsageError with every mistake found.
    """
    try:
        settings = parse_yaml(_read(path))
    except OSError as error:
        hint = "; `layerbeam init` writes one to begin with" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{path}: {error.strerror or error}{hint}") from error
    except (yaml.YAMLError, ValueError) as error:
        what = "" if isinstance(error, RepeatedKeyError) else "is not YAML: "
        raise UsageError(f"{path}: {what}{' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise UsageError(
            f"{path}: a configuration has sections (input, encoder, views, output); this is {settings!r:.60}"
        )
    for key, value in (overrides or {}).items():
        _put(settings, key, value)
    return check(settings, source=path)


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


def check_sections(sections: type[_Sections], settings: Mapping[str, Any], *, source: str) -> _Sections:
    """As `check`, also for `EmbedConfig`."""
    try:
        config = pydantic.TypeAdapter(sections).validate_python(settings)
    except pydantic.ValidationError as error:
        raise UsageError("\n".join(_explain(source, mistake) for mistake in error.errors())) from None
    mistakes = [f"{source}: {mistake}" for mistake in find_contradictions(config, settings)]
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return config


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
        return pydantic.TypeAdapter(Config).validate_python(settings)
    except pydantic.ValidationError as error:
        raise UsageError(
            f"{source}: its settings are of another version of layerbeam: {_explain(source, error.errors()[0])}"
        ) from None


def _explain(source: str, mistake: Any) -> str:
    """One line for one of pydantic's errors."""
    place = [str(part) for part in mistake["loc"] if part != "[key]"]
    name, kind = ".".join(place), mistake["type"]
    if kind == "unexpected_keyword_argument":
        known = [field.name for field in fields_of(SECTIONS[place[0]] if len(place) > 1 else Config)]
        if _RENAMED.get(place[-1]) in known:
            return f"{source}: {name}: was renamed to {_RENAMED[place[-1]]}"
        hint = did_you_mean(place[-1], known) or f"; known here: {', '.join(known)}"
        return f"{source}: {name}: unknown setting{hint}"
    if kind in _MESSAGES:
        what = _MESSAGES[kind]
    else:
        message = mistake["msg"].removeprefix("Value error, ").replace("Input should", "should")
        if kind == "dataclass_type":
            message = "should be a mapping of settings"
        what = f"{message}; given: {mistake['input']!r:.80}"
    return f"{source}: {name}: {what}"
