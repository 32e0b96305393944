"""Well-known encoders of every architecture, one line each: what `layerbeam encoder` lists.

The facts are those of the models' pages at Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from layerbeam.pipeline.console import plain_console
from layerbeam.transforms.encoders.architectures import ARCHITECTURES


class KnownEncoder(NamedTuple):
    """`model_type`: in its config.json. `parameters`: in millions, rounded. `tokenizer`: its kind."""

    handle: str
    model_type: str
    parameters: int
    layers: int
    hidden_size: int
    tokenizer: str
    licence: str


KNOWN = (
    KnownEncoder("minilm", "bert", 23, 6, 384, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://google-bert/bert-base-uncased", "bert", 110, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://google-bert/bert-base-cased", "bert", 108, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://google-bert/bert-large-uncased", "bert", 336, 24, 1024, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://google-bert/bert-base-multilingual-cased", "bert", 178, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://sentence-transformers/LaBSE", "bert", 471, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://BAAI/bge-small-en-v1.5", "bert", 33, 12, 384, "WordPiece", "MIT"),
    KnownEncoder("hf://BAAI/bge-base-en-v1.5", "bert", 109, 12, 768, "WordPiece", "MIT"),
    KnownEncoder("hf://BAAI/bge-large-en-v1.5", "bert", 335, 24, 1024, "WordPiece", "MIT"),
    KnownEncoder("hf://intfloat/e5-base-v2", "bert", 109, 12, 768, "WordPiece", "MIT"),
    KnownEncoder("hf://intfloat/multilingual-e5-small", "bert", 118, 12, 384, "Unigram", "MIT"),
    KnownEncoder("hf://distilbert/distilbert-base-uncased", "distilbert", 66, 6, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://albert/albert-base-v2", "albert", 12, 12, 768, "Unigram", "Apache-2.0"),
    KnownEncoder("hf://google/electra-base-discriminator", "electra", 109, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://FacebookAI/roberta-base", "roberta", 125, 12, 768, "byte-level BPE", "MIT"),
    KnownEncoder("hf://FacebookAI/roberta-large", "roberta", 355, 24, 1024, "byte-level BPE", "MIT"),
    KnownEncoder("hf://FacebookAI/xlm-roberta-base", "xlm-roberta", 278, 12, 768, "Unigram", "MIT"),
    KnownEncoder("hf://intfloat/multilingual-e5-base", "xlm-roberta", 278, 12, 768, "Unigram", "MIT"),
    KnownEncoder("hf://intfloat/multilingual-e5-large", "xlm-roberta", 560, 24, 1024, "Unigram", "MIT"),
    KnownEncoder("hf://BAAI/bge-m3", "xlm-roberta", 568, 24, 1024, "Unigram", "MIT"),
    KnownEncoder("hf://almanach/camembert-base", "camembert", 111, 12, 768, "Unigram", "MIT"),
    KnownEncoder("hf://sentence-transformers/all-mpnet-base-v2", "mpnet", 109, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://microsoft/deberta-v3-base", "deberta-v2", 184, 12, 768, "Unigram *", "MIT"),
    KnownEncoder("hf://answerdotai/ModernBERT-base", "modernbert", 149, 22, 768, "byte-level BPE", "Apache-2.0"),
    KnownEncoder("hf://answerdotai/ModernBERT-large", "modernbert", 395, 28, 1024, "byte-level BPE", "Apache-2.0"),
    KnownEncoder("hf://nomic-ai/nomic-embed-text-v1.5", "nomic_bert", 137, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://Alibaba-NLP/gte-base-en-v1.5", "new", 137, 12, 768, "WordPiece", "Apache-2.0"),
    KnownEncoder("hf://Alibaba-NLP/gte-multilingual-base", "new", 305, 12, 768, "Unigram", "Apache-2.0"),
    KnownEncoder("hf://Snowflake/snowflake-arctic-embed-m-v2.0", "gte", 305, 12, 768, "Unigram", "Apache-2.0"),
    KnownEncoder("hf://jinaai/jina-embeddings-v3-hf", "jina_embeddings_v3", 572, 24, 1024, "Unigram", "CC-BY-NC-4.0"),
    KnownEncoder("hf://EuroBERT/EuroBERT-210m", "eurobert", 212, 12, 768, "byte-level BPE", "Apache-2.0"),
    KnownEncoder("hf://Qwen/Qwen3-Embedding-0.6B", "qwen3", 596, 28, 1024, "byte-level BPE", "Apache-2.0"),
    KnownEncoder("hf://google/embeddinggemma-300m", "gemma3_text", 303, 24, 768, "BPE", "Gemma"),
)


def licence_of(handle: str) -> str | None:
    """The licence of a known encoder's weights."""
    return next((known.licence for known in KNOWN if known.handle == handle), None)


def list_encoders() -> dict[str, Any]:
    """{architecture: the values of `model_type` that it has, and its known encoders}."""
    return {
        kind.title: {
            "model_types": list(kind.model_types),
            "encoders": [known._asdict() for known in KNOWN if known.model_type in kind.model_types],
        }
        for kind in ARCHITECTURES
    }


def print_encoders(listed: Mapping[str, Any]) -> None:
    """Print what `list_encoders` gives: a heading for each architecture, a line for each encoder."""
    console = plain_console(soft_wrap=True)
    print_line = f"{{:{2 + max(len(known.handle) for known in KNOWN)}}} {{:>10}} {{:>8}}  {{:14}}  {{}}".format
    console.print(print_line("encoder.handle", "parameters", "blocks", "tokenizer", "licence"))
    for title, of_architecture in listed.items():
        console.print(f"\n{title} (model_type {', '.join(of_architecture['model_types'])})")
        for known in map(KnownEncoder._make, (encoder.values() for encoder in of_architecture["encoders"])):
            blocks = f"{known.layers}x{known.hidden_size}"
            size = f"{known.parameters} M"
            console.print(print_line(f"  {known.handle}", size, blocks, known.tokenizer, known.licence))
    console.print(
        "\nblocks: their number and the width of their vectors.\n"
        "*: the model's files have no tokenizer.json; opening it says how transformers makes one.\n"
        "Any other encoder opens, too, if its config.json has one of these values of model_type; so do BERT as Google\n"
        "released it (bert_config.json) and TF Hub's SavedModels. `layerbeam encoder HANDLE` describes one."
    )
