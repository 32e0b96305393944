"""What an architecture is: its sizes, the names of its weights, its forward pass, and the same in NumPy.

A subclass is one kind of encoder; CONTRIBUTING.md says how to add one. Weights have the names of Google's BERT
checkpoints (`bert/encoder/layer_0/attention/self/query/kernel`), whatever their names in a file; kernels are [in, out].
Layer 0 is what enters the first Transformer block, layer k the output of the k-th block.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from layerbeam.transforms.encoders.config_file import Activation, ConfigFile
from layerbeam.transforms.flow.blocks import Float32Array

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch, Network
    from layerbeam.transforms.reference import ReferenceNetwork

Tensor = Any  # TensorFlow's
Array = npt.NDArray[Any]

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture(abc.ABC):
    """The sizes that decide an encoder's computation.

    `hidden_act`: `gelu` is the erf form, `gelu_tanh` the tanh approximation.

    `renamed_tensors`: {a pattern in a tensor's name in older files: its replacement}. `fused_tensors`: {a product in a
    file: those of ours that its rows hold, in equal shares}.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: Activation
    layer_norm_eps: float

    title: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]  # in config.json
    prefix: ClassVar[str]  # of the tensors in files that hold a head, too
    vocabulary_file: ClassVar[str] = "tokenizer.json"  # the file that a folder cannot lack
    renamed_tensors: ClassVar[Mapping[str, str]] = {}
    fused_tensors: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    copies_of_scores: ClassVar[int] = 3  # of attention in memory: with the bias, and after softmax

    @classmethod
    @abc.abstractmethod
    def read(cls, config: ConfigFile) -> Architecture:
        """The architecture of a config.json. EncoderError if it computes something else."""

    @property
    def max_length(self) -> int:
        """Tokens in the longest sequence, special tokens included."""
        return self.max_position_embeddings

    @property
    def has_segments(self) -> bool:
        """Whether the second text of a pair may have a segment of its own."""
        return False

    @property
    def attention_width(self) -> int:
        """Numbers in the query, key and value of a token, all heads together."""
        return 3 * self.hidden_size

    @property
    def queries_of_key(self) -> int:
        """Heads of queries that share a head of keys."""
        return 1

    @property
    def num_stored_blocks(self) -> int:
        """Blocks with weights of their own in a file."""
        return self.num_hidden_layers

    def blocks_needed(self, layers: Sequence[int], *, pooler: bool) -> int:
        """Number of Transformer blocks for these layers; the pooler reads the last. ValueError for an unknown layer."""
        wrong = [layer for layer in layers if not 0 <= layer <= self.num_hidden_layers]
        if wrong or not (layers or pooler):
            raise ValueError(
                f"layers: are {list(layers)}, pooler {pooler}; wanted is at least one of 0 to "
                f"{self.num_hidden_layers}, or the pooler"
            )
        return self.num_hidden_layers if pooler else max(layers)

    @abc.abstractmethod
    def weight_shapes(self, *, num_blocks: int | None = None, pooler: bool = True) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight of the first `num_blocks` blocks (all if None), and the pooler's."""

    @abc.abstractmethod
    def spellings(self, name: str) -> tuple[str, ...]:
        """Transformers' names of a weight in a file, without prefix, the current one first."""

    @abc.abstractmethod
    def fuse(
        self, weights: Mapping[str, Float32Array], *, num_blocks: int, pooler: bool
    ) -> Iterator[tuple[str, Float32Array]]:
        """(name, weight) as the graph needs them: one product for query, key and value, the query scaled."""

    @abc.abstractmethod
    def embed(self, net: Network, batch: Batch) -> Tensor:
        """Layer 0, [B S, H] in float32."""

    def prepare(self, net: Network, batch: Batch) -> Any:
        """What all blocks share, computed once: here the scope of attention."""
        return net.attention.scope(batch)

    @abc.abstractmethod
    def block(self, net: Network, batch: Batch, index: int, hidden: Tensor, shared: Any) -> Tensor:
        """The output of a block, [B S, H] in float32. `shared`: as `prepare` gives it."""

    @abc.abstractmethod
    def reference_embed(self, net: ReferenceNetwork, token_ids: Array, segment_ids: Array) -> Array:
        """`embed` in NumPy for one text, [S, H]; shares no code with it."""

    @abc.abstractmethod
    def reference_block(self, net: ReferenceNetwork, index: int, hidden: Array) -> Array:
        """`block` in NumPy for one text, [S, H]."""


def layer_norm_shapes(name: str, size: int, *, has_bias: bool = True) -> dict[str, tuple[int, ...]]:
    """The weights of a layer norm."""
    bias: dict[str, tuple[int, ...]] = {f"{name}/LayerNorm/beta": (size,)} if has_bias else {}
    return bias | {f"{name}/LayerNorm/gamma": (size,)}


def dense_shapes(name: str, size_in: int, size_out: int, *, has_bias: bool = True) -> dict[str, tuple[int, ...]]:
    """The weights of a dense layer."""
    bias: dict[str, tuple[int, ...]] = {f"{name}/bias": (size_out,)} if has_bias else {}
    return {f"{name}/kernel": (size_in, size_out)} | bias


def scale_query(values: Float32Array, head_size: int) -> Float32Array:
    """A query's weights that include attention's 1/sqrt(head size)."""
    return np.asarray(values * np.float32(1 / np.sqrt(head_size)))
