"""Chunks of documents, plain and late: layerbeam next to chonkie and sentence-transformers, for docs/documents.md.

python chunks.py RIVAL_PYTHON CHONKIE_FOLDER [--rounds N] [--only CONTEXT ...]. Documents of as many verses as fit in a
context; chunks of at most 64 tokens. Plain chunks are cut by chonkie and encoded by sentence-transformers, late ones
cut and encoded by chonkie. Tokens are those of the documents, the same for all; start-up and loading are excluded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from architectures import write_encoder
from corpus import read_bible
from speed import processor

import layerbeam
from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece

TOKENS = 64
# {tokens of a document at most: the encoder, and the number of documents}
CONTEXTS = {
    256: ("MiniLM", 240),
    390: ("MiniLM", 160),
    512: ("MiniLM", 120),
    2048: ("GTE-base", 12),
    8192: ("GTE-base", 4),
}
WAYS = {"plain": "text", "late": "record"}  # {how: encoder.context}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rival_python")
    parser.add_argument("chonkie_folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=int, nargs="+", choices=CONTEXTS, default=list(CONTEXTS))
    options = parser.parse_args()
    minilm = open_encoder("minilm")
    print(f"{processor()}, {len(os.sched_getaffinity(0))} cores; medians of {options.rounds} rounds, tokens/s.\n")
    heads = [f"{way}: layerbeam | others | ratio" for way in WAYS]
    print(f"| context, encoder | {' | '.join(heads)} |\n|{'---|' * (1 + 3 * len(WAYS))}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_encoder(folder / "GTE-base", "GTE-base", Path(minilm.folder))
        for context in options.only:
            name, number = CONTEXTS[context]
            encoder = folder / name if name != "MiniLM" else Path(minilm.folder)
            texts, tokens = make_documents(ReferenceWordPiece(minilm.vocabulary, minilm.do_lower_case), context, number)
            (folder / "documents.json").write_text(json.dumps(texts))
            (folder / "documents.txt").write_text("\n".join(texts))
            rates: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
            for _ in range(options.rounds):
                for way, found in rates.items():
                    how = [way, str(encoder), str(folder / "documents.json"), str(TOKENS), str(context)]
                    theirs = run_rival(options.rival_python, options.chonkie_folder, how)
                    found.append((tokens / run_layerbeam(folder, encoder, context, WAYS[way]), tokens / theirs))
            print(f"| {context:,}, {name} | {' | '.join(map(cells, rates.values()))} |", flush=True)


def make_documents(wordpiece: ReferenceWordPiece, context: int, number: int) -> tuple[list[str], int]:
    """Documents of as many verses as fit, and the number of their tokens."""
    verses, documents, tokens = iter(read_bible()), [], 0
    document, length = "", 0
    while len(documents) < number:
        longer = f"{document} {next(verses)}".strip()
        count = len(wordpiece.sequence(longer, "", 1 << 20)[0])
        if count > context:
            documents.append(document)
            tokens += length
            longer = longer.removeprefix(document).strip()
            count = len(wordpiece.sequence(longer, "", 1 << 20)[0])
        document, length = longer, count
    return documents, tokens


def run_rival(python: str, packages: str, how: list[str]) -> float:
    """The seconds that chunk_rivals.py prints."""
    command = [python, str(Path(__file__).with_name("chunk_rivals.py")), *how]
    environment = os.environ | {"PYTHONPATH": packages}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def run_layerbeam(folder: Path, encoder: Path, longest: int, context: str) -> float:
    """The seconds of a run without start-up."""
    output = tempfile.mkdtemp(dir=folder)
    read = {"files": [f"{folder}/documents.txt"], "unit": "chunk", "chunk": {"tokens": TOKENS, "overlap": 0}}
    layerbeam.run({
        "input": read,
        "encoder": {"handle": str(encoder), "max_seq_length": longest, "context": context},
        "views": {"chunks": {"level": "text", "pooling": "mean", "layers": [-1]}},
        "output": {"path": output},
    })  # fmt: skip
    return float(json.loads(Path(output, "_runs", "1.json").read_text())["seconds"])


def cells(rates: list[tuple[float, float]]) -> str:
    """Our median, theirs, and the median and the least of the ratios, which are of runs next to each other."""
    ours, theirs = (statistics.median(side) for side in zip(*rates, strict=True))
    ratios = [our / their for our, their in rates]
    return f"{ours:,.0f} | {theirs:,.0f} | {statistics.median(ratios):.2f} (at least {min(ratios):.2f})"


if __name__ == "__main__":
    main()
