"""A configuration brought together with its encoder: the job, with nothing left open, and its fingerprint."""

from __future__ import annotations

import dataclasses
from typing import Any

from layerbeam.pipeline.config.layers import given_layers, resolve_layers
from layerbeam.pipeline.config.schema import Config
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output import manifest
from layerbeam.pipeline.output.manifest import RunIdentity
from layerbeam.pipeline.run.versions import check_versions, versions
from layerbeam.transforms import storage
from layerbeam.transforms.encode.forward import Encoder
from layerbeam.transforms.encoders import EncoderSource, load_encoder
from layerbeam.transforms.hardware import DeviceError, Hardware, load_tensorflow, placement
from layerbeam.transforms.parts.jsonl import is_extract_features
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.settings import BlockLimits, EncodeSettings, RecordFormat, SequenceSettings
from layerbeam.transforms.views import View, needed_layers

# Settings of a view that `layerbeam.transforms.views.View` has under the same name.
_PASSED_ON = {
    "level",
    "combine",
    "pooling",
    "special_tokens",
    "dims",
    "normalize",
    "dtype",
    "format",
    "compress",
    "words",
    "match_case",
    "include_text",
    "min_count",
}
_NO_LIMIT = 1 << 40
# Settings of the input that `layerbeam.transforms.settings.RecordFormat` has under the same name.
_READING = {
    "format",
    "record",
    "unit",
    "encoding",
    "text_field",
    "pair_field",
    "pair_separator",
    "id_field",
}
# What a sentence is taken to have when blocks are cut, before anybody looks for sentences.
_SENTENCE_BYTES = 80


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything a run needs to know, of plain values: it goes to workers as it is.

    `records`: what a record is and what becomes of it.
    """

    config: Config
    encoder: EncoderSource
    views: tuple[View, ...]
    head: RunIdentity
    output: Output
    limits: BlockLimits
    sequences: SequenceSettings
    encoding: EncodeSettings
    records: RecordFormat

    def load_tensorflow(self, threads: int) -> None:
        """Set TensorFlow up for the device asked for. UsageError where it does not see that."""
        try:
            load_tensorflow(Hardware(threads, self.config.encoder.device))
        except DeviceError as error:
            raise UsageError(str(error)) from error

    def load_encoder(self) -> Encoder:
        """The encoder ready to be called, with the layers that the views need. Where it runs, not where it is built.

        VersionError on a worker that has other software than the program that built the pipeline.
        """
        check_versions(self.head.versions)
        with placement(self.config.encoder.device):
            return load_encoder(
                self.encoder,
                layers=needed_layers(self.views),
                pooler=any(view.uses_pooler for view in self.views),
                compute_dtype=self.config.encoder.compute_dtype,
                xla=self.config.encoder.xla,
            )


def resolve(config: Config, encoder: EncoderSource) -> Job:
    """The job of a configuration and the encoder that `layerbeam.pipeline.config.layers` opened for it."""
    views = tuple(
        View(
            name=name,
            layers=resolve_layers(name, view, encoder),
            hidden_size=encoder.hidden_size,
            given_layers=given_layers(view, encoder),
            fields=kept_fields(config),
            keep_words=check_forms(name, view.words, read_forms(name, view.keep_words), encoder.do_lower_case),
            by=tuple(view.by),
            **view.model_dump(include=_PASSED_ON),
        )
        for name, view in config.views.items()
    )
    identity = identify(config, encoder, views)
    written = config.model_dump()
    del written["output"]["path"]  # equal runs into two folders are equal
    head = RunIdentity(manifest.fingerprint(identity), identity, encoder.describe(), written, versions())
    output = Output(config.output.path, head.fingerprint, config.output.byte_stream_split)
    sequences = SequenceSettings(config.encoder.max_seq_length, config.encoder.long_text)
    settings = config.encoder
    encoding = EncodeSettings(
        settings.batch_tokens,
        settings.max_seq_length,
        window_overlap=settings.window_overlap,
        length_buckets=tuple(settings.length_buckets) if settings.length_buckets else None,
    )
    limits, records = block_limits(config, views), record_format(config)
    return Job(config, encoder, views, head, output, limits, sequences, encoding, records)


def read_forms(view: str, keep_words: list[str] | str | None) -> tuple[str, ...] | None:
    """The forms of `keep_words`, given as a list or as a file with one on each line; None where there are none."""
    if keep_words is None:
        return None
    if isinstance(keep_words, str):
        try:
            lines = storage.read_bytes(keep_words).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = storage.reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(f"views.{view}.keep_words: {keep_words}: cannot be read ({why})") from error
        keep_words = lines
    forms = tuple(dict.fromkeys(form.strip() for form in keep_words if form.strip()))
    if not forms:
        raise UsageError(f"views.{view}.keep_words: holds no form; name at least one, or take it away")
    return forms


def check_forms(view: str, words: str, forms: tuple[str, ...] | None, do_lower_case: bool) -> tuple[str, ...] | None:
    """The forms. UsageError for one that is several words to the encoder: it would never come."""
    reference = ReferenceWordPiece([], do_lower_case)
    for form in forms or ():
        parts = form.split() if words == "whitespace" else reference.words(form)
        if len(parts) > 1:
            hint = "" if words == "whitespace" or " " in form else ", or take level word and words: whitespace"
            raise UsageError(
                f"views.{view}.keep_words: {form!r} is several words here ({', '.join(parts)}) and would never come; "
                f"name one of them{hint}"
            )
    return forms


def kept_fields(config: Config) -> tuple[tuple[str, str], ...]:
    """Name and type of the columns that go through from the input: `id`, then the kept fields."""
    ids = (("id", "string"),) if config.input.id_field is not None else ()
    return (*ids, *config.input.keep_fields.items())


def record_format(config: Config) -> RecordFormat:
    """The settings of reading."""
    settings = config.input
    return RecordFormat(
        keep_blank=settings.blank == "keep",
        replace_invalid=settings.invalid_bytes == "replace",
        keep_fields=tuple(settings.keep_fields.items()),
        **settings.model_dump(include=_READING),
    )


def identify(config: Config, encoder: EncoderSource, views: tuple[View, ...]) -> dict[str, Any]:
    """What the fingerprint is made of: encoder and settings that decide rows, columns, values or where blocks end."""
    return {
        "schema_version": manifest.SCHEMA_VERSION,
        "input": config.input.model_dump(exclude={"files", "max_rejected"}),
        "encoder": {
            "fingerprint": encoder.fingerprint,
            "engine": encoder.engine,  # they differ by rounding only, but the manifest names one
            "do_lower_case": encoder.do_lower_case,
            **config.encoder.model_dump(include={"max_seq_length", "long_text", "window_overlap", "compute_dtype"}),
        },
        "views": {
            view.name: config.views[view.name].model_dump(exclude={"layers", "keep_words", "numbering"})
            | {"layers": list(view.layers), "keep_words": view.keep_words and list(view.keep_words)}
            # These lines say how each layer was asked for.
            | ({"given_layers": list(view.given_layers)} if is_extract_features(view) else {})
            for view in views
        },
        "output": {"part_bytes": config.output.part_bytes},
    }


def block_limits(config: Config, views: tuple[View, ...]) -> BlockLimits:
    """How much goes into a block, so that the part of its largest view stays near `part_bytes`."""
    part_bytes = config.output.part_bytes
    token_bytes = max((view.row_bytes for view in views if view.level == "token"), default=1)
    # Words are fewer than tokens: the estimate is on the safe side.
    word_bytes = max((view.row_bytes for view in views if view.level in ("word", "word_type")), default=1)
    text_bytes = max((view.row_bytes for view in views if view.level in ("text", "record")), default=1)
    return BlockLimits(
        text_bytes=config.input.slice_bytes,
        token_rows=max(part_bytes // max(token_bytes, word_bytes), 1),
        text_rows=max(part_bytes // text_bytes, 1),
        max_seq_length=config.encoder.max_seq_length if config.encoder.long_text != "window" else _NO_LIMIT,
        sentence_bytes=_SENTENCE_BYTES if config.input.unit == "sentence" else None,
    )
