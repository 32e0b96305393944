"""RoBERTa, XLM-R and CamemBERT: BERT whose positions are counted from the padding's id.

Source: Liu et al., https://arxiv.org/abs/1907.11692; `create_position_ids_from_input_ids` of transformers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from layerbeam.transforms.encoders.architectures.architecture import Array, Tensor
from layerbeam.transforms.encoders.architectures.bert import Bert
from layerbeam.transforms.encoders.config_file import ConfigFile
from layerbeam.transforms.hardware import tf

if TYPE_CHECKING:
    from layerbeam.transforms.encoders.network import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roberta(Bert):
    """RoBERTa. The first token has position `pad_token_id` + 1; a padding token in a text has `pad_token_id`."""

    pad_token_id: int

    title: ClassVar[str] = "RoBERTa, XLM-R, CamemBERT"
    model_types: ClassVar[tuple[str, ...]] = ("roberta", "xlm-roberta", "camembert")
    prefix: ClassVar[str] = "roberta."
    vocabulary_file: ClassVar[str] = "tokenizer.json"

    @classmethod
    def of_sizes(cls, config: ConfigFile, **rest: Any) -> Bert:
        made = super().of_sizes(config, pad_token_id=config.integer("pad_token_id", least=0), **rest)
        if made.max_length < 3:
            raise config.wrong("max_position_embeddings", "at least pad_token_id + 4")
        return made

    @property
    def max_length(self) -> int:
        return self.max_position_embeddings - self.pad_token_id - 1

    def positions(self, table: Tensor, batch: Batch) -> Tensor:
        is_text = tf.cast(tf.not_equal(batch.token_ids, self.pad_token_id), tf.int32)
        return tf.gather(table, tf.cumsum(is_text, axis=1) * is_text + self.pad_token_id)

    def reference_positions(self, token_ids: Array) -> Array:
        is_text = token_ids != self.pad_token_id
        return np.where(is_text, np.cumsum(is_text), 0) + self.pad_token_id
