"""The table of sizes in docs/output.md, from the number of WordPiece tokens in the Bible."""

from __future__ import annotations

import pyarrow as pa
from corpus import read_bible

from layerbeam.pipeline.console import size_text
from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.tokenize.wordpiece import WordPiece

ENCODERS = {"MiniLM": 384, "BERT-base": 768, "BERT-large": 1024}
LAYERS = 4
FLOAT32 = 4


def main() -> None:
    verses = read_bible()
    size = sum(len(verse.encode()) + 1 for verse in verses)
    source = open_encoder("minilm")
    tokens = len(WordPiece(source.vocabulary, source.do_lower_case).tokenize(pa.array(verses)).ids)
    rows = tokens + 2 * len(verses)  # [CLS] and [SEP]
    print(f"{size / tokens:.1f} bytes of text per token, {size / len(verses):.0f} per line")
    for name, hidden_size in ENCODERS.items():
        vector = hidden_size * FLOAT32
        sizes = [text / size * rows * LAYERS * vector for text in (1e6, 200e6, 10e9)]
        sizes.append(10e9 / size * len(verses) * vector)
        print(f"| {name} ({hidden_size}) | {vector:,} | {' | '.join(map(size_text, sizes))} |")


if __name__ == "__main__":
    main()
