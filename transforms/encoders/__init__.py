"""Open an encoder from a handle: what it is, from its files; its weights; the runnable forward pass.

`locate` makes a handle a folder on this machine; the files in it tell which of `saved_model`, `google` and
`huggingface` reads it. A further kind of source is one more such module and one more line in each table here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.bert import ComputeDtype, blocks_needed, weight_shapes
from layerbeam.transforms.encoders.fetch.cache import MARKS, SUPPORTED, Located
from layerbeam.transforms.encoders.fetch.locate import locate
from layerbeam.transforms.encoders.formats import google, huggingface, saved_model
from layerbeam.transforms.encoders.source import EncoderError, EncoderSource, at, first_line, unreadable

if TYPE_CHECKING:
    from layerbeam.transforms.encode.forward import Encoder

__all__ = ["EncoderError", "EncoderSource", "load_encoder", "load_weights", "open_encoder"]

_READ_WEIGHTS: dict[str, Callable[..., Mapping[str, Float32Array]]] = {
    "savedmodel": saved_model.read_weights,
    "google": google.read_weights,
    "huggingface": huggingface.read_weights,
}
ENGINES = ("auto", "native", "savedmodel")

# What comes of files that somebody made or bytes that got lost: an index that leads nowhere, say. EncoderError is a
# ValueError. AttributeError and AssertionError are mistakes of ours, and stay.
_DAMAGE = (ValueError, LookupError, TypeError, OverflowError, RecursionError, EOFError)


def open_encoder(handle: str, *, do_lower_case: bool | None = None, engine: str = "auto") -> EncoderSource:
    """What lies behind a handle, from its small files and a hash over the weights. What lies elsewhere is fetched.

    `do_lower_case` None: as the encoder's own files say. `engine` auto: native where it is plain BERT. TensorFlow is
    imported for TF Hub's and Google's formats only. EncoderError for anything that cannot be used.
    """
    if engine not in ENGINES:
        raise EncoderError(f"{handle}: engine is {engine!r}; allowed: {', '.join(ENGINES)}")
    try:
        located = locate(handle)
        try:
            return _open_folder(handle, located, do_lower_case, engine)
        except _DAMAGE as error:
            again = f" (it was fetched into {located.copy}: delete that to fetch it again)" if located.copy else ""
            what = f"{at(handle, located.folder)}: cannot be read ({type(error).__name__}: {first_line(error)})"
            said = str(error) if isinstance(error, EncoderError) else f"{what}; download it again"
            raise EncoderError(said + again) from error
    except OSError as error:
        raise unreadable(handle, error) from error


def _open_folder(handle: str, located: Located, do_lower_case: bool | None, engine: str) -> EncoderSource:
    folder = located.folder
    names = sorted(path.name for path in folder.iterdir())
    if "saved_model.pb" in names:
        return saved_model.open_folder(handle, located, do_lower_case, engine)
    if engine == "savedmodel":
        raise EncoderError(f"{handle}: engine savedmodel needs a SavedModel, and {folder} has no saved_model.pb")
    # Repositories at Hugging Face may hold the configuration of the checkpoint that they were made from, too.
    if "config.json" in names:
        return huggingface.open_folder(handle, located, do_lower_case)
    if "bert_config.json" in names:
        return google.open_folder(handle, located, do_lower_case)
    found = f"{', '.join(names[:8]) or 'nothing'}{', ...' if len(names) > 8 else ''}"
    weights = next((name for name in names if name.endswith(".safetensors")), None)
    if weights is not None:
        raise EncoderError(f"{handle}: holds {found}, and no config.json, which belongs to {weights}: download it too")
    raise EncoderError(f"{handle}: holds {found}, and none of {', '.join(MARKS)}; {SUPPORTED}")


def load_weights(source: EncoderSource, names: Iterable[str] | None = None) -> Mapping[str, Float32Array]:
    """{name of `weight_shapes`: float32 array} of these weights, of all where None.

    EncoderError where the files are no longer right, or it is no plain BERT.
    """
    if source.config is None:
        raise EncoderError(f"{source.handle}: {source.engine_because}, so its weights have no names here")
    return _READ_WEIGHTS[source.kind](source, source.config, names)


def load_encoder(
    source: EncoderSource,
    *,
    layers: Sequence[int],
    pooler: bool,
    compute_dtype: ComputeDtype = "float32",
    xla: bool = False,
) -> Encoder:
    """The forward pass for these layers (0 to L, in this order), ready to be called. Imports TensorFlow.

    A worker elsewhere fetches the files first. `compute_dtype` and `xla` are for engine native. EncoderError where the
    encoder does not give this, or is another by now.
    """
    source.check(layers, pooler=pooler)
    here = open_encoder(source.handle, do_lower_case=source.do_lower_case, engine=source.engine)
    if here.fingerprint != source.fingerprint:
        raise EncoderError(f"{source.handle}: is another encoder now than when the run was started; start it again")
    return _load(here, layers=layers, pooler=pooler, compute_dtype=compute_dtype, xla=xla)


def _load(
    source: EncoderSource, *, layers: Sequence[int], pooler: bool, compute_dtype: ComputeDtype, xla: bool
) -> Encoder:
    if source.engine == "savedmodel" or source.config is None:
        from layerbeam.transforms.encoders.formats.saved_model_engine import SavedModelEncoder

        return SavedModelEncoder(
            source.folder,
            saved_model.load_interface(source),
            num_layers=source.num_hidden_layers,
            layers=layers,
            pooler=pooler,
            pad_id=source.pad_id,
        )
    from layerbeam.transforms.encoders.bert import Bert

    num_blocks = blocks_needed(source.config, layers, pooler=pooler)
    weights = load_weights(source, weight_shapes(source.config, num_blocks=num_blocks, pooler=pooler))
    bert = Bert(
        source.config,
        weights,
        layers=layers,
        pooler=pooler,
        pad_id=source.pad_id,
        compute_dtype=compute_dtype,
        xla=xla,
    )
    if not xla:  # which compiles for each shape
        # The first pass optimizes the graph and packs the weights: once, here, and not by all threads at once.
        one_token = np.full((1, 1), source.pad_id, np.int32)
        bert(one_token, np.ones(1, np.int32), np.zeros_like(one_token))
    return bert
