"""The engine `savedmodel`: calls a SavedModel with TF Hub's text interface, whatever is inside.

Interface: https://www.tensorflow.org/hub/common_saved_model_apis/text (transformer text encoders): `input_word_ids`,
`input_mask`, `input_type_ids` in; `encoder_outputs`, `sequence_output`, `pooled_output` out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from layerbeam.transforms.encoders.source import EncoderSource
from layerbeam.transforms.flow.blocks import Float32Array, Int32Array
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.dense import Dense
    from layerbeam.transforms.views.view import DenseModule

INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
_NUMBERED = re.compile(r"encoder_outputs?[_./]?(\d+)")

# The place of an output in the result of a call: keys of dicts, indexes of lists.
Path = tuple[str | int, ...]
# The shape of each output: () if it is unknown, None for an unknown dimension.
Shapes = dict[Path, tuple[int | None, ...]]


class InterfaceError(ValueError):
    """The reason why a function cannot be called as a text encoder."""


@dataclasses.dataclass(frozen=True)
class Interface:
    """How a SavedModel is called and where its outputs are.

    `signature`: None to call the object itself. `layers`: the blocks' outputs, first to last, [B, S, H] each; if
    `is_last_only`, that of the last block alone. `pooled_output`: [B, H].
    """

    signature: str | None
    arguments: Any
    layers: tuple[Path, ...]
    is_last_only: bool
    pooled_output: Path | None
    hidden_size: int


def read_interface(function: Any, signature: str | None) -> Interface:
    """The interface of a concrete function (a SavedConcreteFunction). InterfaceError if it has another one."""
    arguments = _arguments(function.canonicalized_input_signature)
    outputs = [(path, leaf) for path, leaf in _flatten(_plain(function.output_signature)) if _is_tensor(leaf)]
    shapes: Shapes = {path: tuple(leaf.shape if leaf.shape.rank else ()) for path, leaf in outputs}
    blocks = _encoder_outputs(shapes)
    sequence = _sequence_output(shapes, blocks)
    last = sequence or (blocks[-1] if blocks else None)
    if not last:
        raise InterfaceError(
            f"its outputs are {_listed(shapes)}; needed is sequence_output or encoder_outputs, [batch, tokens, size]"
        )
    hidden_size = shapes[last][-1] if shapes[last] else None
    if not hidden_size:
        raise InterfaceError(f"its output {_listed([last])} has no fixed last dimension; export it with one")
    return Interface(signature, arguments, blocks or (last,), not blocks, _pooled_output(shapes), hidden_size)


def _arguments(signature: Any) -> Any:
    """(args, kwargs) with a TensorSpec, named after the input, for each input. InterfaceError unless they are three."""
    arguments = _plain(signature)
    leaves = _flatten(arguments)
    for _, leaf in leaves:
        if isinstance(leaf, type(signature)):
            raise InterfaceError(f"one of its arguments is a {leaf.WhichOneof('kind')}")
    args, kwargs = arguments
    if any(leaf is True for leaf in (*args, *kwargs.values())):
        raise InterfaceError("it is the function for training")
    # The key in a dict, else TensorFlow's own name.
    names = {
        path: path[-1] if isinstance(path[-1], str) else leaf.name or "" for path, leaf in leaves if _is_tensor(leaf)
    }
    if list(names) == [(0, 0, index) for index in range(3)] and not set(names.values()) & set(INPUTS):
        # TF Hub's first BERTs take a list in this order.
        names = dict(zip(names, INPUTS, strict=True))
    elif sorted(names.values()) != sorted(INPUTS):
        raise InterfaceError(f"its inputs are {', '.join(names.values()) or 'none'}; needed are {', '.join(INPUTS)}")
    named = [tf.TensorSpec(None, leaf.dtype, names[path]) if path in names else leaf for path, leaf in leaves]
    return tf.nest.pack_sequence_as(arguments, named)


def _plain(value: Any) -> Any:
    """A StructuredValue as plain Python with TensorSpecs; what has no counterpart stays a StructuredValue."""
    kind = value.WhichOneof("kind")
    if kind == "dict_value":
        return {name: _plain(field) for name, field in value.dict_value.fields.items()}
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    if kind == "tuple_value":
        return tuple(_plain(item) for item in value.tuple_value.values)
    if kind == "tensor_spec_value":
        return tf.TensorSpec.experimental_from_proto(value.tensor_spec_value)
    if kind in ("bool_value", "int64_value", "float64_value", "string_value"):
        return getattr(value, kind)
    return None if kind == "none_value" else value


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, tf.TensorSpec)


def _flatten(structure: Any) -> list[tuple[Path, Any]]:
    """The leaves of nested dicts, lists and tuples with their paths; those of a dict in the order of its keys."""
    from tensorflow.python.util import nest

    leaves: list[tuple[Path, Any]] = nest.flatten_with_tuple_paths(structure)
    return leaves


def _encoder_outputs(shapes: Shapes) -> tuple[Path, ...]:
    """The blocks' outputs in order: a list, tuple or dict `encoder_outputs`, or `encoder_outputs_0`, ..."""

    def number(path: Path) -> int:
        numbers = re.findall(r"\d+", str(path[-1]))
        return int(numbers[-1]) if numbers else -1

    nested = [path for path in shapes if len(path) == 2 and path[0] == "encoder_outputs"]
    numbered = [path for path in shapes if len(path) == 1 and _NUMBERED.fullmatch(str(path[0]))]
    # If the outputs have no names: the list inside their list.
    unnamed = [path for path in shapes if len(path) == 2 and isinstance(path[0], int) and len(shapes[path]) == 3]
    found = sorted(nested or numbered or unnamed, key=number)
    if len({number(path) for path in found}) != len(found):
        raise InterfaceError(f"the order of its outputs {_listed(found)} is not to be seen; number them")
    return tuple(found)


