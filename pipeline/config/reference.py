"""All settings of a configuration, read from its dataclasses: for docs/settings.md and `layerbeam init`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union

import yaml

from layerbeam.pipeline.config import schema
from layerbeam.transforms.settings import REQUIRED, Settings
from layerbeam.transforms.views import ViewSettings


@dataclasses.dataclass(frozen=True)
class Setting:
    """`default` and `allowed` as in YAML; `default` is None if the setting is required.

    `choices`: the allowed words, if there are only a few. `only`: the levels or formats that have the setting, with
    the choices that each allows; empty if all have it.
    """

    name: str
    default: str | None
    allowed: str
    choices: tuple[str, ...]
    meaning: str
    only: Mapping[str, tuple[str, ...]]


SECTIONS: dict[str, type[Settings]] = {
    "input": schema.InputConfig,
    "encoder": schema.EncoderConfig,
    "views": ViewSettings,
    "output": schema.OutputConfig,
}
# What the section `beam` is: it has no settings of its own.
BEAM: str = schema.Config.__dataclass_fields__["beam"].metadata["description"]


def settings(section: str) -> Iterator[Setting]:
    """The settings of a section; for `views` those of one view."""
    types_of = typing.get_type_hints(SECTIONS[section], include_extras=True)
    for field in schema.fields_of(SECTIONS[section]):
        default, annotation = schema.default_of(field), types_of[field.name]
        choices = tuple(_kinds(annotation)) if typing.get_origin(annotation) is Literal else ()
        only = field.metadata.get("only", ())
        yield Setting(
            name=field.name,
            default=None if default is REQUIRED else to_yaml(default),
            allowed=", ".join([*_kinds(annotation), *_limits(field.metadata)]),
            choices=choices,
            meaning=field.metadata["description"],
            only={name: only[name] if isinstance(only, Mapping) else choices for name in only},
        )


def to_yaml(value: Any) -> str:
    """The value as YAML on one line.

    >>> to_yaml(None), to_yaml([-1, "0..2"]), to_yaml({}), to_yaml(1.0)
    ('null', '[-1, 0..2]', '{}', '1.0')
    """
    # The dumper ends a plain scalar with the document's end.
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


_KINDS = {int: "integer", float: "number", str: "text", bool: "true, false", types.NoneType: "null", Any: "anything"}


def _kinds(annotation: Any) -> list[str]:
    """The values that a type allows.

    >>> _kinds(Literal["cpu", "gpu"] | None), _kinds(dict[str, int]), _kinds(list[int | str])
    (['cpu', 'gpu', 'null'], ['mapping of text to integer'], ['list of integer or text'])
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kinds(inner[0])
    if origin is Literal:
        return [to_yaml(value) for value in inner]
    if origin in (Union, types.UnionType):
        return [kind for part in inner for kind in _kinds(part)]
    if origin in (list, Sequence):
        return [f"list of {' or '.join(_kinds(inner[0]))}"]
    if origin is dict:
        return [f"mapping of text to {' or '.join(_kinds(inner[1]))}"]
    return [_KINDS[annotation]]


def _limits(facts: Mapping[str, Any]) -> Iterator[str]:
    if "ge" in facts:
        yield f"at least {facts['ge']}"
    if "le" in facts:
        yield f"at most {facts['le']}"
    if "min_length" in facts:
        yield "not empty"
