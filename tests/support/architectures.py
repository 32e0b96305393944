"""Small encoders of every architecture with random weights, as Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file
from tensor_files import file_tensors
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from weights import random_weights

from layerbeam.transforms.encoders.architectures import read_architecture
from layerbeam.transforms.encoders.config_file import ConfigFile

WORDS = ["a", "river", "bank", "the", "in", "##s", "##er", ".", ",", "'", "k", "##k", "b", "##b"]
_SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
_COMMON = {"vocab_size": 300, "hidden_act": "gelu", "layer_norm_eps": 1e-12} | _SIZES

# Of an uncased BERT's tokenizer.json.
NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
NORMALIZER |= {"strip_accents": None, "lowercase": True}

# What config.json has besides `_COMMON`, by the name in the tests.
CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load("""
bert: {model_type: bert, type_vocab_size: 2}
albert: {model_type: albert, type_vocab_size: 2, embedding_size: 16, num_hidden_groups: 2, inner_group_num: 1}
distilbert: {model_type: distilbert, dim: 24, n_layers: 3, n_heads: 3, hidden_dim: 40, activation: gelu}
electra: {model_type: electra, type_vocab_size: 2, embedding_size: 16}
electra-wide: {model_type: electra, type_vocab_size: 2, embedding_size: 24}
roberta: {model_type: roberta, type_vocab_size: 1, pad_token_id: 1}
mpnet: {model_type: mpnet, pad_token_id: 1, relative_attention_num_buckets: 32}
deberta:
    {model_type: deberta-v2, type_vocab_size: 0, relative_attention: true, pos_att_type: p2c|c2p, position_buckets: 16,
     share_att_key: true, norm_rel_ebd: layer_norm, position_biased_input: false, max_relative_positions: -1}
deberta-convolution:
    {model_type: deberta-v2, type_vocab_size: 2, relative_attention: true, pos_att_type: [c2p, p2c],
     max_relative_positions: 40, embedding_size: 16, conv_kernel_size: 3, conv_act: gelu}
modernbert:
    {model_type: modernbert, hidden_activation: gelu, norm_eps: 1.0e-5, local_attention: 8,
     global_attn_every_n_layers: 2, global_rope_theta: 160000.0, local_rope_theta: 10000.0}
modernbert-biases:
    model_type: modernbert
    hidden_activation: gelu
    local_attention: 8
    layer_types: [full_attention, sliding_attention, sliding_attention]
    rope_parameters:
        full_attention: {rope_type: default, rope_theta: 160000.0}
        sliding_attention: {rope_type: default, rope_theta: 10000.0}
    norm_bias: true
    attention_bias: true
    mlp_bias: true
nomic: {model_type: nomic_bert, hidden_act: silu, type_vocab_size: 2}
gte: {model_type: gte, type_vocab_size: 1}
gte-new: {model_type: new, type_vocab_size: 0, rope_theta: 20000, rope_scaling: {type: ntk, factor: 8.0}}
jina: {model_type: jina_embeddings_v3, type_vocab_size: 1, rope_parameters: {rope_type: default, rope_theta: 20000.0}}
eurobert: {model_type: eurobert, hidden_act: silu, num_attention_heads: 6, num_key_value_heads: 2, rope_theta: 250000}
qwen3: {model_type: qwen3, hidden_act: silu, head_dim: 12, num_key_value_heads: 1, rope_theta: 1000000}
gemma3:
    {model_type: gemma3_text, hidden_activation: gelu_pytorch_tanh, head_dim: 12, num_key_value_heads: 1,
     query_pre_attn_scalar: 16, sliding_window: 8, use_bidirectional_attention: true, sliding_window_pattern: 2}
gemma3-causal:
    model_type: gemma3_text
    hidden_activation: gelu_pytorch_tanh
    head_dim: 8
    query_pre_attn_scalar: 8
    sliding_window: 8
    layer_types: [sliding_attention, full_attention, sliding_attention]
    rope_parameters:
        full_attention: {rope_type: linear, factor: 8.0, rope_theta: 1000000.0}
        sliding_attention: {rope_type: default, rope_theta: 10000.0}
