"""Encoders of every architecture with random weights, and what Hugging Face transformers makes of texts with them.

Runs in the environment of requirements.txt: python expect_architectures.py FOLDER [NAME ...]. Writes
FOLDER/<name>/encoder, its texts and expected.npz for each. Those named <name>-long get texts of 2,000 and more than
8,000 tokens, which are cut off at 8,000.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from hostile import hostile_texts
from texts import read_sentences
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

NUM_HOSTILE = 10_000
MAX_SEQ_LENGTH = 300
MAX_LONG = 8_000
WORDPIECE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SCALES = {"modernbert": 0.05, "eurobert": 0.05, "qwen3": 0.05, "gte": 0.1, "nomic": 0.1}
SIZES: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 160}


def corpus() -> list[str]:
    """What the tokenizers are trained on."""
    data = Path(__file__).resolve().parents[1] / "data" / "sentences"
    return [*read_sentences(), *(path.read_text(encoding="utf-8") for path in sorted(data.glob("*.txt")))]


def train(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def wordpiece(specials: list[str], *, strip_accents: bool = True) -> list[str]:
    """The entries of a WordPiece vocabulary, in the order of their ids."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=specials, show_progress=False))
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.get)


def byte_pairs(specials: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    return train(tokenizer, trainer)


def unigram(specials: list[str], unknown: str = "<unk>") -> list[tuple[str, float]]:
    """The entries of a Unigram vocabulary with their scores."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=2000, special_tokens=specials, unk_token=unknown, show_progress=False)
    train(tokenizer, trainer)
    return [(token, score) for token, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def ids_of(entries: list[str]) -> dict[str, int]:
    return {entry: index for index, entry in enumerate(entries)}


def bert_tokenizer(kind: Any) -> Any:
    return kind(vocab=ids_of(wordpiece(WORDPIECE)))


def accents_tokenizer() -> Any:
    """As German and Turkish BERTs that lower-case and keep accents."""
    return transformers.BertTokenizer(vocab=ids_of(wordpiece(WORDPIECE, strip_accents=False)), strip_accents=False)


def japanese_tokenizer() -> Any:
    """Cased, with accents taken off, and Chinese characters in words."""
    vocab = ids_of(wordpiece(WORDPIECE))
    options = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
    return transformers.BertTokenizer(vocab=vocab, **options)


def added_tokenizer() -> Any:
    """With tokens that are cut out of texts, in all ways that there are."""
    tokenizer = bert_tokenizer(transformers.BertTokenizer)
    tokenizer.add_tokens(["covid", AddedToken("the", single_word=True), AddedToken("New York", normalized=False)])
    tokenizer.add_tokens([AddedToken("...", lstrip=True, rstrip=True), AddedToken("[ENT]", special=True)])
    tokenizer.add_tokens(["covid-19", "\u4f60", "e", AddedToken("--", normalized=False)])
    return tokenizer


def other_wordpiece_tokenizer() -> Any:
    """WordPiece of another form than BERT's, which transformers takes from tokenizer.json as it is."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>", continuing_subword_prefix="@@"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(
        vocab_size=2000, special_tokens=ROBERTA, continuing_subword_prefix="@@", show_progress=False
    )
    train(tokenizer, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = dict(zip(("cls", "pad", "sep", "unk", "mask"), ROBERTA, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{kind}_token": token for kind, token in names.items()},
    )


def mpnet_tokenizer() -> Any:
    entries = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", *wordpiece(["[UNK]"])[1:], "<mask>"]
    return transformers.MPNetTokenizer(vocab=ids_of(entries))


def albert_tokenizer() -> Any:
    return transformers.AlbertTokenizer(vocab=unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]))


def deberta_tokenizer() -> Any:
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    return transformers.DebertaV2Tokenizer(vocab=unigram(specials, "[UNK]"), unk_id=3)


def roberta_tokenizer() -> Any:
    model = json.loads(byte_pairs(ROBERTA).to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)


