"""A configuration together with its encoder: the job, with nothing left open, and its fingerprint."""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from layerbeam.pipeline.config.identity import SCHEMA_VERSION, RunIdentity, identify_run
from layerbeam.pipeline.config.recipe import complete
from layerbeam.pipeline.config.rules import find_in_encoder, find_in_input
from layerbeam.pipeline.config.schema import Config, EmbedConfig, EncoderConfig
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.versions import VersionError, check_versions, versions
from layerbeam.transforms import storage
from layerbeam.transforms.encoders import (
    CALIBRATION,
    AdapterError,
    EncoderError,
    EncoderSource,
    int8_problem,
    load_encoder,
    open_dense,
    open_encoder,
    sha256_of,
)
from layerbeam.transforms.hardware import DeviceError, Hardware, load_tensorflow, placement
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.parts.part_format import Output
from layerbeam.transforms.reference import ReferenceWordPiece
from layerbeam.transforms.settings import (
    BYTES_PER_TOKEN,
    BlockLimits,
    EncodeSettings,
    Format,
    RecordFormat,
    SequenceSettings,
    element_of,
    find_secret,
)
from layerbeam.transforms.splitters import SplitterError, open_splitter
from layerbeam.transforms.views.columns import row_bytes
from layerbeam.transforms.views.view import ViewSettings, ViewSpec, needed_dense, needed_layers, needs_pooler

if TYPE_CHECKING:  # the stage imports Beam
    from layerbeam.transforms.embedder import Embedder
    from layerbeam.transforms.encode.forward import Encoder


