"""The sections of a configuration: every setting once, with its meaning, unit and default.

The settings of a view and of reading are in `transforms/views` and `transforms/settings.py`, where the stages use them.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from layerbeam.transforms.settings import REQUIRED, Format, RecordFormat, Settings, setting
from layerbeam.transforms.views.view import ViewSettings

# For editors; `make reference` writes it.
SCHEMA_FILE = Path(__file__).with_name("schema.json")
_SENTENCES = "sentences"


def _check_context(context: Any) -> Any:
    """The context as it is. ValueError with one plain sentence, where pydantic has one for each allowed type."""
    count = context.get(_SENTENCES) if isinstance(context, dict) and len(context) == 1 else None
    if context not in ("text", "record") and not (type(count) is int and count >= 1):
        raise ValueError(f"should be text, record or {{{_SENTENCES}: n}}, n sentences on each side")
    return context


def _check_shard(shard: str | None) -> str | None:
    """The shard as it is. ValueError if it is none: its number comes first, and is no more than their number."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", "1/1" if shard is None else shard)
    if found is None or int(found[1]) > int(found[2]):
        raise ValueError("should be the number of a shard, from 1, and how many there are, such as 3/64")
    return shard


def _check_max_missing(value: Any) -> Any:
    if type(value) is not int and not (type(value) is float and 0 <= value <= 1):
        raise ValueError("should be a number of files such as 20, or a share from 0.0 to 1.0")
    return value


