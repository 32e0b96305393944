"""SavedModels of TF Hub, read from their files; plain BERT goes to the native engine.

Layout: tf-models-official's `export_tfhub_lib.py` (versions 3 and 4 of tfhub.dev/tensorflow/bert_*). The variables are
those that the inference function captures, so that heads do not count.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.bert import BertConfig, weight_shapes
from layerbeam.transforms.encoders.fetch.cache import LocalFolder
from layerbeam.transforms.encoders.formats.checkpoint import (
    check_data,
    open_checkpoint,
    read_variable,
    read_variables,
    variable_keys,
)
from layerbeam.transforms.encoders.formats.saved_model.graph import UnlikeBertError, missing_operation, read_graph
from layerbeam.transforms.encoders.formats.saved_model.interface import Interface, InterfaceError, read_interface
from layerbeam.transforms.encoders.formats.vocabulary import decide_casing, read_vocabulary
from layerbeam.transforms.encoders.source import EncoderError, EncoderSource, fingerprint, native_source
from layerbeam.transforms.hardware import import_tensorflow

_LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"
_NAMES = {
    "word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    "type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "embeddings/layer_norm/": "bert/embeddings/LayerNorm/",
    "self_attention/attention_output/": "attention/output/dense/",
    "self_attention_layer_norm/": "attention/output/LayerNorm/",
    "self_attention/": "attention/self/",
    "intermediate/": "intermediate/dense/",
    "output/": "output/dense/",
    "output_layer_norm/": "output/LayerNorm/",
    "pooler_transform/": "bert/pooler/dense/",
}


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable that the encoder reads: its shape and its key in the checkpoint."""

    shape: tuple[int, ...]
    key: str


@dataclasses.dataclass(frozen=True)
class _Content:
    """The content of a SavedModel.

    `repeated`: names that several variables share. `graph`: the FunctionDefs. `assets`: {attribute: file}.
    """

    interface: Interface
    variables: Mapping[str, Variable]
    repeated: Sequence[str]
    graph: Any
    assets: Mapping[str, str]
    do_lower_case: bool | None


def open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None, engine: str) -> EncoderSource:
    """The encoder in a folder, for the requested or fitting engine. EncoderError if it cannot be used."""
    folder = located.folder
    content = _read(handle, folder)
    # Read all data now, so that damage shows before the job starts. Heads too: TensorFlow restores them with the rest.
    reader = open_checkpoint(handle, _prefix(folder))
    check_data(handle, reader, _prefix(folder), sorted(reader.get_variable_to_shape_map()))
    vocabulary_file = _vocabulary_file(handle, folder, content.assets)
    config, because = _plain_bert(content)
    if engine == "native" and config is None:
        raise EncoderError(f"{handle}: engine native runs plain BERT only, and {because}; take engine savedmodel")
    shapes = {name: variable.shape for name, variable in content.variables.items()}
    vocabulary = read_vocabulary(handle, vocabulary_file, vocab_size=_rows_of(shapes, "word_embedding"))
    declared = None if content.do_lower_case is None else (content.do_lower_case, "do_lower_case of the SavedModel")
    casing = decide_casing(do_lower_case, declared, located.names, vocabulary)
    data = sorted(folder.glob("variables/variables.*"))
    weight_files = tuple(str(path) for path in (folder / "saved_model.pb", *data))
    common: dict[str, Any] = {
        "handle": handle,
        "kind": "savedmodel",
        "folder": str(folder),
        "weight_files": weight_files,
        "vocabulary": vocabulary,
        "do_lower_case": casing[0],
        "casing_from": casing[1],
        # The same for both engines, whose outputs differ by rounding only.
        "fingerprint": fingerprint(weight_files, vocabulary_file, None),
    }
    if config is not None and engine != "savedmodel":
        has_pooler = any(name.endswith("pooler_transform/kernel") for name in shapes)
        return native_source(config=config, has_pooler=has_pooler, engine_because=because, **common)
    missing = missing_operation(content.graph)
    if missing is not None:
        raise EncoderError(
            f"{handle}: {folder / 'saved_model.pb'}: needs the operation {missing}, which TensorFlow does not have; "
            "take an encoder of TensorFlow's own operations"
        )
    interface = content.interface
    num_layers = len(interface.layers) or _count_blocks(shapes)
    return EncoderSource(
        engine="savedmodel",
        engine_because=because if config is None else "engine savedmodel was asked for",
        config=config,
        hidden_size=interface.hidden_size,
        num_hidden_layers=num_layers,
        layers=tuple(range(1, num_layers + 1)) if interface.layers else (num_layers,),
        max_position_embeddings=_rows_of(shapes, "position_embedding"),
        has_pooler=interface.pooled_output is not None,
        **common,
    )


