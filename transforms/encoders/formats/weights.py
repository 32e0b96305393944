"""Weights in files: those of an architecture by name, checked and read one at a time; TensorFlow's checkpoints.

They are read into memory that TensorFlow can take over: from any other array it makes two copies before it has a
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from layerbeam.transforms.encoders.architectures import Architecture
from layerbeam.transforms.encoders.architectures.architecture import Array
from layerbeam.transforms.encoders.config_file import EncoderError, first_line
from layerbeam.transforms.flow.blocks import Float32Array
from layerbeam.transforms.hardware import tf

_ALIGNMENT = 64  # bytes, as TensorFlow's own tensors have


class Tensor(NamedTuple):
    """A tensor in a file. `dtype`: as the format names it. `share`: (i, n): the i-th of n equal shares of its rows.

    One that is stored with more dimensions than it has here has the rows of all of its matrices.
    """

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    share: tuple[int, int] = (0, 1)

    def shared_by(self, names: Sequence[str]) -> list[tuple[str, Tensor]]:
        """(name, its equal share of the rows) for each name; the whole tensor where there are no such shares."""
        rows, rest = divmod(self.shape[0], len(names)) if self.shape else (0, 1)
        if len(names) == 1 or rest:
            return [(name, self) for name in names]
        share, of = self.share
        shares = [(share * len(names) + part, of * len(names)) for part in range(len(names))]
        shape = (rows, *self.shape[1:])
        return [(name, self._replace(shape=shape, share=part)) for name, part in zip(names, shares, strict=True)]


class LazyWeights(Mapping[str, Float32Array]):
    """{name of `weight_shapes`: float32 array}; reads an array at each access, so that no two are in memory.

    `places`: where the file has each weight; `read` gets a name and its place.
    """

    def __init__(self, places: Mapping[str, Any], read: Callable[[str, Any], Float32Array]) -> None:
        self._places, self._read = places, read

    def __getitem__(self, name: str) -> Float32Array:
        return self._read(name, self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def find_weights(
    handle: str,
    config_file: Path,
    architecture: Architecture,
    found: Mapping[str, Tensor],
    *,
    spellings: Callable[[str], Sequence[str]],
    is_turned: bool,
    dtypes: Sequence[str],
    words: tuple[str, str, str],
) -> dict[str, Tensor]:
    """The tensors by their names in `weight_shapes`, without heads, optimizer, and an incomplete pooler.

    `found`: the tensors of the file, as it names them. `spellings`: the file's names of a weight, the current one
    first. `is_turned`: kernels are [out, in]. `words`: for a tensor, the weights and the number types in errors.
    EncoderError if a tensor is missing or not as the configuration says.
    """
    tensor_word, weights_word, allowed = words
    blocks = architecture.num_stored_blocks
    if blocks > len(found):  # before billions of names are made for them
        raise EncoderError(
            f"{handle}: {config_file}: says {blocks:,} blocks with weights of their own, and the weights have no more "
            f"than {len(found):,} tensors; they do not belong together: download both again"
        )
    tensors = {}
    for name, shape in architecture.weight_shapes().items():
        theirs = spellings(name)
        tensor = next((found[spelling] for spelling in theirs if spelling in found), None)
        if tensor is None:
            if name.startswith("bert/pooler"):
                continue
            longer = next((one for one in found for mine in theirs if one.endswith(f".{mine}")), None)
            raise EncoderError(
                f"{handle}: {next(iter(found.values())).file}: no {tensor_word} {theirs[0]} among {len(found)}, such "
                f"as {', '.join(list(found)[:3])}; "
                + (
                    f"{longer} has a training program's prefix: save the model without it"
                    if longer
                    else f"{config_file.name} and {weights_word} do not belong together: download both again"
                )
            )
        expected = shape[::-1] if is_turned and name.endswith("/kernel") else shape
        if tensor.shape != expected or tensor.dtype not in dtypes:
            raise EncoderError(
                f"{handle}: {tensor.file}: {theirs[0]} is {tensor.dtype} {list(tensor.shape)}; by {config_file.name} "
                f"it must be {allowed} {list(expected)}: take the {config_file.name} that belongs to the {weights_word}"
            )
        tensors[name] = tensor
    pooler = [name for name in tensors if name.startswith("bert/pooler")]
    return tensors if len(pooler) == 2 else {name: tensors[name] for name in tensors if name not in pooler}


class Checkpoint:
    """The variables of a checkpoint by their keys. EncoderError, here and later, if it is damaged or missing."""

    def __init__(self, handle: str, prefix: Path) -> None:
        self.handle, self.prefix = handle, prefix
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
        except (RuntimeError, ValueError, tf.errors.OpError) as error:
            raise self._damaged(f"{prefix}.*: not a complete checkpoint", error) from None
        self.shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
        self.dtypes: dict[str, Any] = self._reader.get_variable_to_dtype_map()

    def read(self, key: str) -> Any:
        """One variable, after a check of its checksum."""
        try:
            return self._reader.get_tensor(key)
        # TensorFlow raises IndexError for a file that is too short.
        except (IndexError, RuntimeError, ValueError, tf.errors.OpError) as error:
            raise self._damaged(f"{self.prefix}: the variable {key} cannot be read", error) from None

    def check(self, keys: Iterable[str]) -> None:
        """Reads these variables, so that damage shows before the job starts; opening only reads the index."""
        for key in keys:
            self.read(key)

    def weights(self, keys: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> LazyWeights:
        """The variables under `keys` in these shapes."""
        return LazyWeights(keys, lambda name, key: np.asarray(self.read(key), np.float32).reshape(shapes[name]))

    def keys_by_name(self) -> list[tuple[str, str]]:
        """(name of a variable, its key), from the object graph that TensorFlow 2 stores in a checkpoint."""
        from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

        stored = self.read("_CHECKPOINTABLE_OBJECT_GRAPH")
        try:
            graph = TrackableObjectGraph.FromString(stored)
        except Exception as error:  # google.protobuf's DecodeError
            raise self._damaged(f"{self.prefix}: its object graph cannot be read", error) from error
        return [(stored.full_name, stored.checkpoint_key) for node in graph.nodes for stored in node.attributes]

    def _damaged(self, what: str, error: Exception) -> EncoderError:
        reason = first_line(error)
        denied = "; Permission denied"  # TensorFlow reports it only in the text: `<file>; Permission denied`
        if reason.endswith(denied):
            return EncoderError(f"{self.handle}: {reason.removesuffix(denied)}: cannot be read: Permission denied")
        return EncoderError(f"{self.handle}: {what} ({reason}); download it again")


def empty_aligned(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """An array without values."""
    dtype = np.dtype(dtype)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return np.asarray(memory[begin : begin + num_bytes].view(dtype).reshape(shape))


def take_over(values: Array) -> Any:
    """A tensor on the processor, in the memory of an array that `empty_aligned` made; of any other, of a copy."""
    if not (values.flags.c_contiguous and values.flags.writeable and values.ctypes.data % _ALIGNMENT == 0):
        copy = empty_aligned(values.shape, values.dtype)
        copy[...] = values
        values = copy
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())
