"""Records of very many tokens, in windows and as chunks that see all of their record: time and peak memory.

python long_records.py [--tokens N ...]. A record has these tokens of the Bible (Debian's package bible-kjv) and is a
file; MiniLM, windows of 512 tokens, one process with a thread for each core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import yaml
from command import layerbeam_run, run_record
from corpus import read_bible

from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece

CHUNKS = {"unit": "chunk", "chunk": {"tokens": 64, "overlap": 0}}
# {name: settings of input, of encoder, and of the view}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "windows, a vector per record": ({}, {"long_text": "window"}, {"level": "text"}),
    "windows, a vector per token": ({}, {"long_text": "window"}, {"level": "token"}),
    "chunks with `context: record`": (CHUNKS, {"context": "record"}, {"level": "text"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000, 75_000, 150_000, 300_000])
    given = parser.parse_args()
    minilm = open_encoder("minilm")
    wordpiece = ReferenceWordPiece(minilm.vocabulary, minilm.do_lower_case)
    verses = read_bible()
    counts = [len(wordpiece.sequence(verse, "", 1 << 20)[0]) - 2 for verse in verses]
    print(f"| one record of | {' | '.join(WAYS)} |\n|{'---|' * (1 + len(WAYS))}")
    for tokens in given.tokens:
        cells = []
        for read, encoder, view in WAYS.values():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "record.txt").write_text(record_of(verses, counts, tokens))
                settings = {
                    "input": {"files": ["record.txt"], "record": "file", **read},
                    "encoder": {"max_seq_length": 512, **encoder},
                    "views": {"view": {"layers": [-1], "pooling": "mean", **view}},
                    "output": {"path": "out"},
                }
                if view["level"] == "token":
                    del settings["views"]["view"]["pooling"]
                (folder / "c.yaml").write_text(yaml.safe_dump(settings))
                _, own, _ = layerbeam_run(folder)
                seconds = run_record(folder / "out")["seconds"]
                cells.append(f"{seconds:.0f} s, {own / 1e9:.2f} GB")
        print(f"| {tokens:,} tokens | {' | '.join(cells)} |", flush=True)


def record_of(verses: list[str], counts: list[int], tokens: int) -> str:
    """The verses, again and again, until they have so many tokens."""
    record, found = [], 0
    while found < tokens:
        number = len(record) % len(verses)
        record.append(verses[number])
        found += counts[number]
    return " ".join(record)


if __name__ == "__main__":
    main()
