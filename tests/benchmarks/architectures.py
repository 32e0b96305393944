"""The encoder alone, for every architecture at its usual size, compared with transformers at its best.

python architectures.py RIVALS_PYTHON [--rounds N] [--lines N] [--only NAME ...] [--write]

Needs Debian's package bible-kjv. The weights are random, the tokenizers are MiniLM's WordPiece or byte-level BPE made
from the texts. transformers takes the faster of eager and torch.compile, and the fastest of five batch sizes. A round
also compares the vectors.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import random_encoder
import yaml
from corpus import read_bible
from page import write_table
from random_encoder import make_weights, write_safetensors
from speed import Bench, processor
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from layerbeam.transforms.encoders.architectures import read_architecture
from layerbeam.transforms.encoders.config_file import ConfigFile

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BASE = dataclasses.asdict(random_encoder.BASE)
# {name: what config.json has besides BASE's sizes}
CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load("""
BERT-base: {model_type: bert}
DistilBERT-base: {model_type: distilbert, dim: 768, n_layers: 6, n_heads: 12, hidden_dim: 3072, activation: gelu}
ALBERT-base: {model_type: albert, embedding_size: 128, num_hidden_groups: 1, inner_group_num: 1}
ELECTRA-base: {model_type: electra, embedding_size: 768}
ELECTRA-small:
    {model_type: electra, embedding_size: 128, hidden_size: 256, num_attention_heads: 4, intermediate_size: 1024}
RoBERTa-base: {model_type: roberta, type_vocab_size: 1, pad_token_id: 1, max_position_embeddings: 514}
MPNet-base: {model_type: mpnet, pad_token_id: 1, max_position_embeddings: 514, relative_attention_num_buckets: 32}
DeBERTa-v3-base:
    {model_type: deberta-v2, type_vocab_size: 0, pad_token_id: 1, layer_norm_eps: 1.0e-7, relative_attention: true,
     pos_att_type: p2c|c2p, position_buckets: 256, max_relative_positions: -1, share_att_key: true,
     norm_rel_ebd: layer_norm, position_biased_input: false}
ModernBERT-base:
    {model_type: modernbert, hidden_activation: gelu, norm_eps: 1.0e-5, num_hidden_layers: 22, intermediate_size: 1152,
     max_position_embeddings: 8192, local_attention: 128, global_attn_every_n_layers: 3, global_rope_theta: 160000.0,
     local_rope_theta: 10000.0, pad_token_id: 1}
NomicBERT-base: {model_type: nomic_bert, hidden_act: silu, max_position_embeddings: 2048, pad_token_id: 0}
GTE-base: {model_type: gte, type_vocab_size: 0, max_position_embeddings: 8192, pad_token_id: 0}
jina-embeddings-v3:
    {model_type: jina_embeddings_v3, type_vocab_size: 1, pad_token_id: 1, hidden_size: 1024, num_hidden_layers: 24,
     num_attention_heads: 16, intermediate_size: 4096, max_position_embeddings: 8194}
EuroBERT-210m: {model_type: eurobert, hidden_act: silu, max_position_embeddings: 8192, pad_token_id: 1}
Qwen3-Embedding-0.6B:
    {model_type: qwen3, hidden_act: silu, hidden_size: 1024, num_hidden_layers: 28, num_attention_heads: 16,
     num_key_value_heads: 8, head_dim: 128, intermediate_size: 3072, max_position_embeddings: 32768, pad_token_id: 1,
     rope_theta: 1000000}
EmbeddingGemma-300m:
    {model_type: gemma3_text, hidden_activation: gelu_pytorch_tanh, num_hidden_layers: 24, num_attention_heads: 3,
     num_key_value_heads: 1, head_dim: 256, intermediate_size: 1152, max_position_embeddings: 2048, pad_token_id: 1,
     query_pre_attn_scalar: 256, sliding_window: 512, use_bidirectional_attention: true}
""")
WORDPIECE = (
    "BERT-base",
    "DistilBERT-base",
    "ALBERT-base",
    "ELECTRA-base",
    "ELECTRA-small",
    "NomicBERT-base",
    "GTE-base",
)


def write_byte_pairs(folder: Path, texts: list[str]) -> None:
    """A tokenizer.json of byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=30_000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))


def write_encoder(folder: Path, name: str, minilm: Path) -> None:
    """Write the encoder of this name into a new folder, which Hugging Face's libraries can read, too."""
    folder.mkdir()
    given = CONFIGS[name]
    # DistilBERT has other names for its sizes; transformers would prefer those of BASE.
    fields = (BASE if "dim" not in given else {"vocab_size": 30522, "max_position_embeddings": 512}) | given
    (folder / "config.json").write_text(json.dumps(fields))
    architecture = read_architecture(ConfigFile(name, folder / "config.json"))
    write_safetensors(folder, architecture, make_weights(architecture))
    if name not in WORDPIECE:
        write_byte_pairs(folder, read_bible())
    else:
        for file in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(minilm / file, folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rivals_python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--write", action="store_true", help="write the table to tests/benchmarks/README.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary), options.rivals_python, "", "", ("transformers",), options.lines)
        for name in options.only:
            write_encoder(bench.folder / name, name, Path(bench.encoders["MiniLM"]))
            bench.encoders[name] = str(bench.folder / name)
        for _ in range(options.rounds):
            for name in options.only:
                for dtype in bench.dtypes:
                    bench.tokens(name, "verses", dtype)
        lines = [
            f"{processor()}, {bench.versions}; medians of {options.rounds} interleaved rounds.",
            "",
            "| encoder alone | tokens/s | transformers | ratio | to Parquet, ratio |",
            "|---|---|---|---|---|",
        ]
        for name in options.only:
            for dtype in bench.dtypes:
                case = f"{name}, {dtype}, verses"
                alone, theirs = f"{case}: our encoder alone", f"{case}: transformers"
                ours, rival = bench.median(alone), bench.median(theirs, "encoder_seconds")
                tokens, mode = bench.median(alone, "tokens"), bench.results[theirs][0]["mode"]
                whole = bench.median(theirs) / bench.median(f"{case}: layerbeam")
                rates = f"{tokens / ours:,.0f} | {mode}: {tokens / rival:,.0f} | {rival / ours:.2f} | {whole:.2f}"
                lines.append(f"| {name}, {dtype} | {rates} |")
    print("\n".join(lines))
    if options.write:
        write_table("architectures", lines)


if __name__ == "__main__":
    main()
