"""A configuration together with its encoder: the job, with nothing left open, and its fingerprint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from layerbeam.pipeline.config.layers import resolve_views
from layerbeam.pipeline.config.schema import Config, EmbedConfig
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output import manifest
from layerbeam.pipeline.output.manifest import RunIdentity
from layerbeam.pipeline.run.versions import check_versions, versions
from layerbeam.transforms.encoders import EncoderSource, load_encoder
from layerbeam.transforms.hardware import DeviceError, Hardware, load_tensorflow, placement
from layerbeam.transforms.parts.jsonl import is_extract_features
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.settings import BlockLimits, EncodeSettings, RecordFormat, SequenceSettings
from layerbeam.transforms.views import View, needed_layers

if TYPE_CHECKING:
    from layerbeam.transforms.encode.forward import Encoder  # the stage imports Beam


_NO_LIMIT = 1 << 40
# The assumed length of a sentence when blocks are cut, before texts are split into sentences.
_SENTENCE_BYTES = 80


@dataclasses.dataclass(frozen=True)
class EmbedJob:
    """How texts become vectors: plain values, which are sent to workers."""

    config: EmbedConfig
    encoder: EncoderSource
    views: tuple[View, ...]
    versions: Mapping[str, str]

    @property
    def sequences(self) -> SequenceSettings:
        return SequenceSettings(self.config.encoder.max_seq_length, self.config.encoder.long_text)

    @property
    def encoding(self) -> EncodeSettings:
        settings = self.config.encoder
        return EncodeSettings(
            settings.batch_tokens,
            settings.max_seq_length,
            window_overlap=settings.window_overlap,
            length_buckets=tuple(settings.length_buckets) if settings.length_buckets else None,
        )

    def load_tensorflow(self, threads: int) -> None:
        """Set TensorFlow up for the configured device. UsageError if TensorFlow does not find it."""
        try:
            load_tensorflow(Hardware(threads, self.config.encoder.device))
        except DeviceError as error:
            raise UsageError(str(error)) from error

    def load_encoder(self) -> Encoder:
        """The encoder with the layers that the views need, ready to be called. For the worker that encodes.

        VersionError if the worker's software is not the same as where the pipeline was built.
        """
        check_versions(self.versions)
        with placement(self.config.encoder.device):
            return load_encoder(
                self.encoder,
                layers=needed_layers(self.views),
                pooler=any(view.uses_pooler for view in self.views),
                compute_dtype=self.config.encoder.compute_dtype,
                xla=self.config.encoder.xla,
            )


@dataclasses.dataclass(frozen=True)
class Job(EmbedJob):
    """Everything a run needs to know."""

    config: Config
    head: RunIdentity
    output: Output
    limits: BlockLimits
    records: RecordFormat


def resolve(config: Config, encoder: EncoderSource) -> Job:
    """The job of a configuration and the encoder that `config.layers.open_for` opened for it."""
    ids = [("id", "string")] if config.input.id_field is not None else []
    views = resolve_views(config.views, encoder, [*ids, *config.input.keep_fields.items()])
    identity = identify(config, encoder, views)
    settings = dataclasses.asdict(config)
    del settings["output"]["path"]  # equal runs into two folders are equal
    head = RunIdentity(manifest.fingerprint(identity), identity, encoder.describe(), settings, versions())
    output = Output(config.output.path, head.fingerprint, config.output.byte_stream_split)
    return Job(config, encoder, views, head.versions, head, output, block_limits(config, views), config.input)


def identify(config: Config, encoder: EncoderSource, views: tuple[View, ...]) -> dict[str, Any]:
    """The fingerprint's content: encoder and settings that decide rows, columns, values or where blocks end."""
    settings = dataclasses.asdict(config)
    for name in ("files", "max_reject_rate"):
        del settings["input"][name]
    for view in views:
        of_view = settings["views"][view.name]
        del of_view["layer_numbering"]
        of_view |= {"layers": list(view.layers), "keep_words": view.keep_words and list(view.keep_words)}
        if is_extract_features(view):  # its lines show how each layer was written in the configuration
            of_view["given_layers"] = list(view.given_layers)
    in_encoder = ("max_seq_length", "long_text", "window_overlap", "compute_dtype")
    return {
        "schema_version": manifest.SCHEMA_VERSION,
        "input": settings["input"],
        "encoder": {
            "fingerprint": encoder.fingerprint,
            "engine": encoder.engine,  # engines differ by rounding only, but the manifest names one
            "do_lower_case": encoder.do_lower_case,
            **{name: settings["encoder"][name] for name in in_encoder},
        },
        "views": settings["views"],
        "output": {"target_part_bytes": config.output.target_part_bytes},
    }


def block_limits(config: Config, views: tuple[View, ...]) -> BlockLimits:
    """How much goes into a block, so that the part of its largest view stays near `target_part_bytes`."""
    part_bytes = config.output.target_part_bytes
    # A block has fewer words than tokens: counting words as tokens is on the safe side.
    token_bytes = max((view.row_bytes for view in views if view.level == "token" or view.has_word_rows), default=1)
    text_bytes = max((view.row_bytes for view in views if view.level in ("text", "record")), default=1)
    return BlockLimits(
        text_bytes=config.input.slice_bytes,
        token_rows=max(part_bytes // token_bytes, 1),
        text_rows=max(part_bytes // text_bytes, 1),
        max_seq_length=config.encoder.max_seq_length if config.encoder.long_text != "window" else _NO_LIMIT,
        sentence_bytes=_SENTENCE_BYTES if config.input.unit == "sentence" else None,
    )
