"""Variables out of TensorFlow's checkpoints, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerbeam.transforms.blocks import Float32Array
from layerbeam.transforms.encoders.source import EncoderError, first_line
from layerbeam.transforms.hardware import import_tensorflow


def open_checkpoint(handle: str, prefix: Path) -> Any:
    """TensorFlow's CheckpointReader. EncoderError for a checkpoint that is damaged or not there."""
    tf = import_tensorflow()
    try:
        return tf.train.load_checkpoint(str(prefix))
    except (RuntimeError, ValueError, tf.errors.OpError) as error:
        raise _damaged(handle, f"{prefix}.*: not a whole checkpoint", error) from None


def read_variables(handle: str, reader: Any, prefix: Path, keys: Mapping[str, str]) -> dict[str, Float32Array]:
    """{name: float32 array} of the variables that a checkpoint keeps under `keys`. EncoderError where it is damaged."""
    return {name: np.asarray(read_variable(handle, reader, prefix, key), np.float32) for name, key in keys.items()}


def read_variable(handle: str, reader: Any, prefix: Path, key: str) -> Any:
    """One variable as it is, its checksum compared. EncoderError where it is damaged."""
    tf = import_tensorflow()
    try:
        return reader.get_tensor(key)
    # IndexError is what TensorFlow makes of a file that is too short.
    except (IndexError, RuntimeError, ValueError, tf.errors.OpError) as error:
        raise _damaged(handle, f"{prefix}: the variable {key} cannot be read", error) from None


def check_data(handle: str, reader: Any, prefix: Path, keys: Iterable[str]) -> None:
    """EncoderError where one of these variables is damaged: opening a checkpoint reads its index only."""
    for key in keys:
        read_variable(handle, reader, prefix, key)


def variable_keys(handle: str, reader: Any, prefix: Path) -> list[tuple[str, str]]:
    """(name of a variable, its key in the checkpoint), from the graph of objects that TensorFlow 2 keeps in one."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    graph = TrackableObjectGraph()
    stored = read_variable(handle, reader, prefix, "_CHECKPOINTABLE_OBJECT_GRAPH")
    try:
        graph.ParseFromString(stored)
    except Exception as error:  # google.protobuf's DecodeError
        raise _damaged(handle, f"{prefix}: its graph of objects cannot be read", error) from error
    return [(attribute.full_name, attribute.checkpoint_key) for node in graph.nodes for attribute in node.attributes]


def _damaged(handle: str, what: str, error: Exception) -> EncoderError:
    reason = first_line(error)
    denied = "; Permission denied"  # TensorFlow says so in the text alone: `<file>; Permission denied`
    if reason.endswith(denied):
        return EncoderError(f"{handle}: {reason.removesuffix(denied)}: cannot be read: Permission denied")
    return EncoderError(f"{handle}: {what} ({reason}); download it again")
