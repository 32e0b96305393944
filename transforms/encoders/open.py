"""Open an encoder from its handle, load its weights, and build the forward pass.

`locate` turns a handle into a local folder; the files in it decide which of `saved_model`, `google` and `huggingface`
reads it. A new source format is one more such module and one more line in each table here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from layerbeam.transforms.encoders.adapter import MergedWeights, add_adapter
from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.calibrate import calibrate
from layerbeam.transforms.encoders.config_file import EncoderError, at, first_line
from layerbeam.transforms.encoders.dense import load_dense
from layerbeam.transforms.encoders.fetch.cache import MARKS, SUPPORTED
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats import google, huggingface, minilm, saved_model
from layerbeam.transforms.encoders.formats.tokenizer_json import read_tokenizer_json
from layerbeam.transforms.encoders.network import ComputeDtype, Network
from layerbeam.transforms.encoders.onednn import int8_problem
from layerbeam.transforms.encoders.source import EncoderSource, LocalFolder, Vocabulary, read_vocabulary
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.views.view import DenseModule

if TYPE_CHECKING:
    from layerbeam.transforms.encode.forward import Encoder
    from layerbeam.transforms.encoders.formats.saved_model.interface import SavedModelEncoder

_READ_WEIGHTS: Mapping[str, Callable[[EncoderSource, Architecture], Mapping[str, Float32Array]]] = {
    "savedmodel": saved_model.read_weights,
    "google": google.read_weights,
    "huggingface": huggingface.read_weights,
}
ENGINES = ("auto", "native", "savedmodel")

# What damaged or hostile files cause, such as an index out of range. EncoderError is a ValueError. AttributeError and
# AssertionError are not here: they are our own bugs.
_DAMAGE = (ValueError, LookupError, TypeError, OverflowError, RecursionError, EOFError)


def open_encoder(
    handle: str, *, do_lower_case: bool | None = None, engine: str = "auto", adapter: str | None = None
) -> EncoderSource:
    """The encoder behind a handle, from its small files and a hash of its weights. Fetches what is not local.

    `do_lower_case` None: as the encoder's own files say. `engine` auto: native for plain BERT. `adapter`: the handle of
    a LoRA adapter. Imports TensorFlow only for the formats of TF Hub and Google. Raises EncoderError if the encoder
    cannot be used, and AdapterError if the adapter cannot.
    """
    source = _open(handle, do_lower_case, engine)
    return source if adapter is None else add_adapter(source, adapter)


def _open(handle: str, do_lower_case: bool | None, engine: str) -> EncoderSource:
    if engine not in ENGINES:
        raise EncoderError(f"{handle}: engine is {engine!r}; allowed: {', '.join(ENGINES)}")
    try:
        located = locate(handle)
        try:
            source = _open_folder(handle, located, do_lower_case, engine)
            if handle == "minilm":
                minilm.check_weights(source)
            return source
        except _DAMAGE as error:
            again = ""
            if located.copy:
                again = f" (it was fetched into {located.copy}: delete that to fetch it again)"
            elif handle == "minilm":
                again = f"; run: {minilm.REINSTALL}"
            place = f"{at(handle, located.folder)}: cannot be read"
            reason = f"{place} ({type(error).__name__}: {first_line(error)}); download it again"
            raise EncoderError((str(error) if isinstance(error, EncoderError) else reason) + again) from error
    except OSError as error:  # of a file that exists but cannot be read; its content may be fine
        file = error.filename
        place = at(handle, Path(os.fsdecode(file))) if isinstance(file, (str, bytes)) else handle
        raise EncoderError(f"{place}: cannot be read: {error.strerror or error}") from error


def _open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None, engine: str) -> EncoderSource:
    folder = located.folder
    names = sorted(path.name for path in folder.iterdir() if not path.is_fifo())  # reading one waits for a writer
    if "saved_model.pb" in names:
        return saved_model.open_folder(handle, located, do_lower_case, engine)
    if engine == "savedmodel":
        raise EncoderError(f"{handle}: engine savedmodel needs a SavedModel, and {folder} has no saved_model.pb")
    # A repository at Hugging Face may also hold the configuration of the checkpoint that it was converted from.
    if "config.json" in names:
        return huggingface.open_folder(handle, located, do_lower_case)
    if "bert_config.json" in names:
        return google.open_folder(handle, located, do_lower_case)
    if "adapter_config.json" in names:
        raise EncoderError(
            f"{handle}: is an adapter, not an encoder: give it as encoder.adapter, and the encoder for which it was "
            "trained as encoder.handle"
        )
    found = f"{', '.join(names[:8]) or 'nothing'}{', ...' if len(names) > 8 else ''}"
    weights = next((name for name in names if name.endswith(".safetensors")), None)
    if weights is not None:
        raise EncoderError(f"{handle}: holds {found}, and no config.json, which belongs to {weights}: download it too")
    raise EncoderError(f"{handle}: holds {found}, and none of {', '.join(MARKS)}; {SUPPORTED}")


def load_weights(source: EncoderSource) -> Mapping[str, Float32Array]:
    """{name of `weight_shapes`: float32 array}, each read at its access.

    Raises EncoderError, here or at an access, if the files have changed or the architecture is not known.
    """
    if source.architecture is None:
        raise EncoderError(f"{source.handle}: {source.engine_because}, so its weights have no names here")
    weights = _READ_WEIGHTS[source.kind](source, source.architecture)
    return weights if source.adapter is None else MergedWeights(source.adapter, weights)


def load_vocabulary(source: EncoderSource) -> Vocabulary:
    """The encoder's vocabulary. A worker on another machine fetches the files first. EncoderError if it has changed."""
    if not Path(source.folder, source.vocabulary_file).is_file():
        source = _open_again(source)
    file = Path(source.folder, source.vocabulary_file)
    if file.suffix == ".json":
        casing = source.do_lower_case if source.tokenizer == "tensorflow_text" else None
        vocabulary = read_tokenizer_json(source.handle, file, source.vocab_size, casing).vocabulary
    else:
        vocabulary = read_vocabulary(source.handle, file, source.vocab_size)
    if vocabulary.sha256 != source.vocabulary_sha256:
        raise _changed(source)
    return vocabulary


