"""Variables of TensorFlow's checkpoints, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.source import EncoderError, first_line
from layerbeam.transforms.hardware import import_tensorflow


def open_checkpoint(handle: str, prefix: Path) -> Any:
    """TensorFlow's CheckpointReader. EncoderError if the checkpoint is damaged or missing."""
    tf = import_tensorflow()
    try:
        return tf.train.load_checkpoint(str(prefix))
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        raise _damaged(handle, f"{prefix}.*: not a complete checkpoint", error) from None


def read_variables(handle: str, reader: Any, prefix: Path, keys: Mapping[str, str]) -> dict[str, Float32Array]:
    """{name: float32 array} of the variables under `keys`. EncoderError if the checkpoint is damaged."""
    return {name: np.asarray(read_variable(handle, reader, prefix, key), np.float32) for name, key in keys.items()}


def read_variable(handle: str, reader: Any, prefix: Path, key: str) -> Any:
    """One variable, after a check of its checksum. EncoderError if it is damaged."""
    tf = import_tensorflow()
    try:
        return reader.get_tensor(key)
    # TensorFlow raises IndexError for a file that is too short.
    except (IndexError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise _damaged(handle, f"{prefix}: the variable {key} cannot be read", error) from None


def check_data(handle: str, reader: Any, prefix: Path, keys: Iterable[str]) -> None:
    """Raises EncoderError if one of these variables is damaged; opening a checkpoint only reads its index."""
    for key in keys:
        read_variable(handle, reader, prefix, key)


def variable_keys(handle: str, reader: Any, prefix: Path) -> list[tuple[str, str]]:
    """(variable name, key in the checkpoint), from the object graph that TensorFlow 2 stores in a checkpoint."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph()
    stored = read_variable(handle, reader, prefix, "_CHECKPOINTABLE_OBJECT_GRAPH")
    try:
        graph.ParseFromString(stored)
    except Exception as error:  # google.protobuf's DecodeError
        raise _damaged(handle, f"{prefix}: its object graph cannot be read", error) from error
    return [(attribute.full_name, attribute.checkpoint_key) for node in graph.nodes for attribute in node.attributes]


def _damaged(handle: str, what: str, error: Exception) -> EncoderError:
    reason = first_line(error)
    denied = "; Permission denied"  # TensorFlow reports it only in the text: `<file>; Permission denied`
    if reason.endswith(denied):
        return EncoderError(f"{handle}: {reason.removesuffix(denied)}: cannot be read: Permission denied")
    return EncoderError(f"{handle}: {what} ({reason}); download it again")
