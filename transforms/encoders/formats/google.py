"""Checkpoints as google-research/bert released them: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`.

Uncased, cased, whole word masking, multilingual, Chinese, Large, the small ones, and models fine-tuned from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.bert import BertConfig, weight_shapes
from layerbeam.transforms.encoders.fetch.cache import LocalFolder
from layerbeam.transforms.encoders.formats.checkpoint import check_data, open_checkpoint, read_variables
from layerbeam.transforms.encoders.formats.vocabulary import decide_casing, read_vocabulary
from layerbeam.transforms.encoders.source import (
    EncoderError,
    EncoderSource,
    check_config,
    check_depth,
    fingerprint,
    native_source,
    read_json,
    wrong_field,
)

# `layer_norm` of modeling.py calls tf.contrib.layers.layer_norm, whose variance epsilon for float32 is this.
_LAYER_NORM_EPS = 1e-12


def open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None) -> EncoderSource:
    """The encoder in a folder. EncoderError if it cannot be used."""
    folder = located.folder
    config = _read_config(handle, folder / "bert_config.json")
    vocabulary = read_vocabulary(handle, folder / "vocab.txt", vocab_size=config.vocab_size)
    prefix = _find_checkpoint(handle, folder)
    shapes = _check_variables(handle, prefix, config)
    do_lower_case, casing_from = decide_casing(do_lower_case, None, located.names, vocabulary)
    weight_files = tuple(str(path) for path in sorted(folder.glob(f"{prefix.name}.*")) if path.suffix != ".meta")
    return native_source(
        handle=handle,
        kind="google",
        engine_because="bert_config.json says plain BERT",
        folder=str(folder),
        weight_files=weight_files,
        config=config,
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
        casing_from=casing_from,
        has_pooler="bert/pooler/dense/kernel" in shapes,
        fingerprint=fingerprint(weight_files, folder / "vocab.txt", config),
    )


def read_weights(source: EncoderSource, config: BertConfig, names: Iterable[str] | None) -> dict[str, Float32Array]:
    """{name of `weight_shapes`: float32 array}, of all if `names` is None. EncoderError for a damaged checkpoint."""
    prefix = _find_checkpoint(source.handle, Path(source.folder))
    if names is None:
        names = weight_shapes(config, pooler=source.has_pooler)
    return read_variables(source.handle, open_checkpoint(source.handle, prefix), prefix, {name: name for name in names})


def _read_config(handle: str, path: Path) -> BertConfig:
    fields = read_json(handle, path)
    if fields.get("hidden_act") != "gelu":
        raise wrong_field(handle, path, fields, "hidden_act", '"gelu"')
    check_config(handle, path, fields)
    # `gelu` of modeling.py is the tanh approximation.
    return BertConfig.from_fields(fields, hidden_act="gelu_tanh", layer_norm_eps=_LAYER_NORM_EPS)


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


def _check_variables(handle: str, prefix: Path, config: BertConfig) -> dict[str, list[int]]:
    """{name: shape} of the encoder's variables, without heads and optimizer, and without an incomplete pooler.

    EncoderError if one is missing, damaged, or not as the configuration says.
    """
    reader = open_checkpoint(handle, prefix)
    found = reader.get_variable_to_shape_map()
    check_depth(handle, prefix.parent / "bert_config.json", config, len(found))
    shapes = {}
    for name, shape in weight_shapes(config).items():
        if name not in found:
            if name.startswith("bert/pooler"):
                continue
            raise EncoderError(
                f"{handle}: {prefix}: no variable {name} among {len(found)}, such as {', '.join(sorted(found)[:3])}; "
                "bert_config.json and checkpoint do not belong together: download both again"
            )
        dtype = reader.get_variable_to_dtype_map()[name]
        if tuple(found[name]) != shape or not dtype.is_floating:
            raise EncoderError(
                f"{handle}: {prefix}: {name} is {dtype.name} {found[name]}; by bert_config.json it must be floats "
                f"{list(shape)}: take the bert_config.json that belongs to the checkpoint"
            )
        shapes[name] = found[name]
    # Read the data now, so that damage shows before the job starts.
    check_data(handle, reader, prefix, shapes)
    pooler = [name for name in shapes if name.startswith("bert/pooler")]
    return shapes if len(pooler) == 2 else {name: shapes[name] for name in shapes if name not in pooler}
