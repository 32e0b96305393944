"""The tables of sizes in docs/output.md: by the number of tokens in the Bible, and by the number type in files."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from command import run_settings
from corpus import read_bible

import layerbeam
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
    with tempfile.TemporaryDirectory() as folder:
        compare_number_types(Path(folder), verses[:600])


def compare_number_types(folder: Path, verses: list[str]) -> None:
    """Write and read the same vectors, two layers of MiniLM per token, in each number type."""
    (folder / "verses.txt").write_text("\n".join(verses))
    view = {"level": "token", "layers": [3, 6]}
    views = {dtype: view | {"dtype": dtype} for dtype in ("float32", "float16", "int8")}
    run_settings(folder, {"input": {"files": ["verses.txt"]}, "views": views, "output": {"path": "out"}})
    run = layerbeam.open_run(str(folder / "out"))
    print("| type | bytes per vector | of 1,536 | ms to read 10,000 vectors as float32 |")
    for dtype in views:
        given = run[dtype]
        size = sum(part.bytes for part in given.parts)
        seconds = []
        for _ in range(7):
            started = time.perf_counter()
            given.to_numpy("layer_6").astype("float32", copy=False)
            seconds.append(time.perf_counter() - started)
        each = size / len(given) / 2  # the other columns, too
        read = statistics.median(seconds) / len(given) * 1e7
        print(f"| {dtype} | {each:,.0f} | {each / (384 * FLOAT32):.2f} | {read:.0f} |")


if __name__ == "__main__":
    main()
