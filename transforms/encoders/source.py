"""What an opened encoder is, in plain values, and what all kinds of source share."""

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
    """An encoder that cannot be used: handle, file, field, what was found, what is allowed, what to do."""


@dataclasses.dataclass(frozen=True)
class EncoderSource:
    """An encoder that was opened but not loaded: plain values, which go to workers as they are.

    `folder`: where its files are on this machine. `engine_because`: why `engine` was taken. `config`: None where it is
    no plain BERT. `layers`: those it can give, ascending, of 0 to `num_hidden_layers`. `max_position_embeddings`: None
    where the source does not say. `vocabulary`: the entries in the order of their ids. `casing_from`: who decided
    `do_lower_case`. `fingerprint`: SHA-256 over the bytes of weights and vocabulary and the configuration.
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
        """The id of [PAD]; as in Google's reference, the last of equal entries counts."""
        return len(self.vocabulary) - 1 - self.vocabulary[::-1].index("[PAD]")

    def describe(self) -> dict[str, Any]:
        """What a manifest says of it: the same wherever the files lie."""
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
        """What of this the encoder cannot give, in one sentence; None where it can give all."""
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
        """EncoderError where it cannot give this."""
        unsupported_reason = self.unsupported_reason(layers, pooler=pooler)
        if unsupported_reason is not None:
            raise EncoderError(f"{self.handle}: {unsupported_reason}")


def native_source(*, config: BertConfig, **rest: Any) -> EncoderSource:
    """A plain BERT for the native engine: what there is to say of it follows from its configuration."""
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
    """Where a mistake lies, for the start of a message; the path where it is not the handle itself.

    >>> at("bert.zip", Path("bert.zip")), at("hf://org/bert", Path("/cache/config.json"))
    ('bert.zip', 'hf://org/bert: /cache/config.json')
    """
    return handle if handle.rstrip("/") == str(path) else f"{handle}: {path}"


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its type where it says nothing.

    >>> first_line(ValueError("not opened:\\n- as gz\\n- as xz")), first_line(EOFError())
    ('not opened', 'EOFError')
    """
    return next(iter(str(error).splitlines()), "").rstrip(":") or type(error).__name__


def unreadable(handle: str, error: OSError) -> EncoderError:
    """The error for a file that is there and cannot be read: nothing is wrong with what is in it."""
    place = at(handle, Path(os.fsdecode(error.filename))) if isinstance(error.filename, (str, bytes)) else handle
    return EncoderError(f"{place}: cannot be read: {error.strerror or error}")


def check_config(handle: str, path: Path, fields: Mapping[str, Any]) -> None:
    """EncoderError where the numbers of a config.json or bert_config.json are not those of a BERT."""
    for field in (field.name for field in dataclasses.fields(BertConfig) if field.type == "int"):
        if type(fields.get(field)) is not int or fields[field] < 1:
            raise wrong_field(handle, path, fields, field, "a positive integer")
    if fields["hidden_size"] % fields["num_attention_heads"]:
        heads = fields["num_attention_heads"]
        raise wrong_field(handle, path, fields, "hidden_size", f"a multiple of num_attention_heads, {heads}")


def check_depth(handle: str, path: Path, config: BertConfig, num_tensors: int) -> None:
    """EncoderError for more blocks than there are tensors, before billions of names are made for them."""
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
    """The object in a JSON file. EncoderError where it is none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise EncoderError(f"{handle}: {path}: is not JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise EncoderError(f"{handle}: {path}: must hold a JSON object, not {str(content)[:40]!r}; download it again")
    return content


def fingerprint(weight_files: Iterable[str], vocabulary_file: Path, config: BertConfig | None) -> str:
    """SHA-256 over what decides the vectors: the same wherever the files lie."""
    parts = {
        "weights": [sha256_of(Path(file)) for file in weight_files],
        "vocabulary": sha256_of(vocabulary_file),
        "config": dataclasses.asdict(config) if config else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex; remembered per process while its size and time stay: some 1 s for each 1.5 GB."""
    stat = path.stat()
    return _sha256_of(str(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256_of(path: str, size: int, modified: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
