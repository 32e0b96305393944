"""Errors about an encoder's files, and the JSON files among them, read field by field."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

Activation = Literal["gelu", "gelu_tanh", "silu"]
MAX_SHOWN = 80
ELSEWHERE = "take another model, or encode with sentence-transformers"
_MOST_BYTES = 1 << 28  # of a vocabulary or a JSON file; Gemma 3 has one of 33 MB

# Transformers' names (activations.py). gelu_fast is the tanh form with sqrt(2/pi) as a constant of 10 digits;
# quick_gelu is another function.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


class EncoderError(ValueError):
    """An encoder cannot be used: handle, file, field, what was found, what is allowed, what to do."""


class JsonFile:
    """A JSON object with the path of its file. Its methods raise EncoderError for a field that cannot be used."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path, self.fields = path, dict(fields)

    @staticmethod
    def read(path: Path, *, optional: bool = False) -> JsonFile:
        """The object in a file; if that is optional and missing, one without fields."""
        return JsonFile(path, {} if optional and not path.exists() else read_whole(path))

    def get(self, name: str, allowed: str, *, least: int) -> int | None:
        """A field that is an integer from `least` up, or null."""
        value: int | None = self.fields.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise self.wrong(name, allowed)
        return value

    def check(self, name: str, value: Any) -> None:
        """EncoderError if the field is there with another value."""
        if self.fields.get(name, value) != value:
            raise self.wrong(name, f"{shown(value)}: {ELSEWHERE}")

    def check_names(self, *known: str) -> None:
        """EncoderError for a field that is unknown here, and may change the vectors."""
        unknown = [name for name in self.fields if name not in known]
        if unknown:
            raise EncoderError(f"{self.path}: {unknown[0]} is unknown here; allowed: {', '.join(known)}: {ELSEWHERE}")

    def wrong(self, name: str, allowed: str) -> EncoderError:
        """The error for a field."""
        return EncoderError(f"{self.path}: {name} is {shown(self.fields[name])}; it must be {allowed}")


class ConfigFile(JsonFile):
    """The object in a JSON file of the encoder with this handle."""

    def __init__(self, handle: str, path: Path) -> None:
        super().__init__(path, read_json(handle, path))
        self.handle = handle

    def with_fields(self, fields: Mapping[str, Any]) -> ConfigFile:
        """The same file with other fields."""
        changed = copy.copy(self)
        changed.fields = dict(fields)
        return changed

    def wrong(self, name: str, allowed: str, advice: str = "") -> EncoderError:
        """The error for a field. `advice`: what to do rather than to take another encoder."""
        found = json.dumps(self.fields[name]) if name in self.fields else "missing"
        return EncoderError(
            f"{self.handle}: {self.path}: {name} is {found}; it must be {allowed}: {advice}take another encoder"
        )

    def integer(self, field: str, *, least: int = 1) -> int:
        """A size, at least `least`."""
        value = self.fields.get(field)
        if type(value) is not int or value < least:
            raise self.wrong(field, "a positive integer" if least else "an integer from 0")
        return value

    def number(self, field: str, default: float, *, below: float = 1) -> float:
        """A number from 0 to `below`."""
        value = self.fields.get(field, default)
        if type(value) not in (int, float) or not 0 <= value < below:
            raise self.wrong(field, f"a number from 0 to {below:g}")
        return float(value)

    def activation(self, field: str) -> Activation:
        """The activation of a block's inner layer."""
        activation = _ACTIVATIONS.get(str(self.fields.get(field)))
        if activation is None:
            raise self.wrong(field, f"one of {', '.join(_ACTIVATIONS)}")
        return activation

    def require(self, field: str, *allowed: Any) -> Any:
        """The value, which is one of `allowed`; the first of them if the field is missing or null."""
        value = self.fields.get(field)
        if value is None:
            return allowed[0]
        if json.dumps(value) not in map(json.dumps, allowed):  # as JSON, because 1 == True
            raise self.wrong(field, " or ".join(map(json.dumps, allowed)))
        return value

    def sizes(self, names: Mapping[str, str]) -> dict[str, int]:
        """{our name: size} for {our name: name in the file}. A hidden size must be a multiple of the heads."""
        sizes = {ours: self.integer(theirs) for ours, theirs in names.items()}
        heads = sizes["num_attention_heads"]
        if sizes["hidden_size"] % heads:
            raise self.wrong(names["hidden_size"], f"a multiple of {names['num_attention_heads']}, {heads}")
        return sizes


def read_json(handle: str, path: Path, kind: type = dict, allowed: str = "an object") -> Any:
    """What a JSON file holds. EncoderError if that is of another kind. `handle`: for messages, if it is not empty."""
    file = at(handle, path)
    try:
        content = json.loads(read_small(handle, path))
    except EncoderError:
        raise
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{file}: is not JSON ({error}); download it again") from None
    if not isinstance(content, kind):
        raise EncoderError(f"{file}: is {shown(content)}; it must be {allowed}: download it again")
    return content


def read_whole(path: Path, kind: type = dict, allowed: str = "an object") -> Any:
    """The same of a file that a complete folder has. EncoderError also if it cannot be read."""
    try:
        return read_json("", path, kind, allowed)
    except OSError as error:
        raise EncoderError(f"{path}: {error.strerror or error}; download the whole folder again") from error


def read_small(handle: str, path: Path) -> bytes:
    """The bytes of a file that is read whole. EncoderError if it is larger than any such file of an encoder."""
    if path.stat().st_size > _MOST_BYTES:
        raise EncoderError(
            f"{at(handle, path)}: has over {_MOST_BYTES >> 20} MB, more than any encoder's; check the file"
        )
    return path.read_bytes()


def open_regular(path: str | Path) -> BinaryIO:
    """The file, opened; FileNotFoundError for what else has its name, such as a pipe, which would be waited for."""
    if not os.path.isfile(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return open(path, "rb")


def get_it(handle: str) -> str:
    """What to do about a file that an encoder lacks."""
    if not handle.startswith("hf://"):
        return "download it too"
    name = handle.removeprefix("hf://").partition("@")[0]
    page = f"https://huggingface.co/{name}/discussions"
    return f"the repository lacks it; if one of the pull requests at {page} adds it, give hf://{name}@refs/pr/N"


def shown(value: Any) -> str:
    """A value as JSON, cut to fit in a message."""
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def at(handle: str, path: Path) -> str:
    """The start of an error message: the handle, if it is not empty, and the path unless that is the handle itself.

    >>> at("bert.zip", Path("bert.zip")), at("hf://org/bert", Path("/cache/config.json")), at("", Path("a.json"))
    ('bert.zip', 'hf://org/bert: /cache/config.json', 'a.json')
    """
    if not handle:
        return str(path)
    return handle if handle.rstrip("/") == str(path) else f"{handle}: {path}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty.

    >>> first_line(ValueError("not opened:\\n- as gz\\n- as xz")), first_line(EOFError())
    ('not opened', 'EOFError')
    """
    return next(iter(str(error).splitlines()), "").rstrip(":") or type(error).__name__