def _sequence_output(shapes: Shapes, layers: Sequence[Path]) -> Path | None:
    if ("sequence_output",) in shapes:
        return ("sequence_output",)
    others = [path for path in shapes if len(shapes[path]) == 3 and path not in layers]
    if len(others) > 1 and not layers:
        raise InterfaceError(f"which of its outputs {_listed(others)} is which cannot be seen; name them")
    return others[0] if others and not layers else None


def _pooled_output(shapes: Shapes) -> Path | None:
    if ("pooled_output",) in shapes:
        return ("pooled_output",)
    others = [path for path in shapes if len(shapes[path]) == 2 and path != ("default",)]
    return others[0] if len(others) == 1 else None


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join(".".join(map(str, path)) or "unnamed" for path in paths) or "none"


class SavedModelEncoder:
    """A SavedModel as an encoder: gives `layers` (1 to L), and the pooled output if `pooler`.

    Several threads may call it at once. Padding is masked, as the interface demands.
    """

    def __init__(self, source: EncoderSource, interface: Interface, *, layers: Sequence[int], pooler: bool) -> None:
        self.pad_id = source.special.pad
        self.dense_modules: Mapping[DenseModule, Dense] = {}
        self._arguments = interface.arguments
        self._model = tf.saved_model.load(source.folder)
        if interface.signature is not None:
            self._function = self._model.signatures[interface.signature]
        else:
            # Called itself, the object would be traced again for each shape of a batch.
            args, kwargs = tf.nest.map_structure(
                lambda leaf: tf.TensorSpec([None, None], leaf.dtype) if _is_tensor(leaf) else leaf, self._arguments
            )
            self._function = self._model.__call__.get_concrete_function(*args, **kwargs)
        outputs = dict(zip(source.layers, interface.layers, strict=True))
        self._outputs = {layer: outputs[layer] for layer in layers}
        self._pooled = interface.pooled_output if pooler else None

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[dict[int, Float32Array], Float32Array | None]:
        """Layers and pooled output of one batch; see `layerbeam.transforms.encode.forward.Encoder`."""
        real = np.arange(token_ids.shape[1]) < lengths[:, None]
        values = {"input_word_ids": token_ids, "input_mask": real, "input_type_ids": segment_ids}
        args, kwargs = tf.nest.map_structure(
            lambda leaf: tf.cast(values[leaf.name], leaf.dtype) if _is_tensor(leaf) else leaf, self._arguments
        )
        given = dict(_flatten(self._function(*args, **kwargs)))
        layers = {layer: np.asarray(given[path], np.float32)[real] for layer, path in self._outputs.items()}
        return layers, np.asarray(given[self._pooled], np.float32) if self._pooled else None
