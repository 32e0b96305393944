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

from layerbeam.transforms.encoders.architectures import Architecture, Bert
from layerbeam.transforms.encoders.config_file import EncoderError
from layerbeam.transforms.encoders.formats.saved_model.graph import UnlikeBertError, missing_operation, read_graph
from layerbeam.transforms.encoders.formats.saved_model.interface import (
    Interface,
    InterfaceError,
    SavedModelEncoder,
    read_interface,
)
from layerbeam.transforms.encoders.formats.weights import Checkpoint
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
from layerbeam.transforms.hardware import import_tensorflow, tf

_LOWER_CASE = "do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"
_BLOCK = r"transformer/(layer_\d+)/"
_NAMES = {
    "word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    "type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "position_embedding/embeddings": "bert/embeddings/position_embeddings",
    "embeddings/layer_norm/": "bert/embeddings/LayerNorm/",
    f"{_BLOCK}self_attention/attention_output/": r"bert/encoder/\1/attention/output/dense/",
    f"{_BLOCK}self_attention_layer_norm/": r"bert/encoder/\1/attention/output/LayerNorm/",
    f"{_BLOCK}self_attention/": r"bert/encoder/\1/attention/self/",
    f"{_BLOCK}intermediate/": r"bert/encoder/\1/intermediate/dense/",
    f"{_BLOCK}output/": r"bert/encoder/\1/output/dense/",
    f"{_BLOCK}output_layer_norm/": r"bert/encoder/\1/output/LayerNorm/",
    "pooler_transform/": "bert/pooler/dense/",
}


