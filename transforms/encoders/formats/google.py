"""Checkpoints as google-research/bert released them: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`.

Uncased, cased, whole word masking, multilingual, Chinese, Large, the small ones, and models fine-tuned from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from layerbeam.transforms.encoders.architectures import Architecture, Bert
from layerbeam.transforms.encoders.config_file import ConfigFile, EncoderError
from layerbeam.transforms.encoders.formats.weights import Checkpoint, Tensor, find_weights
from layerbeam.transforms.encoders.source import (
    EncoderSource,
    LocalFolder,
    casing_of,
    common_fields,
    native_source,
    read_vocabulary,
    sha256_of_files,
)
from layerbeam.transforms.flow.blocks import Float32Array

# `layer_norm` of modeling.py calls tf.contrib.layers.layer_norm, whose variance epsilon for float32 is this.
_LAYER_NORM_EPS = 1e-12


def open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None) -> EncoderSource:
    """The encoder in a folder. EncoderError if it cannot be used."""
    folder = located.folder
    config_file = folder / "bert_config.json"
    config = ConfigFile(handle, config_file)
    if config.fields.get("hidden_act") != "gelu":
        raise config.wrong("hidden_act", '"gelu"')
    # `gelu` of modeling.py is the tanh approximation.
    bert = Bert.of_sizes(config, hidden_act="gelu_tanh", layer_norm_eps=_LAYER_NORM_EPS)
    prefix = _find_checkpoint(handle, folder)
    checkpoint = Checkpoint(handle, prefix)
    found = {
        name: Tensor(str(prefix), name, checkpoint.dtypes[name].name, tuple(shape))
        for name, shape in sorted(checkpoint.shapes.items())
    }
    tensors = find_weights(
        handle,
        config_file,
        bert,
        found,
        spellings=lambda name: (name,),
        is_turned=False,
        dtypes=("float16", "bfloat16", "float32", "float64"),
        words=("variable", "checkpoint", "floats"),
    )
    checkpoint.check(tensors)
    vocabulary = read_vocabulary(handle, folder / "vocab.txt", bert.vocab_size)
    weight_files = [str(path) for path in sorted(folder.glob(f"{prefix.name}.*")) if path.suffix != ".meta"]
    casing = casing_of(do_lower_case, None, located, vocabulary)
    return native_source(
        kind="google",
        engine_because="bert_config.json says plain BERT",
        architecture=bert,
        has_pooler="bert/pooler/dense/kernel" in tensors,
        **common_fields(
            handle, located, weight_files, vocabulary, bert.vocab_size, casing, bert, sha256_of_files(weight_files)
        ),
    )


def read_weights(source: EncoderSource, architecture: Architecture) -> Mapping[str, Float32Array]:
    """{name of `weight_shapes`: float32 array}, each read at its access. EncoderError for a damaged checkpoint."""
    shapes = architecture.weight_shapes(pooler=source.has_pooler)
    prefix = _find_checkpoint(source.handle, Path(source.folder))
    return Checkpoint(source.handle, prefix).weights({name: name for name in shapes}, shapes)


def _find_checkpoint(handle: str, folder: Path) -> Path:
    """`bert_model.ckpt`, or the only checkpoint in the folder: fine-tuning gives it another name."""
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    named = [path for path in found if path.name == "bert_model.ckpt"]
    if named or len(found) == 1:
        return (named or found)[0]
    names = ", ".join(path.name for path in found)
    what = (
        f"holds several checkpoints ({names}) and none is bert_model.ckpt: keep one"
        if found
        else ("has no bert_model.ckpt.index, which lists the weights: download it too")
    )
    raise EncoderError(f"{handle}: {folder} {what}")
