"""What there is to set, read off the models of the configuration: for the reference and for `layerbeam init`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

import annotated_types
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from layerbeam.pipeline.config import schema


@dataclasses.dataclass(frozen=True)
class Setting:
    """`default` and `allowed` as YAML has them; `default` is None where the setting is required.

    `choices`: where only a few words are allowed, these.
    """

    name: str
    default: str | None
    allowed: str
    choices: tuple[str, ...]
    meaning: str
    levels: tuple[str, ...]


SECTIONS: dict[str, type[BaseModel]] = {
    "input": schema.InputConfig,
    "encoder": schema.EncoderConfig,
    "views": schema.ViewConfig,
    "output": schema.OutputConfig,
}


def settings(section: str) -> Iterator[Setting]:
    """Of a section; of `views` those of one view, with the levels that know them."""
    for name, field in SECTIONS[section].model_fields.items():
        yield Setting(
            name=name,
            default=None if field.is_required() else to_yaml(field.default),
            allowed=", ".join([*_kinds(field.annotation), *_limits(field)]),
            choices=tuple(_choices(field.annotation)),
            meaning=field.description or "",
            levels=schema.LEVELS.get(name, ()) if section == "views" else (),
        )


def to_yaml(value: Any) -> str:
    """The value as it stands after a key.

    >>> to_yaml(None), to_yaml([-1, "0..2"]), to_yaml({}), to_yaml(1.0)
    ('null', '[-1, 0..2]', '{}', '1.0')
    """
    # The width keeps it on one line; of a plain scalar the dumper adds the end of the document.
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
    if origin is list:
        return [f"list of {' or '.join(_kinds(inner[0]))}"]
    if origin is dict:
        return [f"mapping of text to {' or '.join(_kinds(inner[1]))}"]
    return [_KINDS[annotation]]


def _choices(annotation: Any) -> list[str]:
    return _kinds(annotation) if typing.get_origin(annotation) is Literal else []


def _limits(field: FieldInfo) -> Iterator[str]:
    for limit in field.metadata:
        if isinstance(limit, annotated_types.Ge):
            yield f"at least {limit.ge}"
        elif isinstance(limit, annotated_types.Le):
            yield f"at most {limit.le}"
        elif isinstance(limit, annotated_types.MinLen):
            yield "not empty"