def modernbert_tokenizer() -> Any:
    """As ModernBERT's: runs of spaces and some tags are added tokens; the offsets keep leading spaces."""
    tokenizer = byte_pairs(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * count, normalized=False) for count in (4, 3, 2)])
    tokenizer.add_tokens([AddedToken("|||EMAIL_ADDRESS|||", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = dict(zip(("unk", "cls", "sep", "pad", "mask"), ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"), strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{kind}_token": token for kind, token in names.items()},
    )


def distilbert(tokens: int) -> Any:
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    sizes = {names.get(name, "hidden_dim"): size for name, size in SIZES.items()}
    return transformers.DistilBertConfig(vocab_size=tokens + 3, max_position_embeddings=320, **sizes)


def modernbert(tokens: int) -> Any:
    return transformers.ModernBertConfig(
        vocab_size=tokens + 3,
        max_position_embeddings=1024,
        local_attention=32,
        pad_token_id=3,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        **SIZES,
    )


def qwen_tokenizer() -> Any:
    """As that of Qwen3-Embedding: byte pairs, one token behind a text and none before it, padding on the left."""
    tokenizer = byte_pairs(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def gemma_tokenizer() -> Any:
    """As that of Gemma: pieces of text with spaces as \u2581, bytes for the rest, <bos> before and <eos> behind."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=[*specials, *letters], show_progress=False)
    model = json.loads(train(trained, trainer).to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> <bos> $B <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **names
    )


def gemma(**differences: Any) -> Callable[[int], Any]:
    """Few heads of keys and values, of another size than H divided by the heads; short windows."""
    return config(
        transformers.Gemma3TextConfig,
        head_dim=24,
        num_key_value_heads=2,
        query_pre_attn_scalar=20,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"] * 2,
        **differences,
    )


def deberta(**differences: Any) -> Callable[[int], Any]:
    """As DeBERTa-v3's, but for the sizes."""
    v3 = {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 64,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    }
    return config(transformers.DebertaV2Config, **v3 | differences)


def config(kind: Any, **differences: Any) -> Callable[[int], Any]:
    return lambda tokens: kind(**{"vocab_size": tokens + 3, "max_position_embeddings": 320} | SIZES | differences)


# {name: (its tokenizer, its configuration for that many tokens)}
CASES: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "bert": (lambda: bert_tokenizer(transformers.BertTokenizer), config(transformers.BertConfig)),
    "bert-accents": (accents_tokenizer, config(transformers.BertConfig)),
    "bert-japanese": (japanese_tokenizer, config(transformers.BertConfig)),
    "bert-added": (added_tokenizer, config(transformers.BertConfig)),
    "bert-other": (other_wordpiece_tokenizer, config(transformers.BertConfig)),
    "distilbert": (lambda: bert_tokenizer(transformers.DistilBertTokenizer), distilbert),
    "albert": (albert_tokenizer, config(transformers.AlbertConfig, embedding_size=40)),
    "albert-groups": (
        albert_tokenizer,
        config(transformers.AlbertConfig, embedding_size=96, num_hidden_groups=3, inner_group_num=2),
    ),
    "electra": (
        lambda: bert_tokenizer(transformers.ElectraTokenizer),
        config(transformers.ElectraConfig, embedding_size=40),
    ),
    "electra-wide": (
        lambda: bert_tokenizer(transformers.ElectraTokenizer),
        config(transformers.ElectraConfig, embedding_size=96, num_attention_heads=2),
    ),
    "roberta": (roberta_tokenizer, config(transformers.RobertaConfig, max_position_embeddings=330, type_vocab_size=1)),
    "xlm-roberta": (
        lambda: transformers.XLMRobertaTokenizer(vocab=unigram(ROBERTA[:4])),
        config(transformers.XLMRobertaConfig, max_position_embeddings=330, type_vocab_size=1, hidden_act="gelu_new"),
    ),
    "camembert": (
        lambda: transformers.CamembertTokenizer(vocab=unigram(["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>"])),
        config(transformers.CamembertConfig, max_position_embeddings=330, type_vocab_size=1),
    ),
    "bert-xlm-roberta": (
        lambda: transformers.XLMRobertaTokenizer(vocab=unigram(ROBERTA[:4])),
        config(transformers.BertConfig),
    ),
    "deberta-v3": (deberta_tokenizer, deberta()),
    "deberta-v2-xlarge": (deberta_tokenizer, deberta(conv_kernel_size=3, conv_act="gelu")),
    "deberta-v2-plain": (
        deberta_tokenizer,
        deberta(
            pos_att_type="c2p",
            position_buckets=-1,
            max_relative_positions=100,
            share_att_key=False,
            norm_rel_ebd="none",
            position_biased_input=True,
            type_vocab_size=2,
            embedding_size=40,
        ),
    ),
    "deberta-v2-p2c": (deberta_tokenizer, deberta(pos_att_type="p2c", share_att_key=False, max_relative_positions=200)),
    "mpnet": (mpnet_tokenizer, config(transformers.MPNetConfig, max_position_embeddings=330)),
    "modernbert": (modernbert_tokenizer, modernbert),
    "modernbert-biases": (
        modernbert_tokenizer,
        lambda tokens: transformers.ModernBertConfig(
            **{**modernbert(tokens).to_dict(), "norm_bias": True, "attention_bias": True, "mlp_bias": True}
        ),
    ),
    "nomic": (lambda: bert_tokenizer(transformers.BertTokenizer), config(transformers.NomicBertConfig)),
    "gte": (
        lambda: transformers.XLMRobertaTokenizer(vocab=unigram(ROBERTA[:4])),
        config(transformers.GteConfig),
    ),
    "gte-english": (
        lambda: bert_tokenizer(transformers.BertTokenizer),
        config(transformers.GteConfig, type_vocab_size=0),
    ),
    "jina-v3": (
        lambda: transformers.XLMRobertaTokenizer(vocab=unigram(ROBERTA[:4])),
        config(transformers.JinaEmbeddingsV3Config),
    ),
    "eurobert": (roberta_tokenizer, config(transformers.EuroBertConfig, pad_token_id=1, num_key_value_heads=2)),
    "eurobert-biases": (
        roberta_tokenizer,
        config(transformers.EuroBertConfig, pad_token_id=1, attention_bias=True, mlp_bias=True),
    ),
    "qwen3": (qwen_tokenizer, config(transformers.Qwen3Config, head_dim=24, num_key_value_heads=3)),
    "gemma3": (gemma_tokenizer, gemma(use_bidirectional_attention=True)),
    "gemma3-causal": (
        gemma_tokenizer,
        gemma(
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        ),
    ),
}

# Those with models for long texts, and DeBERTa, which has no last position.
LONG = (
    "xlm-roberta",
    "deberta-v3",
    "modernbert",
    "nomic",
    "gte",
    "jina-v3",
    "eurobert",
    "qwen3",
    "gemma3",
    "gemma3-causal",
)


def for_long_texts(make_config: Callable[[int], Any]) -> Callable[[int], Any]:
    """The same with more positions, and with fewer blocks and heads: what float32 may be off is computed 9 times."""

    def make(tokens: int) -> Any:
        short = make_config(tokens)
        sizes = {"max_position_embeddings": MAX_LONG + 10, "num_hidden_layers": 2, "num_attention_heads": 2}
        given = short.to_dict()
        if given.get("num_key_value_heads") is not None:
            is_shared = given["num_key_value_heads"] < given["num_attention_heads"]
            sizes["num_key_value_heads"] = 1 if is_shared else 2
        if given.get("layer_types") is not None:
            sizes["layer_types"] = given["layer_types"][:2]
        return type(short)(**given | sizes)

    return make


CASES |= {f"{name}-long": (CASES[name][0], for_long_texts(CASES[name][1])) for name in LONG}

# Those that TensorFlow Text cannot cut.
OTHER_WORDPIECE = ("bert-accents", "bert-japanese", "bert-added", "bert-other")


def texts() -> list[tuple[str, str | None]]:
    """Texts and pairs: short, long, odd lengths, cut off."""
    sentences = read_sentences()
    singles = [*sentences[:60], " ".join(sentences[60:80]), " ".join(sentences[80:84]), "a", "\u4f60\u597d \U0001f600"]
    pairs = list(zip(sentences[100:120], sentences[120:140], strict=True))
    return [*((text, None) for text in singles), *pairs, ("short", " ".join(sentences[140:144]))]


def long_texts() -> list[tuple[str, None]]:
    """A text of about 2,000 tokens, one that is cut off, and a short one."""
    words = " ".join(corpus()).split()
    return [(" ".join(words[:700]), None), (" ".join(words[-9_000:]), None), ("short", None)]


def make(name: str, folder: Path) -> None:
    """Write an encoder, its texts, and what transformers gives for them."""
    is_long = name.endswith("-long")
    torch.manual_seed(sum(map(ord, name)))
    make_tokenizer, make_config = CASES[name]
    tokenizer = make_tokenizer()
    model = transformers.AutoModel.from_config(make_config(len(tokenizer))).eval()
    # As large as in trained encoders, so that attention and GELU matter. Where blocks add to each other without a norm,
    # rounding grows with the sum, and where a gate multiplies, with the product.
    scale = next((scale for kind, scale in SCALES.items() if name.startswith(kind)), 0.15)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * (scale if parameter.ndim > 1 else 0.1)
    encoder = str(folder / name / "encoder")
    model.save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    # DeBERTa has eager attention only.
    attention = "sdpa" if is_long and not name.startswith("deberta") else "eager"
    model = transformers.AutoModel.from_pretrained(encoder, dtype=torch.float32, attn_implementation=attention).eval()

    # ALBERT's tokenizer gives them only when asked.
    segments = True if getattr(model.config, "type_vocab_size", 0) > 1 else None
    max_seq_length = MAX_LONG if is_long else MAX_SEQ_LENGTH
    saved: dict[str, Any] = {"max_seq_length": max_seq_length}
    of_encoder = long_texts() if is_long else texts()
    with (folder / name / "texts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text, "pair": pair}) + "\n" for text, pair in of_encoder)
    for number, (text, pair) in enumerate(of_encoder):
        encoded = tokenizer(
            text,
            pair,
            truncation=True,
            max_length=max_seq_length,
            return_tensors="pt",
            return_token_type_ids=segments,
        )
        with torch.inference_mode():
            got = model(**encoded, output_hidden_states=True)
        saved[f"ids_{number}"] = encoded["input_ids"][0].numpy()
        saved[f"segments_{number}"] = encoded.get("token_type_ids", 0 * encoded["input_ids"])[0].numpy()
        saved[f"hidden_{number}"] = torch.cat(got.hidden_states).numpy()
        if getattr(got, "pooler_output", None) is not None:
            saved[f"pooler_{number}"] = got.pooler_output[0].numpy()

    # BERT's own WordPiece follows Google's code, with which transformers does not agree; other tests compare it.
    is_wordpiece = json.loads(Path(encoder, "tokenizer.json").read_text())["model"]["type"] == "WordPiece"
    if not is_long and (not is_wordpiece or name in OTHER_WORDPIECE):
        saved |= tokenize_hostile(tokenizer, folder / name)
    np.savez(folder / name / "expected.npz", **saved)
    print(f"{name}: {type(model).__name__}, {type(tokenizer).__name__}, {len(tokenizer):,} tokens")


def tokenize_hostile(tokenizer: Any, folder: Path) -> dict[str, Any]:
    """The ids, tokens and offsets of hostile texts, which are written to a file."""
    hostile = hostile_texts(NUM_HOSTILE, len(folder.name), tuple(tokenizer.all_special_tokens))
    (folder / "hostile.json").write_text(json.dumps(hostile))
    encodings = tokenizer(
        hostile, add_special_tokens=False, return_offsets_mapping=True, padding=False, truncation=False
    )
    ids = np.concatenate([np.array(of_text, np.int64) for of_text in encodings["input_ids"]])
    offsets = [np.array(spans, np.int64).reshape(-1, 2) for spans in encodings["offset_mapping"]]
    return {
        "hostile_splits": np.cumsum([0, *map(len, encodings["input_ids"])]),
        "hostile_ids": ids,
        "hostile_offsets": np.concatenate(offsets),
        "hostile_tokens": np.array(tokenizer.convert_ids_to_tokens(ids.tolist()), dtype=np.str_),
    }


def main(output: str, *names: str) -> None:
    """Make the encoders of these names, of all without any."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    folder = Path(output)
    for name in names or CASES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        make(name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