def read_weights(source: EncoderSource, config: BertConfig, names: Iterable[str] | None) -> dict[str, Float32Array]:
    """{name of `weight_shapes`: float32 array} of a plain BERT, or of all if `names` is None."""
    folder = Path(source.folder)
    variables = _canonical(_read(source.handle, folder).variables)
    shapes = weight_shapes(config, pooler=source.has_pooler)
    prefix = _prefix(folder)
    keys = {name: variables[name].key for name in (shapes if names is None else names)}
    weights = read_variables(source.handle, open_checkpoint(source.handle, prefix), prefix, keys)
    # In the exporter's attention, heads and their sizes are separate axes.
    return {name: values.reshape(shapes[name]) for name, values in weights.items()}


def load_interface(source: EncoderSource) -> Interface:
    """How the SavedModel of an opened source is called."""
    return _read(source.handle, Path(source.folder)).interface


def _prefix(folder: Path) -> Path:
    return folder / "variables" / "variables"


def _read(handle: str, folder: Path) -> _Content:
    """The content of `saved_model.pb` and its checkpoint. EncoderError if it is not a text encoder."""
    path, prefix = folder / "saved_model.pb", _prefix(folder)
    graph = _parse(handle, path)
    objects = graph.object_graph_def
    attributes = {child.local_name: objects.nodes[child.node_id] for child in objects.nodes[0].children}
    assets = _read_assets(handle, graph, attributes)
    function, interface = _inference_function(handle, path, objects, attributes)
    inputs = (objects.nodes[index] for index in function.bound_inputs)
    captured = [node.variable for node in inputs if node.WhichOneof("kind") == "variable"]
    reader = open_checkpoint(handle, prefix)
    variables, repeated = _find_variables(handle, prefix, reader, captured)
    lower_case = None
    if "do_lower_case" in attributes and reader.has_tensor(_LOWER_CASE):
        lower_case = bool(np.all(read_variable(handle, reader, prefix, _LOWER_CASE)))
    return _Content(interface, variables, repeated, graph.graph_def.library.function, assets, lower_case)


def _parse(handle: str, path: Path) -> Any:
    """The first MetaGraphDef that holds objects of TensorFlow 2."""
    import_tensorflow()
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if path.with_name("tfhub_module.pb").is_file():
        raise EncoderError(
            f"{handle}: {path.parent} is a module of TensorFlow 1 (tfhub_module.pb); take a newer version"
        )
    saved, content = SavedModel(), path.read_bytes()
    try:
        saved.ParseFromString(content)
    except Exception as error:  # google.protobuf's DecodeError
        raise EncoderError(f"{handle}: {path}: is not a SavedModel ({error}); download it again") from None
    for graph in saved.meta_graphs:
        if graph.object_graph_def.nodes:
            return graph
    raise EncoderError(f"{handle}: {path}: holds no objects of TensorFlow 2; take a newer version of the model")


