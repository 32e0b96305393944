"""The engine `savedmodel`: calls a SavedModel with TF Hub's text interface, whatever is inside.

Interface: https://www.tensorflow.org/hub/common_saved_model_apis/text (transformer text encoders): `input_word_ids`,
`input_mask`, `input_type_ids` in; `encoder_outputs`, `sequence_output`, `pooled_output` out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from layerbeam.transforms.blocks import Float32Array, Int32Array

INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
_NUMBERED = re.compile(r"encoder_outputs?[_./]?(\d+)")

# The place of an output in the result of a call: keys of dicts, indexes of lists.
Path = tuple[str | int, ...]


class InterfaceError(ValueError):
    """The reason why a function cannot be called as a text encoder."""


@dataclasses.dataclass(frozen=True)
class _Input:
    """A placeholder for an input in the arguments, with its number type (TensorFlow's enum)."""

    name: str
    dtype: int


@dataclasses.dataclass(frozen=True)
class Interface:
    """How a SavedModel is called and where its outputs are.

    `signature`: None to call the object itself. `layers`: the blocks' outputs, first to last; empty without
    `encoder_outputs`. Blocks and sequence are [B, S, H], pooled is [B, H].
    """

    signature: str | None
    arguments: Any
    layers: tuple[Path, ...]
    sequence_output: Path | None
    pooled_output: Path | None
    hidden_size: int


def read_interface(function: Any, signature: str | None) -> Interface:
    """The interface of a concrete function (a SavedConcreteFunction). InterfaceError if it has another one."""
    arguments = _arguments(function.canonicalized_input_signature)
    shapes = dict(_leaves(function.output_signature))
    layers = _encoder_outputs(shapes)
    sequence, pooled = _sequence_output(shapes, layers), _pooled_output(shapes)
    last = sequence or (layers[-1] if layers else pooled)
    if last is None or not (sequence or layers):
        raise InterfaceError(
            f"its outputs are {_listed(shapes)}; needed is sequence_output or encoder_outputs, [batch, tokens, size]"
        )
    hidden_size = shapes[last][-1] if shapes[last] else -1
    if hidden_size < 1:
        raise InterfaceError(f"its output {_text(last)} has no fixed last dimension; export it with one")
    return Interface(signature, arguments, layers, sequence, pooled, hidden_size)


def _arguments(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) with an `_Input` for each input. InterfaceError unless they are the three."""
    args, kwargs = _plain(value)
    found = list(_inputs((args, kwargs)))
    if any(leaf is True for leaf in (*args, *kwargs.values())):
        raise InterfaceError("it is the function for training")
    names = [leaf.name for leaf in found]
    in_list = args and isinstance(args[0], (list, tuple)) and found == list(args[0])
    if in_list and len(found) == 3 and not set(names) & set(INPUTS):
        # TF Hub's first BERTs take a list in this order.
        in_order = iter(INPUTS)
        args, kwargs = _map_inputs((args, kwargs), lambda leaf: dataclasses.replace(leaf, name=next(in_order)))
    elif sorted(names) != sorted(INPUTS):
        raise InterfaceError(f"its inputs are {', '.join(names) or 'none'}; needed are {', '.join(INPUTS)}")
    return args, kwargs


def _plain(value: Any, key: str = "") -> Any:
    """A StructuredValue of arguments as plain Python; a tensor becomes an `_Input` with its key or name."""
    kind = value.WhichOneof("kind")
    if kind == "dict_value":
        return {name: _plain(field, name) for name, field in sorted(value.dict_value.fields.items())}
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    if kind == "tuple_value":
        return tuple(_plain(item) for item in value.tuple_value.values)
    if kind == "tensor_spec_value":
        return _Input(key or value.tensor_spec_value.name, value.tensor_spec_value.dtype)
    if kind in ("bool_value", "int64_value", "float64_value", "string_value"):
        return getattr(value, kind)
    if kind == "none_value":
        return None
    raise InterfaceError(f"one of its arguments is a {kind}")


def _inputs(arguments: Any) -> Iterator[_Input]:
    if isinstance(arguments, _Input):
        yield arguments
    elif isinstance(arguments, (dict, list, tuple)):
        for value in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _inputs(value)


def _map_inputs(arguments: Any, change: Any) -> Any:
    """The arguments with `change` applied to each `_Input`."""
    if isinstance(arguments, _Input):
        return change(arguments)
    if isinstance(arguments, dict):
        return {key: _map_inputs(value, change) for key, value in arguments.items()}
    if isinstance(arguments, (list, tuple)):
        return type(arguments)(_map_inputs(value, change) for value in arguments)
    return arguments


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """(path, shape) of each output; () for an unknown shape, -1 for an unknown dimension."""
    kind = value.WhichOneof("kind")
    if kind == "dict_value":
        for name, field in sorted(value.dict_value.fields.items()):
            yield from _leaves(field, (*path, name))
    elif kind in ("list_value", "tuple_value"):
        for index, item in enumerate(getattr(value, kind).values):
            yield from _leaves(item, (*path, index))
    elif kind == "tensor_spec_value":
        yield path, tuple(dim.size for dim in value.tensor_spec_value.shape.dim)


def _encoder_outputs(shapes: dict[Path, tuple[int, ...]]) -> tuple[Path, ...]:
    """The blocks' outputs in order: a list, tuple or dict `encoder_outputs`, or `encoder_outputs_0`, ..."""

    def number(path: Path) -> int:
        digits = re.search(r"(\d+)\D*$", str(path[-1]))
        return int(digits[1]) if digits else -1

    nested = [path for path in shapes if path[0] == "encoder_outputs" and len(path) == 2]
    numbered = [path for path in shapes if len(path) == 1 and _NUMBERED.fullmatch(str(path[0]))]
    # If the outputs have no names: the list inside their list.
    unnamed = [path for path in shapes if isinstance(path[0], int) and len(path) == 2 and len(shapes[path]) == 3]
    found = sorted(nested or numbered or unnamed, key=number)
    if len({number(path) for path in found}) != len(found):
        raise InterfaceError(f"the order of its outputs {_listed(found)} is not to be seen; number them")
    return tuple(found)


def _sequence_output(shapes: dict[Path, tuple[int, ...]], layers: Sequence[Path]) -> Path | None:
    if ("sequence_output",) in shapes:
        return ("sequence_output",)
    others = [path for path in shapes if len(shapes[path]) == 3 and path not in layers]
    if len(others) > 1 and not layers:
        raise InterfaceError(f"which of its outputs {_listed(others)} is which cannot be seen; name them")
    return others[0] if others and not layers else None


def _pooled_output(shapes: dict[Path, tuple[int, ...]]) -> Path | None:
    if ("pooled_output",) in shapes:
        return ("pooled_output",)
    others = [path for path in shapes if len(shapes[path]) == 2 and path != ("default",)]
    return others[0] if len(others) == 1 else None


def _text(path: Path) -> str:
    return ".".join(str(part) for part in path) or "unnamed"


def _listed(paths: Any) -> str:
    return ", ".join(_text(path) for path in paths) or "none"


class SavedModelEncoder:
    """A SavedModel as an encoder: gives `layers` (1 to `num_layers`), and the pooled output if `pooler`.

    Several threads may call it at once. Padding is masked, as the interface demands.
    """

    def __init__(
        self,
        folder: str,
        interface: Interface,
        *,
        num_layers: int,
        layers: Sequence[int],
        pooler: bool,
        pad_id: int,
    ) -> None:
        from layerbeam.transforms.hardware import import_tensorflow

        tf = import_tensorflow()
        self.pad_id = pad_id
        self._interface = interface
        self._model = tf.saved_model.load(folder)
        name = interface.signature
        self._function = self._model if name is None else self._model.signatures[name]
        last = {num_layers: interface.sequence_output} if interface.sequence_output else {}
        outputs = last | dict(enumerate(interface.layers, 1))
        self._outputs = {layer: outputs[layer] for layer in layers}
        self._pooled = interface.pooled_output if pooler else None

    def __call__(
        self, token_ids: Int32Array, lengths: Int32Array, segment_ids: Int32Array
    ) -> tuple[dict[int, Float32Array], Float32Array | None]:
        """Layers and pooled output of one batch; see `layerbeam.transforms.encode.forward.Encoder`."""
        import tensorflow as tf

        real = np.arange(token_ids.shape[1]) < lengths[:, None]
        values = {"input_word_ids": token_ids, "input_mask": real, "input_type_ids": segment_ids}
        args, kwargs = _map_inputs(
            self._interface.arguments, lambda leaf: tf.cast(tf.constant(values[leaf.name]), tf.as_dtype(leaf.dtype))
        )
        given = self._function(*args, **kwargs)
        layers = {layer: np.asarray(_at(given, path), np.float32)[real] for layer, path in self._outputs.items()}
        pooled = np.asarray(_at(given, self._pooled), np.float32) if self._pooled else None
        return layers, pooled


def _at(outputs: Any, path: Path) -> Any:
    for part in path:
        outputs = outputs[part]
    return outputs