""")


def byte_level(*, trim_offsets: bool = True) -> Tokenizer:
    """A byte-level tokenizer of 300 tokens at most: bytes, and some merges of English."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("r", "i"), ("v", "er"), ("e", "r"), ("ri", "ver"), ("a", "n"), ("b", "an"), ("ban", "k"), ("Ġ", "a")]
    merges += [("Ġ", "ban"), ("Ġ", "ri"), ("'", "s"), (".", "."), ("..", ".")]
    merges.sort(key=lambda pair: len(pair[0] + pair[1]))
    entries = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, *dict.fromkeys(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(entries[:4])
    if trim_offsets:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    return tokenizer


def _wordpiece(folder: Path) -> None:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(entries))


def _mpnet(folder: Path) -> None:
    entries = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *WORDS, "<mask>"]
    ids = {entry: number for number, entry in enumerate(entries)}
    special = [
        {"id": ids[name], "content": name, "special": True} for name in ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
    ]
    content = {
        "added_tokens": special,
        "normalizer": NORMALIZER,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": ids},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokens = {
        "cls": "<s>",
        "sep": "</s>",
        "unk": "[UNK]",
        "pad": "<pad>",
        "bos": "<s>",
        "eos": "</s>",
        "mask": "<mask>",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps({f"{name}_token": token for name, token in tokens.items()})
    )


def _unigram(folder: Path) -> None:
    """As ALBERT's tokenizer: lower-cased, without accents."""
    entries = [
        "<pad>",
        "<unk>",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "\u2581",
        "\u2581a",
        "\u2581river",
        "\u2581bank",
        "\u2581the",
    ]
    entries += ["\u2581in", "river", "bank", "s", "er", *".,'kb"]
    tokenizer = Tokenizer(models.Unigram([(entry, -float(i)) for i, entry in enumerate(entries)], unk_id=1))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.add_special_tokens(entries[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


_TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "roberta": lambda folder: byte_level().save(str(folder / "tokenizer.json")),
    "mpnet": _mpnet,
    "albert": _unigram,
    **dict.fromkeys(
        ("modernbert", "jina", "eurobert", "qwen3", "gemma3"),
        lambda folder: byte_level(trim_offsets=False).save(str(folder / "tokenizer.json")),
    ),
    "gte": _unigram,
    "deberta": _unigram,
}


def write_encoder(folder: Path, name: str, *, prefixed: bool = False, positions: int = 64) -> Path:
    """A folder with an encoder. `prefixed`: its tensors are those of a model with a head."""
    folder.mkdir(parents=True)
    # DistilBERT has other names for the sizes.
    common = (_COMMON if "dim" not in CONFIGS[name] else {"vocab_size": 300}) | {"max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps(common | CONFIGS[name]))
    architecture = read_architecture(ConfigFile("test", folder / "config.json"))
    # Of a gated layer's random products some tokens have small sums, whose directions depend on the rounding. The
    # tolerances of tests/gpu are for a draw in which they do so little.
    weights = random_weights(architecture, seed=4 if name == "modernbert" else len(name))
    prefix = architecture.prefix if prefixed else ""
    tensors = {prefix + name: values for name, values in file_tensors(architecture, weights).items()}
    if prefixed:
        tensors["classifier.weight"] = np.zeros((2, 24), np.float32)
    save_file(tensors, folder / "model.safetensors")
    _TOKENIZERS.get(name.split("-")[0], _wordpiece)(folder)
    return folder


def batch_of(lengths: list[int], longest: int) -> tuple[np.ndarray, ...]:
    """Random token ids [B, S] with the padding's id within a text, lengths, segment ids: 1 in the second half."""
    random = np.random.default_rng(5)
    token_ids = random.integers(0, 300, (len(lengths), longest)).astype(np.int32)
    token_ids[:, 3] = 1
    real = np.arange(longest) < np.array(lengths)[:, None]
    second = np.arange(longest) >= np.array(lengths)[:, None] // 2
    return np.where(real, token_ids, 7).astype(np.int32), np.array(lengths, np.int32), (second & real).astype(np.int32)