# A local path may begin with ~.
_Path = Annotated[str, AfterValidator(os.path.expanduser)]
_ViewName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputConfig(RecordFormat):
    """What is read."""

    files: Annotated[
        list[_Path],
        BeforeValidator(
            lambda given: [given] if isinstance(given, str) else given, json_schema_input_type=str | list[str]
        ),
    ] = setting(
        REQUIRED,
        "globs, files or folders (in a store with / at the end), one or a list, on any file system (local, gs://, "
        "s3://, az://, hdfs://) or hf://datasets/org/name@revision/..., relative to the current folder; .gz, .bz2 and "
        ".zst are read; of a folder, the files in it with a known ending; @list.txt stands for the lines of that file",
        min_length=1,
    )
    shard: Annotated[str | None, AfterValidator(_check_shard)] = setting(
        None,
        "3/64 reads the third of 64 shards, into which a hash of the absolute path divides the files: for 64 runs, "
        "each into a folder of its own; null: all files",
    )
    format: Format = setting("auto", "what the files hold; auto: found from their names and first bytes")
    limit: int | None = setting(None, "records to read: the first ones, in the order of files and lines", ge=1)
    max_missing: Annotated[int | float, BeforeValidator(_check_max_missing)] = setting(
        0.1,
        "how many files of earlier runs may be missing, a number such as 20 or a share such as 0.1, rounded up: their "
        "rows are deleted; if more are missing, all rows stay, and the run ends with status 3 and no _SUCCESS. A file "
        "whose bytes have another name now is not missing",
        ge=0,
    )
    max_reject_rate: float | None = setting(
        None,
        "fraction of the records; if more are rejected, the run ends with status 3 and no _SUCCESS; null: 0.01, and "
        "0.001 of those that the encoder fails on, whose cause may be the hardware",
        ge=0,
        le=1,
    )
    slice_bytes: int = setting(
        1 << 20,
        "bytes of a file with which a block is full, with its last record; also those of a worker's unit of work",
        ge=1,
        le=1 << 30,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """What turns tokens into vectors."""

    handle: str = setting(
        "minilm",
        "minilm, hf://org/name, an https:// address of TF Hub, or a folder or archive on any file system",
        min_length=1,
    )
    adapter: str | None = setting(
        None,
        "a LoRA adapter, added to the weights: a folder that peft has saved or hf://org/name, as handle, or the name "
        "of one in the encoder's own files",
        min_length=1,
    )
    max_seq_length: int | None = setting(
        None, "tokens of one text that are encoded, special tokens included; null: as the encoder's own files say", ge=3
    )
    long_text: Literal["truncate", "window", "reject"] = setting("truncate", "what happens to a longer text")
    context: Annotated[Literal["text", "record"] | dict[str, int], BeforeValidator(_check_context)] = setting(
        "text",
        "what is encoded together, and then cut into texts: a text alone; its whole record, in windows where it is "
        "longer than max_seq_length; or, as {sentences: 1}, a sentence with its neighbours",
    )
    prompt: str | None = setting(
        None,
        "a text put before each text, as sentence-transformers' prompts are; [unused1] at its start is that token; "
        "null: the model's default prompt, if a view follows the model's files (see pooling)",
    )
    query_prompt: str | None = setting(
        None, "the same before each query (search --text, encode as_query); null: as the model's files say, else prompt"
    )
    window_overlap: int = setting(64, "tokens that two neighbouring windows share", ge=0)
    do_lower_case: bool | None = setting(None, "null: as the encoder's own files say")
    special_in_text: Literal["text", "token"] | None = setting(
        None,
        "a special token that is written in a text, such as [SEP]: text cuts it as any other text, token takes the "
        "token; null: text for WordPiece of TensorFlow Text, token for the library tokenizers",
    )
    compute_dtype: Literal["float32", "bfloat16", "int8"] = setting(
        "float32", "number type of the matrix products; int8 is for search and clustering, on processors with VNNI"
    )
    calibration: list[str] | str | None = setting(
        None, "for compute_dtype int8: texts like yours, as a list or a file with one per line; null: layerbeam's own"
    )
    engine: Literal["auto", "native", "savedmodel"] = setting(
        "auto", "what runs the forward pass: native for known architectures, savedmodel calls a SavedModel as it is"
    )
    device: Literal["auto", "cpu", "gpu", "tpu"] = setting(
        "auto", "a named device must exist; auto falls back to the CPU"
    )
    batch_tokens: int = setting(
        1024,
        "tokens in one batch, padding included (for a GPU 16,384 to 65,536); changes values by rounding only",
        ge=1,
    )
    length_buckets: list[int] | None = setting(
        None, "pad to these lengths only, so that shapes are few (GPU, TPU, XLA)"
    )
    xla: bool = setting(
        False, "compile the forward pass with XLA, once for each length bucket; every batch is padded to batch_tokens"
    )
    resource_hints: dict[str, str] = setting(
        {},
        "Beam's resource hints for the machines that read, tokenize, encode and write, by Beam's names, such as "
        "accelerator and min_ram",
    )

    @property
    def of_long_text(self) -> Literal["truncate", "window", "reject"]:
        """`long_text`; what `context` puts together is encoded in windows."""
        return self.long_text if self.context == "text" else "window"

    @property
    def neighbours(self) -> Literal["text", "record"] | int:
        """`context` in one word, or the number of sentences on each side."""
        return self.context[_SENTENCES] if isinstance(self.context, dict) else self.context


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputConfig(Settings):
    """Where the files go."""

    path: _Path = setting(REQUIRED, "the folder, local or on any Beam file system", min_length=1)
    target_part_bytes: int | None = setting(
        None,
        "vectors of the largest part of a block before compression, estimated from the bytes of text; null: 128 MiB, "
        "and no more than 16 batches of tokens",
        ge=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedConfig(Settings):
    """The sections that say how texts become vectors; `EmbedText` has these only."""

    encoder: EncoderConfig = EncoderConfig()
    views: dict[_ViewName, ViewSettings] = setting(REQUIRED, "at least one view, by name", min_length=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(EmbedConfig):
    """A whole run."""

    input: InputConfig
    output: OutputConfig
    beam: dict[str, Any] = setting({}, "Beam's own options by their own names; the command line has priority")


# The settings of a section; for `views` those of one view.
SECTIONS: dict[str, type[Settings]] = {
    "input": InputConfig,
    "encoder": EncoderConfig,
    "views": ViewSettings,
    "output": OutputConfig,
}
# What the section `beam` is: it has no settings of its own.
BEAM: str = Config.__dataclass_fields__["beam"].metadata["description"]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a setting; REQUIRED if there is none."""
    return field.default if field.default_factory is REQUIRED else field.default_factory()


def fields_of(section: type[Settings]) -> list[dataclasses.Field[Any]]:
    """The settings of a section, required ones first."""
    fields: Any = dataclasses.fields(section)  # type: ignore[arg-type]
    return sorted(fields, key=lambda field: default_of(field) is not REQUIRED)
