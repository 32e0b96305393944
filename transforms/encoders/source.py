"""An opened encoder as plain values, and what all source formats share."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from layerbeam.transforms.encoders.bert import BertConfig

Kind = Literal["huggingface", "google", "savedmodel"]
Engine = Literal["native", "savedmodel"]


class EncoderError(ValueError):
    """An encoder cannot be used: handle, file, field, what was found, what is allowed, what to do."""


@dataclasses.dataclass(frozen=True)
class EncoderSource:
    """An encoder that is opened but not loaded: plain values that are sent to workers.

    `folder`: its files on this machine. `engine_because`: the reason for `engine`. `config`: None if it is not plain
    BERT. `layers`: those it can give, ascending, from 0 to `num_hidden_layers`. `max_position_embeddings`: None if
    unknown. `vocabulary`: in the order of the ids. `casing_from`: the source of `do_lower_case`. `fingerprint`: SHA-256
    of weights, vocabulary and configuration.
    """

    handle: str
    kind: Kind
    engine: Engine
    engine_because: str
    folder: str
    weight_files: tuple[str, ...]
    config: BertConfig | None
    hidden_size: int
    num_hidden_layers: int
    layers: tuple[int, ...]
    max_position_embeddings: int | None
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)
    do_lower_case: bool
    casing_from: str
    has_pooler: bool
    fingerprint: str

    @property
    def pad_id(self) -> int:
        """The id of [PAD]; of equal entries the last one, as in Google's reference."""
        return len(self.vocabulary) - 1 - self.vocabulary[::-1].index("[PAD]")

    def describe(self) -> dict[str, Any]:
        """The encoder's entry in a manifest, which does not depend on where the files are."""
        return {
            "handle": self.handle,
            "kind": self.kind,
            "engine": self.engine,
            "engine_because": self.engine_because,
            "fingerprint": self.fingerprint,
            "do_lower_case": self.do_lower_case,
            "casing_from": self.casing_from,
            "has_pooler": self.has_pooler,
            "vocabulary_size": len(self.vocabulary),
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "max_position_embeddings": self.max_position_embeddings,
            **(dataclasses.asdict(self.config) if self.config else {}),
        }

    def unsupported_reason(self, layers: Iterable[int], *, pooler: bool) -> str | None:
        """What the encoder cannot give, in one sentence; None if it can give all of this."""
        if pooler and not self.has_pooler:
            return "it has no pooled output (no pooler among its weights or outputs); take cls, mean or max of a layer"
        missing = sorted(set(layers) - set(self.layers))
        if not missing:
            return None
        if self.layers == (self.num_hidden_layers,):
            return (
                "the SavedModel has no encoder_outputs: it gives its last layer, -1, and the pooled output, not layer "
                f"{missing[0]}"
            )
        if missing == [0] and self.engine == "savedmodel":
            native = "; engine native has it" if self.config else ""
            return f"a SavedModel does not give layer 0, the embedding layer's output; it gives {self._range()}{native}"
        return f"there is no layer {missing[0]}; it gives {self._range()}"

    def _range(self) -> str:
        return f"layers {self.layers[0]} to {self.layers[-1]}"

    def check(self, layers: Iterable[int], *, pooler: bool) -> None:
        """Raises EncoderError if the encoder cannot give this."""
        reason = self.unsupported_reason(layers, pooler=pooler)
        if reason is not None:
            raise EncoderError(f"{self.handle}: {reason}")


def native_source(*, config: BertConfig, **rest: Any) -> EncoderSource:
    """A plain BERT for the native engine; sizes and layers follow from its configuration."""
    return EncoderSource(
        engine="native",
        config=config,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        layers=tuple(range(config.num_hidden_layers + 1)),
        max_position_embeddings=config.max_position_embeddings,
        **rest,
    )


def at(handle: str, path: Path) -> str:
    """The start of an error message: the handle, with the path unless that is the handle itself.

    >>> at("bert.zip", Path("bert.zip")), at("hf://org/bert", Path("/cache/config.json"))
    ('bert.zip', 'hf://org/bert: /cache/config.json')
    """
    return handle if handle.rstrip("/") == str(path) else f"{handle}: {path}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty.

    >>> first_line(ValueError("not opened:\\n- as gz\\n- as xz")), first_line(EOFError())
    ('not opened', 'EOFError')
    """
    return next(iter(str(error).splitlines()), "").rstrip(":") or type(error).__name__


def unreadable(handle: str, error: OSError) -> EncoderError:
    """The error for a file that exists but cannot be read; its content may be fine."""
    place = at(handle, Path(os.fsdecode(error.filename))) if isinstance(error.filename, (str, bytes)) else handle
    return EncoderError(f"{place}: cannot be read: {error.strerror or error}")


def check_config(handle: str, path: Path, fields: Mapping[str, Any]) -> None:
    """Raises EncoderError unless the numbers of a config.json or bert_config.json describe a BERT."""
    for field in (field.name for field in dataclasses.fields(BertConfig) if field.type == "int"):
        if type(fields.get(field)) is not int or fields[field] < 1:
            raise wrong_field(handle, path, fields, field, "a positive integer")
    if fields["hidden_size"] % fields["num_attention_heads"]:
        heads = fields["num_attention_heads"]
        raise wrong_field(handle, path, fields, "hidden_size", f"a multiple of num_attention_heads, {heads}")


def check_depth(handle: str, path: Path, config: BertConfig, num_tensors: int) -> None:
    """Raises EncoderError for more blocks than tensors, before billions of names are made for them."""
    if config.num_hidden_layers > num_tensors:
        raise EncoderError(
            f"{handle}: {path}: num_hidden_layers is {config.num_hidden_layers:,}, and the weights have no more than "
            f"{num_tensors:,} tensors; they do not belong together: download both again"
        )


def wrong_field(handle: str, path: Path, fields: Mapping[str, Any], field: str, allowed: str) -> EncoderError:
    """The error for a field of a JSON file."""
    found = json.dumps(fields[field]) if field in fields else "missing"
    return EncoderError(f"{handle}: {path}: {field} is {found}; it must be {allowed}: take another encoder")


def read_json(handle: str, path: Path) -> dict[str, Any]:
    """The object in a JSON file. EncoderError if it holds none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{handle}: {path}: is not JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise EncoderError(f"{handle}: {path}: must hold a JSON object, not {str(content)[:40]!r}; download it again")
    return content


def fingerprint(weight_files: Iterable[str], vocabulary_file: Path, config: BertConfig | None) -> str:
    """SHA-256 of what determines the vectors: weights, vocabulary and configuration, not the files' place."""
    parts = {
        "weights": [sha256_of(Path(file)) for file in weight_files],
        "vocabulary": sha256_of(vocabulary_file),
        "config": dataclasses.asdict(config) if config else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex, cached per process by size and time; takes about 1 s per 1.5 GB."""
    stat = path.stat()
    return _sha256_of(str(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256_of(path: str, size: int, modified: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