@dataclasses.dataclass(frozen=True)
class _Model:
    """What `saved_model.pb` and the checkpoint say about the function that encodes texts.

    `attributes`: the root's children by name. `keys`: those of its variables in the checkpoint, by variable name.
    `repeated`: variable names that occur more than once.
    """

    graph: Any
    attributes: Mapping[str, Any]
    interface: Interface
    checkpoint: Checkpoint
    keys: Mapping[str, str]
    repeated: Sequence[str]

    def shapes(self, keys: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        """{variable: shape} from {variable: key}."""
        return {name: tuple(self.checkpoint.shapes[key]) for name, key in keys.items()}


def open_folder(handle: str, located: LocalFolder, do_lower_case: bool | None, engine: str) -> EncoderSource:
    """The encoder in a folder, for the requested or fitting engine. EncoderError if it cannot be used."""
    folder = located.folder
    model = _read(handle, folder)
    # All variables, heads too: TensorFlow restores them with the rest.
    model.checkpoint.check(sorted(model.checkpoint.shapes))
    vocabulary_file = _vocabulary_file(handle, folder, model)
    bert, because = None, "variables and graph are plain BERT's"
    try:
        bert = _plain_bert(model)
    except UnlikeBertError as error:
        because = str(error)
    if engine == "native" and bert is None:
        raise EncoderError(f"{handle}: engine native runs plain BERT only, and {because}; take engine savedmodel")
    shapes = model.shapes(model.keys)
    declared = None
    if "do_lower_case" in model.attributes and _LOWER_CASE in model.checkpoint.shapes:
        declared = (bool(np.all(model.checkpoint.read(_LOWER_CASE))), "do_lower_case of the SavedModel")
    weight_files = [str(folder / "saved_model.pb"), *map(str, sorted(folder.glob("variables/variables.*")))]
    # The same for both engines, whose outputs differ by rounding only: no configuration in the fingerprint.
    vocab_size = _rows_of(shapes, "word_embedding")
    vocabulary = read_vocabulary(handle, vocabulary_file, vocab_size)
    casing = casing_of(do_lower_case, declared, located, vocabulary)
    common = common_fields(
        handle, located, weight_files, vocabulary, vocab_size, casing, None, sha256_of_files(weight_files)
    )
    if bert is not None and engine != "savedmodel":
        has_pooler = any(name.endswith("pooler_transform/kernel") for name in shapes)
        return native_source(
            kind="savedmodel", engine_because=because, architecture=bert, has_pooler=has_pooler, **common
        )
    missing = missing_operation(model.graph)
    if missing is not None:
        raise EncoderError(
            f"{handle}: {folder / 'saved_model.pb'}: needs the operation {missing}, which TensorFlow does not have; "
            "take an encoder of TensorFlow's own operations"
        )
    interface = model.interface
    num_layers = _count_blocks(shapes) if interface.is_last_only else len(interface.layers)
    return EncoderSource(
        kind="savedmodel",
        engine="savedmodel",
        engine_because=because if bert is None else "engine savedmodel was asked for",
        architecture=bert,
        hidden_size=interface.hidden_size,
        num_hidden_layers=num_layers,
        layers=(num_layers,) if interface.is_last_only else tuple(range(1, num_layers + 1)),
        max_position_embeddings=_rows_of(shapes, "position_embedding"),
        has_pooler=interface.pooled_output is not None,
        **common,
    )


def read_weights(source: EncoderSource, architecture: Architecture) -> Mapping[str, Float32Array]:
    """{name of `weight_shapes`: float32 array} of a plain BERT, each read at its access.

    In the exporter's attention, heads and their sizes are separate axes.
    """
    model = _read(source.handle, Path(source.folder))
    keys, shapes = _canonical(model.keys), architecture.weight_shapes(pooler=source.has_pooler)
    return model.checkpoint.weights({name: keys[name] for name in shapes}, shapes)


def load_saved_model(source: EncoderSource, *, layers: Sequence[int], pooler: bool) -> SavedModelEncoder:
    """The SavedModel of an opened source, ready to be called."""
    interface = _read(source.handle, Path(source.folder)).interface
    return SavedModelEncoder(source, interface, layers=layers, pooler=pooler)


def _read(handle: str, folder: Path) -> _Model:
    """The content of `saved_model.pb` and its checkpoint. EncoderError if it is not a text encoder."""
    path = folder / "saved_model.pb"
    graph = _parse(handle, path)
    objects = graph.object_graph_def
    attributes = _children(objects, objects.nodes[0])
    function, interface = _inference_function(handle, path, objects, attributes)
    inputs = (objects.nodes[index] for index in function.bound_inputs)
    captured = [node.variable for node in inputs if node.WhichOneof("kind") == "variable"]
    checkpoint = Checkpoint(handle, folder / "variables" / "variables")
    names = checkpoint.keys_by_name()
    key_of = dict(names)
    counts = Counter(variable.name for variable in captured) | Counter(name for name, _ in names)
    for variable in captured:
        shape = checkpoint.shapes.get(key_of.get(variable.name, ""))
        if shape is None or (
            counts[variable.name] == 1 and not tf.TensorShape(variable.shape).is_compatible_with(shape)
        ):
            found = f"no variable {variable.name}" if shape is None else f"{variable.name} is {shape}"
            wanted = [dim.size for dim in variable.shape.dim]
            raise EncoderError(
                f"{handle}: {checkpoint.prefix}: {found}, but saved_model.pb has one of {wanted}; they do not belong "
                "together: download both again"
            )
    keys = {variable.name: key_of[variable.name] for variable in captured}
    return _Model(graph, attributes, interface, checkpoint, keys, sorted(name for name in keys if counts[name] > 1))


def _parse(handle: str, path: Path) -> Any:
    """The first MetaGraphDef that holds objects of TensorFlow 2."""
    import_tensorflow()  # without its messages
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    if path.with_name("tfhub_module.pb").is_file():
        raise EncoderError(
            f"{handle}: {path.parent} is a module of TensorFlow 1 (tfhub_module.pb); take a newer version"
        )
    content = path.read_bytes()
    try:
        saved = SavedModel.FromString(content)
    except Exception as error:  # google.protobuf's DecodeError
        raise EncoderError(f"{handle}: {path}: is not a SavedModel ({error}); download it again") from None
    for graph in saved.meta_graphs:
        if graph.object_graph_def.nodes:
            return graph
    raise EncoderError(f"{handle}: {path}: holds no objects of TensorFlow 2; take a newer version of the model")


def _children(objects: Any, node: Any) -> dict[str, Any]:
    return {child.local_name: objects.nodes[child.node_id] for child in node.children}


def _inference_function(handle: str, path: Path, objects: Any, attributes: Mapping[str, Any]) -> tuple[Any, Interface]:
    """The function that encodes texts: the object's own or, if none fits, one of its signatures."""
    candidates: list[tuple[str | None, str]] = []
    if "__call__" in attributes:
        candidates += [(None, name) for name in attributes["__call__"].function.concrete_functions]
    if "signatures" in attributes:
        candidates += [
            (name, node.bare_concrete_function.concrete_function_name)
            for name, node in sorted(_children(objects, attributes["signatures"]).items())
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


def _vocabulary_file(handle: str, folder: Path, model: _Model) -> Path:
    """The vocabulary. EncoderError if there is none, or a SentencePiece model in its place."""
    files = {
        name: model.graph.asset_file_def[node.asset.asset_file_def_index].filename
        for name, node in model.attributes.items()
        if node.WhichOneof("kind") == "asset"
    }
    if "vocab_file" in files:
        # Only the file's name: a path in an untrusted model must not lead out of the folder.
        return folder / "assets" / Path(files["vocab_file"]).name
    if "sp_model_file" in files:
        raise EncoderError(
            f"{handle}: it has sp_model_file (assets/{files['sp_model_file']}), a SentencePiece model, as ALBERT has; "
            "only WordPiece (vocab_file) is known here: take a BERT"
        )
    if (folder / "assets" / "vocab.txt").is_file():
        return folder / "assets" / "vocab.txt"
    raise EncoderError(
        f"{handle}: {folder} has no vocabulary: neither an attribute vocab_file nor assets/vocab.txt; put the "
        "vocab.txt that the model was trained with into its assets folder"
    )


def _plain_bert(model: _Model) -> Bert:
    """The configuration. UnlikeBertError, with the reason, unless variables and graph are plain BERT's."""
    if model.repeated:
        raise UnlikeBertError(f"several of its variables are called {model.repeated[0]}")
    shapes = model.shapes(_canonical(model.keys))
    odd = [name for name in shapes if not name.startswith("bert/")]
    if odd:
        raise UnlikeBertError(f"the variable {odd[0]} is none of plain BERT's")
    try:
        vocab_size, hidden = shapes["bert/embeddings/word_embeddings"]
        positions, _ = shapes["bert/embeddings/position_embeddings"]
        types, _ = shapes["bert/embeddings/token_type_embeddings"]
        _, heads, _ = shapes["bert/encoder/layer_0/attention/self/query/kernel"]
        _, intermediate = shapes["bert/encoder/layer_0/intermediate/dense/kernel"]
    except KeyError as error:
        raise UnlikeBertError(f"plain BERT has a variable {error.args[0]}, which is not there") from None
    except ValueError:
        raise UnlikeBertError("its variables have other ranks than plain BERT's") from None
    num_layers = _count_blocks(shapes)
    if num_layers > len(shapes):
        raise UnlikeBertError(f"its blocks are numbered up to {num_layers - 1:,}, and not all are there")
    pooler = "bert/pooler/dense/kernel" in shapes
    bert = Bert(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
        type_vocab_size=types,
        hidden_act="gelu_tanh",
        layer_norm_eps=1e-12,
    )
    expected = bert.weight_shapes(pooler=pooler)
    if expected.keys() != shapes.keys():
        raise UnlikeBertError(f"plain BERT's variables and these differ by {min(expected.keys() ^ shapes.keys())}")
    for name, shape in expected.items():
        if np.prod(shapes[name]) != np.prod(shape):
            raise UnlikeBertError(f"{name} is {list(shapes[name])}, which is not plain BERT's {list(shape)}")
    given = len(model.interface.layers)
    if given != num_layers and not model.interface.is_last_only:
        raise UnlikeBertError(f"it has {num_layers} blocks and {given} encoder_outputs")
    activation, epsilon = read_graph(model.graph, num_layers, head_size=hidden // heads, pooler=pooler)
    return dataclasses.replace(bert, hidden_act=activation, layer_norm_eps=epsilon)


def _canonical(keys: Mapping[str, str]) -> dict[str, str]:
    """The keys of the variables by their names in `weight_shapes`; others keep their own name."""
    start = next((name for name in keys if name.endswith("word_embeddings/embeddings")), "")
    prefix = start.removesuffix("word_embeddings/embeddings")
    return {_canonical_name(name.removeprefix(prefix)): key for name, key in keys.items()}


def _canonical_name(name: str) -> str:
    """
    >>> _canonical_name("transformer/layer_3/self_attention/attention_output/kernel")
    'bert/encoder/layer_3/attention/output/dense/kernel'
    >>> _canonical_name("embeddings/layer_norm/beta"), _canonical_name("adapter/kernel")
    ('bert/embeddings/LayerNorm/beta', 'adapter/kernel')
    """
    for theirs, ours in _NAMES.items():
        if match := re.match(theirs, name):
            return match.expand(ours) + name[match.end() :]
    return name


def _count_blocks(names: Iterable[str]) -> int:
    """Number of blocks by the numbers in the variables' names; 1 without numbers."""
    numbers = [int(match[1]) for name in names if (match := re.search(r"(?:^|/)layer_(\d+)/", name))]
    return max(numbers, default=0) + 1


def _rows_of(shapes: Mapping[str, tuple[int, ...]], part: str) -> int | None:
    """Rows of the table whose name contains `part`; None if there is none."""
    return next((shape[0] for name, shape in shapes.items() if part in name and len(shape) == 2), None)