def _read_assets(handle: str, graph: Any, attributes: Mapping[str, Any]) -> dict[str, str]:
    """{attribute: path of its file in the folder}. EncoderError for a SentencePiece model in place of a vocabulary."""
    assets = {
        name: f"assets/{graph.asset_file_def[node.asset.asset_file_def_index].filename}"
        for name, node in attributes.items()
        if node.WhichOneof("kind") == "asset"
    }
    if "vocab_file" not in assets and "sp_model_file" in assets:
        raise EncoderError(
            f"{handle}: it has sp_model_file ({assets['sp_model_file']}), a SentencePiece model, as ALBERT has; only "
            "WordPiece (vocab_file) is known here: take a BERT"
        )
    return assets


def _find_variables(
    handle: str, prefix: Path, reader: Any, captured: Sequence[Any]
) -> tuple[dict[str, Variable], list[str]]:
    """The variables that the function captures, and those of their names that occur more than once.

    EncoderError if the checkpoint lacks one, or has it with another shape.
    """
    keys = variable_keys(handle, reader, prefix)
    shapes, key_of = reader.get_variable_to_shape_map(), dict(keys)
    repeated = _repeated(variable.name for variable in captured) | _repeated(name for name, _ in keys)
    variables = {}
    for variable in captured:
        key = key_of.get(variable.name, "")
        shape = shapes.get(key)
        if shape is None or not (variable.name in repeated or _fits(variable.shape, shape)):
            found = f"no variable {variable.name}" if shape is None else f"{variable.name} is {shape}"
            wanted = [dim.size for dim in variable.shape.dim]
            raise EncoderError(
                f"{handle}: {prefix}: {found}, but saved_model.pb has one of {wanted}; they do not belong together: "
                "download both again"
            )
        variables[variable.name] = Variable(tuple(shape), key)
    return variables, sorted(repeated & variables.keys())


def _inference_function(handle: str, path: Path, objects: Any, attributes: Mapping[str, Any]) -> tuple[Any, Interface]:
    """The function that encodes texts: the object's own or, if none fits, one of its signatures."""
    candidates: list[tuple[str | None, str]] = []
    if "__call__" in attributes:
        candidates += [(None, name) for name in attributes["__call__"].function.concrete_functions]
    if "signatures" in attributes:
        children = {child.local_name: objects.nodes[child.node_id] for child in attributes["signatures"].children}
        candidates += [
            (name, node.bare_concrete_function.concrete_function_name) for name, node in sorted(children.items())
        ]
    reasons = []
    for signature, name in candidates:
        function = objects.concrete_functions[name]
        try:
            return function, read_interface(function, signature)
        except InterfaceError as error:
            reasons.append(f"{signature or '__call__'}: {error}")
    what = "; ".join(dict.fromkeys(reasons)) or "it has no function"
    raise EncoderError(f"{handle}: {path}: does not speak TF Hub's interface for text encoders: {what}")


def _fits(declared: Any, shape: Sequence[int]) -> bool:
    """Whether a TensorShapeProto allows this shape."""
    if declared.unknown_rank:
        return True
    sizes = [dim.size for dim in declared.dim]
    return len(sizes) == len(shape) and all(size in (-1, there) for size, there in zip(sizes, shape, strict=True))


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _vocabulary_file(handle: str, folder: Path, assets: Mapping[str, str]) -> Path:
    if "vocab_file" in assets:
        # Only the file's name: a path in an untrusted model must not lead out of the folder.
        return folder / "assets" / Path(assets["vocab_file"]).name
    if (folder / "assets" / "vocab.txt").is_file():
        return folder / "assets" / "vocab.txt"
    raise EncoderError(
        f"{handle}: {folder} has no vocabulary: neither an attribute vocab_file nor assets/vocab.txt; put the "
        "vocab.txt that the model was trained with into its assets folder"
    )


