"""Variables out of TensorFlow's checkpoints, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transforms.encoders.source import EncoderError
from transforms.records import Float32Array
from transforms.threads import import_tensorflow


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


def _damaged(handle: str, what: str, error: Exception) -> EncoderError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return EncoderError(f"{handle}: {what} ({reason}); download it again")