def load_encoder(
    source: EncoderSource,
    *,
    layers: Sequence[int],
    pooler: bool,
    compute_dtype: ComputeDtype = "float32",
    calibration: Sequence[str] | None = None,
    xla: bool = False,
    dense: Sequence[DenseModule] = (),
) -> Encoder:
    """The forward pass for these layers (0 to L, in this order), ready to be called. Imports TensorFlow.

    A worker on another machine fetches the files first. `compute_dtype` and `xla` are for the native engine. `dense`:
    modules that are loaded with it, as `open_dense` gave them.
    `calibration`: the `texts` of `calibrate`, for int8. Raises EncoderError if the encoder cannot give these layers, or
    has changed since it was opened.
    """
    source.check(layers, pooler=pooler)
    here = _open_again(source)
    encoder: Network | SavedModelEncoder
    if here.engine == "savedmodel" or here.architecture is None:
        encoder = saved_model.load_saved_model(here, layers=layers, pooler=pooler)
    else:
        encoder = _load_network(here, here.architecture, layers, pooler, compute_dtype, calibration, xla)
    encoder.dense_modules = {module: load_dense(here, module) for module in dense}
    return encoder


def _load_network(
    here: EncoderSource,
    architecture: Architecture,
    layers: Sequence[int],
    pooler: bool,
    compute_dtype: ComputeDtype,
    calibration: Sequence[str] | None,
    xla: bool,
) -> Network:
    """The forward pass of the native engine, called once."""
    if compute_dtype == "int8" and (problem := int8_problem()):
        raise EncoderError(f"{here.handle}: compute_dtype: {problem}")
    weights = load_weights(here)
    codes = {}
    if compute_dtype == "int8":
        codes = calibrate(here, weights, layers, pooler=pooler, texts=calibration)
    network = Network(
        architecture,
        weights,
        layers=layers,
        pooler=pooler,
        pad_id=here.special.pad,
        has_segments=here.has_segments,
        compute_dtype=compute_dtype,
        codes=codes,
        xla=xla,
    )
    if not xla:  # XLA compiles for each shape
        # The first pass optimizes the graph and packs the weights: once, here, and not in all threads at once.
        one_token = np.full((1, 1), network.pad_id, np.int32)
        network(one_token, np.ones(1, np.int32), np.zeros_like(one_token))
    return network


def _open_again(source: EncoderSource) -> EncoderSource:
    """The same encoder, with its files on this machine. EncoderError if it has changed."""
    adapter = source.adapter.handle if source.adapter else None
    here = open_encoder(source.pinned, do_lower_case=source.do_lower_case, engine=source.engine, adapter=adapter)
    if here.fingerprint != source.fingerprint:
        raise _changed(source)
    return dataclasses.replace(here, handle=source.handle, special=source.special, marker=source.marker)


def _changed(source: EncoderSource) -> EncoderError:
    return EncoderError(f"{source.handle}: has changed since the run was started; start it again")