def _plain_bert(content: _Content) -> tuple[BertConfig | None, str]:
    """The configuration if variables and graph are plain BERT's, else None; and the reason."""
    if content.repeated:
        return None, f"several of its variables are called {content.repeated[0]}"
    variables = _canonical(content.variables)
    odd = [name for name in variables if not name.startswith("bert/")]
    if odd:
        return None, f"the variable {odd[0]} is none of plain BERT's"
    try:
        vocab_size, hidden = variables["bert/embeddings/word_embeddings"].shape
        positions, _ = variables["bert/embeddings/position_embeddings"].shape
        types, _ = variables["bert/embeddings/token_type_embeddings"].shape
        _, heads, _ = variables["bert/encoder/layer_0/attention/self/query/kernel"].shape
        _, intermediate = variables["bert/encoder/layer_0/intermediate/dense/kernel"].shape
    except KeyError as error:
        return None, f"plain BERT has a variable {error.args[0]}, which is not there"
    except ValueError:
        return None, "its variables have other ranks than plain BERT's"
    num_layers = _count_blocks({name: variable.shape for name, variable in variables.items()})
    if num_layers > len(variables):
        return None, f"its blocks are numbered up to {num_layers - 1:,}, and not all are there"
    pooler = "bert/pooler/dense/kernel" in variables
    config = BertConfig(vocab_size, hidden, num_layers, heads, intermediate, positions, types, "gelu_tanh", 1e-12)
    expected = weight_shapes(config, pooler=pooler)
    if set(expected) != set(variables):
        odd = sorted(set(expected) ^ set(variables))
        return None, f"plain BERT's variables and these differ by {odd[0]}"
    for name, shape in expected.items():
        if np.prod(variables[name].shape) != np.prod(shape):
            return None, f"{name} is {list(variables[name].shape)}, which is not plain BERT's {list(shape)}"
    if len(content.interface.layers) not in (0, num_layers):
        return None, f"it has {num_layers} blocks and {len(content.interface.layers)} encoder_outputs"
    try:
        activation, epsilon = read_graph(content.graph, num_layers, head_size=hidden // heads, pooler=pooler)
    except UnlikeBertError as error:
        return None, str(error)
    config = dataclasses.replace(config, hidden_act=activation, layer_norm_eps=epsilon)
    return config, "variables and graph are plain BERT's"


def _canonical(variables: Mapping[str, Variable]) -> dict[str, Variable]:
    """The variables by their names in `weight_shapes`; others keep their own name."""
    start = next((name for name in variables if name.endswith("word_embeddings/embeddings")), "")
    prefix = start.removesuffix("word_embeddings/embeddings")
    return {_canonical_name(name.removeprefix(prefix)): variable for name, variable in variables.items()}


def _canonical_name(name: str) -> str:
    """
    >>> _canonical_name("transformer/layer_3/self_attention/attention_output/kernel")
    'bert/encoder/layer_3/attention/output/dense/kernel'
    >>> _canonical_name("embeddings/layer_norm/beta"), _canonical_name("adapter/kernel")
    ('bert/embeddings/LayerNorm/beta', 'adapter/kernel')
    """
    block = re.match(r"transformer/(layer_\d+)/", name)
    rest = name[block.end() :] if block else name
    for theirs, ours in _NAMES.items():
        if rest.startswith(theirs):
            in_block = not ours.startswith("bert/")
            if in_block == bool(block):
                return (f"bert/encoder/{block[1]}/" if block else "") + ours + rest[len(theirs) :]
    return name


def _count_blocks(names: Iterable[str]) -> int:
    """Number of blocks by the numbers in the variables' names; 1 without numbers."""
    numbers = [int(match[1]) for name in names if (match := re.search(r"(?:^|/)layer_(\d+)/", name))]
    return max(numbers, default=0) + 1


def _rows_of(shapes: Mapping[str, tuple[int, ...]], part: str) -> int | None:
    """Rows of the table whose name contains `part`; None if there is none."""
    return next((shape[0] for name, shape in shapes.items() if part in name and len(shape) == 2), None)