_NO_LIMIT = 1 << 40
# The assumed length of a sentence when blocks are cut, before texts are split into sentences.
_SENTENCE_BYTES = 80
# Unless the configuration says how large parts are. An edit changes one or two blocks.
_PART_BYTES = 128 << 20
_EDIT_TOKENS = 1 << 14
_EDIT_BATCHES = 16
# A view with `keep_words` is assumed to keep at most one word of so many; all of them must fit in memory.
_FEWER_WORDS = 8
# Of an encoder without files of sentence-transformers, where a call names no view.
UNIT_LENGTH: Mapping[str, Any] = {"normalize": True}
# The texts of a calibration: they are in the manifest, and every process encodes them.
_CALIBRATION_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True)
class EmbedJob:
    """How texts become vectors: plain values, which are sent to workers."""

    config: EmbedConfig
    encoder: EncoderSource
    views: tuple[ViewSpec, ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def sequences(self) -> SequenceSettings:
        settings = self.config.encoder
        prompt, context = (settings.prompt or "").removeprefix(self.encoder.marker), settings.neighbours
        return SequenceSettings(self.max_seq_length, settings.of_long_text, prompt, context=context)

    @property
    def encoding(self) -> EncodeSettings:
        settings, special = self.config.encoder, self.encoder.special
        return EncodeSettings(
            settings.batch_tokens,
            self.max_seq_length,
            window_overlap=settings.window_overlap,
            around=(len(special.before), len(special.behind)),
            length_buckets=tuple(settings.length_buckets) if settings.length_buckets else None,
            only_full_batches=settings.xla,  # it compiles for each shape
        )

    @property
    def max_seq_length(self) -> int:
        """Tokens of one text that are encoded, special tokens included."""
        length = self.config.encoder.max_seq_length
        assert length is not None  # noqa: S101 - `resolve_embedding` sets it
        return length

    def with_prompt(self, prompt: str | None) -> EmbedJob:
        """The same with another prompt before each text; None: as it is."""
        if prompt is None:
            return self
        config = dataclasses.replace(self.config, encoder=dataclasses.replace(self.config.encoder, prompt=prompt))
        return dataclasses.replace(self, config=config, encoder=self.encoder.with_marker(prompt))

    def check_pairs(self, setting: str) -> None:
        """UsageError, which names the setting that asks for pairs, if the encoder's files do not say what they are."""
        if self.encoder.special.between is None:
            raise UsageError(
                f"{setting}: the tokenizer of {self.encoder.handle} says nothing about pairs of texts, or puts other "
                "special tokens around them; remove the pairs, or take an encoder that was trained on some"
            )

    def load_tensorflow(self, threads: int) -> None:
        """Set TensorFlow up for the configured device. UsageError if it is not found, and as `check_int8`."""
        try:
            load_tensorflow(Hardware(threads, self.config.encoder.device))
        except DeviceError as error:
            raise UsageError(str(error)) from error
        self.check_int8()

    def check_int8(self) -> None:
        """UsageError if the job needs products of int8 and this machine, where TensorFlow is loaded, has none."""
        if self.config.encoder.compute_dtype == "int8" and (problem := int8_problem()):
            raise UsageError(f"encoder.compute_dtype: {problem}")

    def load_encoder(self) -> Encoder:
        """The encoder with the layers that the views need, ready to be called. For the worker that encodes.

        VersionError if the worker's software is not the same as where the pipeline was built.
        """
        check_versions(self.versions)
        loading = _LOADING.pop(self._encoder_key, None)
        return self._load_encoder() if loading is None else loading.result()

    def begin_to_load_encoder(self) -> None:
        """Load the encoder in a thread; the next `load_encoder` in this process waits for it, and raises its error."""
        threads = ThreadPoolExecutor(1, thread_name_prefix="load encoder")
        _LOADING[self._encoder_key] = threads.submit(self._load_encoder)
        threads.shutdown(wait=False)

    def load_embedder(self, threads: int) -> Embedder:
        """The encoder and the views, for texts of a program. UsageError and VersionError."""
        from layerbeam.transforms.embedder import Embedder
        from layerbeam.transforms.encode.forward import Forward

        self.load_tensorflow(threads)
        return Embedder(Forward(self.load_encoder(), threads), self.encoder, self.views, self.sequences, self.encoding)

    @property
    def _encoder_key(self) -> str:
        layers, has_pooler = needed_layers(self.views), needs_pooler(self.views)
        dense = needed_dense(self.views)
        return f"{self.encoder.fingerprint} {self.config.encoder} {layers} {has_pooler} {dense}"

    def _load_encoder(self) -> Encoder:
        with placement(self.config.encoder.device):
            return load_encoder(
                self.encoder,
                layers=needed_layers(self.views),
                pooler=needs_pooler(self.views),
                compute_dtype=self.config.encoder.compute_dtype,
                calibration=self.config.encoder.calibration,
                xla=self.config.encoder.xla,
                dense=needed_dense(self.views),
            )


# Encoders that are being loaded, by what `_encoder_key` gives.
_LOADING: dict[str, Future[Encoder]] = {}


@dataclasses.dataclass(frozen=True)
class Job(EmbedJob):
    """Everything a run needs to know."""

    config: Config
    run_identity: RunIdentity
    output: Output
    limits: BlockLimits

    @property
    def records(self) -> RecordFormat:
        return self.config.input

    @property
    def sequences(self) -> SequenceSettings:
        return dataclasses.replace(super().sequences, records=self.records)


def resolve(config: Config) -> Job:
    """The job of a configuration. UsageError as `resolve_embedding`, or if the splitter cannot be imported here."""
    if config.output.path.startswith("hf://"):
        raise UsageError(f"output.path: {config.output.path}: {storage.NOT_WRITTEN}")
    splitter = config.input.splitter
    if splitter is not None:
        try:
            open_splitter(splitter, config.input.language)
        except SplitterError as error:
            raise UsageError(str(error)) from error
    job = resolve_embedding(config, words_are_given=config.input.has_words)
    for setting in ("pair_field", "pair_separator"):
        if getattr(config.input, setting) is not None:
            job.check_pairs(f"input.{setting}")
    if config.input.unit == "chunk" and config.input.chunk.tokens > job.max_seq_length:
        raise UsageError(
            f"input.chunk.tokens: is {config.input.chunk.tokens}; a text has at most encoder.max_seq_length = "
            f"{job.max_seq_length} tokens: lower it, or raise that"
        )
    return _make_job(dataclasses.replace(config, encoder=job.config.encoder, views=job.config.views), job)


def pin_inputs(config: Config) -> Config:
    """The configuration with the lines of lists for their names, and files of the Hub at the commits of now.

    The manifest then has these, and all workers read the same. UsageError if there are none.
    """
    files = []
    for path in itertools.chain.from_iterable(map(_listed, config.input.files)):
        if path.startswith("hf://") and (reason := storage.unsupported_reason(path)) is not None:
            raise UsageError(f"input.files: {path}: {reason}")
        try:
            files.append(storage.pin(path))
        except OSError as error:
            raise UsageError(f"input.files: {path}: {storage.reason_of(error)}") from error
    return dataclasses.replace(config, input=dataclasses.replace(config.input, files=files))


def _listed(path: str) -> list[str]:
    """The path, or the lines of a list of paths: files, as they are written, folders and globs."""
    if not path.startswith("@"):
        return [path]
    listed = [line for line in _read_lines("input.files", os.path.expanduser(path[1:])) if line.strip()]
    if not listed:
        raise UsageError(f"input.files: {path}: has no lines; give a path in each")
    for mistake in filter(None, map(find_secret, listed)):
        raise UsageError(f"input.files: {path}: {mistake}")
    missing = [
        line for line in listed if storage.is_local(line) and not (os.path.lexists(line) or glob.has_magic(line))
    ]
    if missing:
        what = f"{len(missing):,} of its {len(listed):,} lines name no file, such as {missing[0]!r}"
        raise UsageError(f"input.files: {path}: {what}; one path in each line, relative to the current folder")
    return [glob.escape(line) if os.path.isfile(line) else line for line in listed]


def with_format(job: Job, format_: Format) -> Job:
    """The job with an input of this format. UsageError if it lacks a setting that was given."""
    config = dataclasses.replace(job.config, input=dataclasses.replace(job.config.input, format=format_))
    mistakes = [f"input.{mistake}" for mistake in find_in_input(config.input, config.encoder)]
    if mistakes:
        raise UsageError("\n".join(f"{mistake}; the files are {INPUT_FORMATS[format_].title}" for mistake in mistakes))
    return _make_job(config, job)


def _make_job(config: Config, job: EmbedJob) -> Job:
    job = dataclasses.replace(job, views=tuple(_with_fields(view, config.input) for view in job.views))
    identity = _identify(config, job)
    settings = dataclasses.asdict(config)
    del settings["output"]["path"]  # equal runs into two folders are equal
    del settings["beam"]  # where it ran, perhaps with keys of stores
    run_identity = identify_run(identity, job.encoder.describe(), settings, job.versions)
    output = Output(config.output.path, run_identity["fingerprint"])
    limits = _block_limits(config, job)
    return Job(config, job.encoder, job.views, job.versions, job.notes, run_identity, output, limits)


def _with_fields(view: ViewSpec, records: RecordFormat) -> ViewSpec:
    """The view with the fields of its rows: those that have a value for each word only if rows are words or tokens."""
    types = {**({"id": "string"} if records.id_field is not None else {}), **records.kept_types}
    of_words = {name for name, type_ in types.items() if type_ != element_of(type_)}
    if of_words and view.format == "tfrecord" and view.level in ("token", "word"):
        raise UsageError(
            f"views.{view.name}.format: an example of tfrecord is a text, and {', '.join(sorted(of_words))} of "
            "input.keep_fields belongs to words; use parquet or jsonl"
        )
    left_out = set() if view.level == "token" or view.has_word_rows else of_words
    fields = ((name, element_of(type_)) for name, type_ in types.items())
    return dataclasses.replace(view, fields=tuple(field for field in fields if field[0] not in left_out))


def resolve_embedding(
    config: EmbedConfig, unsaid: Mapping[str, Any] = MappingProxyType({}), *, words_are_given: bool = False
) -> EmbedJob:
    """The encoder, of which only the small files are read, and the views with nothing left open.

    `unsaid`: settings of views of texts, where neither they nor the model's files say anything. `words_are_given`: a
    form of `keep_words` may be any word. UsageError if encoder and settings do not fit, or TensorFlow and TF Text.
    """
    try:
        installed = versions()
    except VersionError as error:
        raise UsageError(str(error)) from error
    encoder = _open_encoder(config.encoder)
    recipe = complete(encoder, config.encoder, config.views, unsaid)
    encoder, settings = _fit_encoder(encoder.with_marker(recipe.encoder.prompt or ""), recipe.encoder)
    config = dataclasses.replace(config, encoder=settings, views=dict(recipe.views))
    views = tuple(_resolve_view(name, settings, encoder, words_are_given) for name, settings in config.views.items())
    return EmbedJob(config, encoder, views, installed, recipe.notes)


def _open_encoder(settings: EncoderConfig) -> EncoderSource:
    try:
        encoder = open_encoder(
            settings.handle,
            do_lower_case=settings.do_lower_case,
            engine=settings.engine,
            adapter=settings.adapter,
        )
    except EncoderError as error:
        raise UsageError(f"encoder.{'adapter' if isinstance(error, AdapterError) else 'handle'}: {error}") from error
    return dataclasses.replace(encoder, special_in_text=settings.special_in_text)


def _fit_encoder(encoder: EncoderSource, settings: EncoderConfig) -> tuple[EncoderSource, EncoderConfig]:
    """The encoder, and the settings with `max_seq_length` and the texts of `calibration`, if it is given."""
    if encoder.engine == "savedmodel":
        for setting, only in (("compute_dtype", "float32"), ("xla", False)):
            if getattr(settings, setting) != only:
                raise UsageError(
                    f"encoder.{setting}: engine savedmodel runs {settings.handle} as it was saved "
                    f"({encoder.engine_because}); remove `{setting}`, or set engine: native for a plain BERT"
                )
    length = settings.max_seq_length or encoder.max_seq_length
    if length is None:
        raise UsageError(
            f"encoder.max_seq_length: the files of {settings.handle} do not say how many positions it has; give the "
            "tokens of the longest text that it takes, such as 512"
        )
    positions, buckets = encoder.max_position_embeddings, settings.length_buckets
    if positions is not None and length > positions:
        raise UsageError(
            f"encoder.max_seq_length: is {length}; {settings.handle} has {positions} positions, so at most {positions}"
        )
    special = encoder.special
    least = max(special.around_text + 1, special.around_pair)
    if length < least:
        raise UsageError(
            f"encoder.max_seq_length: is {length}; at least {least}, since {settings.handle} puts "
            f"{special.around_text} special tokens around a text and {special.around_pair} around a pair"
        )
    if encoder.cuts_left and settings.of_long_text == "truncate":
        raise UsageError(
            f"encoder.long_text: is truncate, and the tokenizer of {settings.handle} (truncation_side: left) takes "
            "away the start of a long text, which layerbeam does not: set long_text: window or reject"
        )
    room = length - special.around_text
    if settings.of_long_text == "window" and settings.window_overlap >= room:
        raise UsageError(
            f"encoder.window_overlap: is {settings.window_overlap}; it must be below max_seq_length - "
            f"{special.around_text} = {room}, or a window makes no progress"
        )
    calibration = _calibration_texts(settings.calibration)
    settings = dataclasses.replace(settings, max_seq_length=length, calibration=calibration)
    mistakes = [f"encoder.{mistake}" for mistake in find_in_encoder(settings)]
    if mistakes:
        raise UsageError("\n".join(mistakes))
    if positions is not None and buckets and buckets[-1] > positions:
        raise UsageError(
            f"encoder.length_buckets: ends with {buckets[-1]}; {settings.handle} has {positions} positions"
        )
    return encoder, settings


def _calibration_texts(given: Sequence[str] | str | None) -> list[str] | None:
    """The texts of `calibration`, a list or a file with one per line."""
    if given is None:
        return None
    where = "encoder.calibration"
    texts = [text for text in (_read_lines(where, given) if isinstance(given, str) else given) if text.strip()]
    size = sum(len(text.encode()) for text in texts)
    if not 0 < size <= _CALIBRATION_BYTES:
        raise UsageError(
            f"{where}: has {len(texts):,} texts of {size:,} bytes; give at least one, and at most "
            f"{_CALIBRATION_BYTES:,} bytes: a few hundred lines of your texts, short and long"
        )
    return texts


def _read_lines(where: str, file: str, *, or_else: str = "") -> list[str]:
    """The lines of a text file. UsageError, which ends with `or_else`, if it cannot be read."""
    try:
        return storage.read_bytes(file).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = storage.reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{where}: {file}: cannot be read ({why}){or_else}") from error


def _resolve_view(name: str, settings: ViewSettings, encoder: EncoderSource, words_are_given: bool) -> ViewSpec:
    """The view with absolute layers, none for the pooler, and the forms to keep."""
    try:
        layers = expand_layers(settings.layers or [], encoder.num_hidden_layers, settings.layer_numbering)
    except ValueError as error:
        raise UsageError(f"views.{name}.layers: {error}") from error
    pooler = settings.uses_pooler
    unsupported_reason = encoder.unsupported_reason(tuple(layers), pooler=pooler)
    if unsupported_reason is not None:
        raise UsageError(f"views.{name}.{'pooling' if pooler else 'layers'}: {encoder.handle}: {unsupported_reason}")
    forms = _forms_to_keep(f"views.{name}.keep_words", settings, encoder, words_are_given)
    resolved = {"layers": tuple(layers), "given_layers": tuple(layers.values()), "keep_words": forms}
    try:
        modules = tuple(open_dense(encoder, folder) for folder in settings.dense or ())
    except EncoderError as error:
        raise UsageError(f"views.{name}.dense: {error}") from error
    view = ViewSpec(
        **vars(settings) | resolved,
        name=name,
        hidden_size=encoder.hidden_size,
        dense_modules=modules,
        skip_token_ids=_skip_token_ids(f"views.{name}.skip_tokens", settings, encoder),
    )
    if view.level == "text" and view.pooling == "cls" and not encoder.special.before:
        raise UsageError(
            f"views.{name}.pooling: is cls, the vector of the special token before a text, and {encoder.handle} puts "
            "none there; take the pooling that the encoder was trained with, such as last or mean"
        )
    _check_widths(view)
    if view.truncate_dim is not None and view.truncate_dim > view.full_width:
        raise UsageError(
            f"views.{name}.truncate_dim: is {view.truncate_dim}; the vectors have {view.full_width} dimensions"
        )
    return view


def _check_widths(view: ViewSpec) -> None:
    """UsageError if a dense module takes vectors of another width than what is before it gives."""
    width, before = view.pooled_width, "layers, combine and pooling give"
    for module in view.dense_modules:
        if module.in_features != width:
            raise UsageError(
                f"views.{view.name}.dense: {module.folder} takes vectors of {module.in_features} dimensions "
                f"(in_features in its config.json), and {before} {width}; set them as the model was trained, or take "
                "the module that belongs to the encoder"
            )
        width, before = module.out_features, f"{module.folder} gives"


def expand_layers(
    layers: Sequence[int | str] | Literal["all"], num_layers: int, layer_numbering: str = "hidden_states"
) -> dict[int, int]:
    """{absolute number: the number with the sign that it was written with} of each layer, in the order given.

    `num_layers` is L; `layer_numbering` as in `ViewSettings`. ValueError for a layer that the encoder does not have or
    that occurs twice.

    >>> expand_layers([-1, "0..2"], 6)
    {6: -1, 0: 0, 1: 1, 2: 2}
    >>> list(expand_layers("all", 2))
    [0, 1, 2]
    >>> expand_layers([-1, 0], 2, "extract_features")
    {2: -1, 1: 0}
    """
    first = 1 if layer_numbering == "extract_features" else 0
    last = num_layers - first
    expanded: dict[int, int] = {}
    for item in [f"0..{last}"] if layers == "all" else layers:
        ends = [int(end) for end in str(item).split("..")]
        for layer in ends:
            if not -last - 1 <= layer <= last:
                raise ValueError(
                    f"there is no layer {layer}: the encoder has {num_layers} Transformer blocks, so layers 0 to "
                    f"{last} or -{last + 1} to -1"
                )
        start, stop = ends[0] % (last + 1), ends[-1] % (last + 1)
        step = 1 if stop >= start else -1
        for from_first in range(start, stop + step, step):
            from_last = from_first - last - 1
            if first + from_first in expanded:
                raise ValueError(f"layer {from_first} occurs twice ({from_first} and {from_last} are the same)")
            expanded[first + from_first] = from_last if str(item).startswith("-") else from_first
    return expanded


def _skip_token_ids(where: str, view: ViewSettings, encoder: EncoderSource) -> tuple[int, ...]:
    """The ids of `skip_tokens`. UsageError for one that the vocabulary does not have."""
    if not view.skip_tokens:
        return ()
    ids = {entry: number for number, entry in enumerate(encoder.vocabulary)}
    missing = [entry for entry in view.skip_tokens if entry not in ids]
    if missing:
        raise UsageError(
            f"{where}: {', '.join(map(repr, missing))}: no such entry in the vocabulary of {encoder.handle}; give "
            "whole entries as a view of tokens shows them in its column `token`, such as '.' or '##s', or remove them"
        )
    return tuple(ids[entry] for entry in view.skip_tokens)


def _forms_to_keep(
    where: str, view: ViewSettings, encoder: EncoderSource, words_are_given: bool
) -> tuple[str, ...] | None:
    """The forms of `keep_words`, a list or a file with one per line. UsageError for a form of several words."""
    given = view.keep_words
    if given is None:
        return None
    if isinstance(given, str):
        word = "" if os.path.splitext(given)[1] or os.sep in given else f"; for the word itself, give [{given}]"
        given = _read_lines(where, given, or_else=word)
    forms = tuple(dict.fromkeys(form.strip() for form in given if form.strip()))
    if not forms:
        raise UsageError(f"{where}: has no forms; name at least one, or remove it")
    if words_are_given:
        return forms
    of_forms = [form.split() for form in forms] if view.words == "whitespace" else _basic_words(forms, encoder)
    for form, words in zip(forms, of_forms, strict=True):
        if len(words) > 1:
            hint = "" if view.words == "whitespace" or " " in form else ", or use level word and words: whitespace"
            raise UsageError(
                f"{where}: {form!r} is several words ({', '.join(words)}) and would never match; name one of them{hint}"
            )
    return forms


def _basic_words(forms: Sequence[str], encoder: EncoderSource) -> list[list[str]]:
    """The words of each form, as views with `words: basic` have them."""
    if encoder.tokenizer == "tensorflow_text":
        reference = ReferenceWordPiece([], encoder.do_lower_case)
        return [reference.words(form) for form in forms]
    # Imported here: it loads Beam.
    from layerbeam.transforms.tokenize.tokenizer import load_text_tokenizer

    return load_text_tokenizer(encoder).tokenize(pa.array(forms, pa.string())).words()


def _identify(config: Config, job: EmbedJob) -> dict[str, Any]:
    """The fingerprint's content: encoder and settings that decide rows, columns, values or where blocks end."""
    settings = dataclasses.asdict(config)
    for name in ("files", "max_missing", "max_reject_rate"):
        del settings["input"][name]
    settings["input"]["quote"] = config.input.quote_mark
    for name in ("escape", "shard"):
        if settings["input"][name] is None:  # as before there was this setting
            del settings["input"][name]
    if config.input.words == "in_text":  # the same
        del settings["input"]["words"]
    if config.input.splitter is None:
        del settings["input"]["sentences"], settings["input"]["language"]
    if config.input.unit != "chunk":
        del settings["input"]["chunk"]
    for view in job.views:
        of_view = settings["views"][view.name]
        if view.level == "text":  # a column that folders of earlier versions do not have
            of_view["num_unknown"] = True
        del of_view["layer_numbering"]
        of_view |= {"layers": list(view.layers), "keep_words": view.keep_words and list(view.keep_words)}
        of_view["dense"] = [" ".join(map(str, dataclasses.astuple(module))) for module in view.dense_modules]
        if view.is_extract_features:  # its lines show how each layer was written in the configuration
            of_view["given_layers"] = list(view.given_layers)
    # What a word is has changed for these tokenizers: a folder has words of one kind.
    of_words = config.input.unit == "chunk" or {"token", "word", "word_type"} & {view.level for view in job.views}
    words = {"words": 2} if of_words and job.encoder.tokenizer == "tokenizers" else {}
    in_encoder = ("max_seq_length", "long_text", "context", "window_overlap", "compute_dtype", "prompt")
    return {
        "schema_version": SCHEMA_VERSION,
        "input": settings["input"],
        "encoder": {
            "fingerprint": job.encoder.fingerprint,
            "engine": job.encoder.engine,  # engines differ by rounding only, but the manifest names one
            "do_lower_case": job.encoder.do_lower_case,
            **words,
            **{name: settings["encoder"][name] for name in in_encoder},
            **({"special_in_text": chosen} if (chosen := config.encoder.special_in_text) else {}),
            **({"calibration": _calibration_hash(config.encoder)} if config.encoder.compute_dtype == "int8" else {}),
        },
        "views": settings["views"],
        "output": {"target_part_bytes": config.output.target_part_bytes},
    }


def _assumed_text_bytes(records: RecordFormat) -> int | None:
    """Bytes of a record from one of its texts to the next; None if a record is one text."""
    if records.unit == "chunk":
        return max(records.chunk.tokens - records.chunk.overlap, 1) * BYTES_PER_TOKEN
    return _SENTENCE_BYTES if records.unit == "sentence" else None


def _calibration_hash(settings: EncoderConfig) -> str:
    """SHA-256 of the texts that decide the codes of int8."""
    if settings.calibration is None:
        return sha256_of(CALIBRATION)
    return hashlib.sha256("\n".join(settings.calibration).encode()).hexdigest()


def _block_limits(config: Config, job: EmbedJob) -> BlockLimits:
    """How much goes into a block, so that the part of its largest view stays near `target_part_bytes`."""
    views, given = job.views, config.output.target_part_bytes
    part_bytes = given or _PART_BYTES
    # A block has fewer words than tokens: counting words as tokens is on the safe side.
    of_tokens = [view for view in views if view.has_token_vectors or view.has_word_rows]
    shares = (row_bytes(view) / (_FEWER_WORDS if view.keep_words else 1) for view in of_tokens)
    token_row_bytes = max((math.ceil(share) for share in shares), default=1)
    of_texts = [view for view in views if view.level in ("text", "record") and not view.has_vector_lists]
    text_row_bytes = max(map(row_bytes, of_texts), default=1)
    edit_tokens = max(_EDIT_TOKENS, _EDIT_BATCHES * config.encoder.batch_tokens)
    has_few_rows = all(view.keep_words for view in views)
    # The rows of a file can be told apart in a part that several share, by the column `file`, and taken out.
    have_file = not any(view.aggregates or view.is_extract_features for view in views)
    return BlockLimits(
        text_bytes=config.input.slice_bytes,
        token_rows=max(part_bytes // token_row_bytes, 1),
        text_rows=max(part_bytes // text_row_bytes, 1),
        max_seq_length=job.max_seq_length if config.encoder.of_long_text != "window" else _NO_LIMIT,
        sentence_bytes=_assumed_text_bytes(config.input),
        joins_files=have_file and config.input.limit is None,
        edit_tokens=_NO_LIMIT if given or has_few_rows else edit_tokens,
    )
