"""Chunks of documents, plain and late: layerbeam compared with chonkie, for docs/documents.md.

python chunks.py RIVAL_PYTHON CHONKIE_FOLDER. Documents of twelve verses, which fit in MiniLM's 512 positions; chunks of
at most 64 tokens. Tokens are those of the documents, the same for all; start-up and loading are excluded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from corpus import read_bible

import layerbeam
from layerbeam.transforms.encoders import open_encoder
from layerbeam.transforms.reference import ReferenceWordPiece

ROUNDS, DOCUMENTS, VERSES, TOKENS = 2, 150, 12, 64


def main(rival: str, packages: str) -> None:
    verses, source = read_bible(), open_encoder("minilm")
    reference = ReferenceWordPiece(source.vocabulary, source.do_lower_case)
    starts = range(0, VERSES * DOCUMENTS, VERSES)
    texts = [" ".join(verses[start : start + VERSES]) for start in starts]
    lengths = [len(reference.sequence(text, "", 1 << 20)[0]) for text in texts]
    texts = [text for text, length in zip(texts, lengths, strict=True) if length <= source.max_position_embeddings]
    tokens = sum(length for length in lengths if length <= source.max_position_embeddings)
    print(f"{len(texts)} documents, {tokens:,} tokens\n")
    speeds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder, "documents.json")
        documents.write_text(json.dumps(texts))
        Path(folder, "documents.txt").write_text("\n".join(texts))
        model = sentence_transformers_folder(source, Path(folder, "model"))
        for _ in range(ROUNDS):
            for name, context in (("plain", "text"), ("late", "record")):
                seconds, chunks = run_layerbeam(folder, context)
                speeds.setdefault(f"layerbeam, {name} ({chunks} chunks)", []).append(tokens / seconds)
                how = [name, model, str(documents), str(TOKENS)]
                done = run_chonkie(rival, packages, how)
                speeds.setdefault(f"chonkie, {name} ({done['chunks']} chunks)", []).append(tokens / done["seconds"])
    for name, found in speeds.items():
        print(f"{name}: {statistics.median(found):,.0f} tokens/s ({', '.join(f'{speed:,.0f}' for speed in found)})")
    ours, theirs = (np.array(found) for found in (list(speeds.values())[0::2], list(speeds.values())[1::2]))
    for name, ratio in zip(("plain", "late"), ours / theirs, strict=True):
        print(f"{name}: layerbeam / chonkie {', '.join(f'{one:.2f}' for one in ratio)}")


def sentence_transformers_folder(source, folder: Path) -> str:
    """MiniLM with all of its positions, as sentence-transformers reads it."""
    folder.mkdir()
    for file in Path(source.folder).iterdir():
        if file.is_file() and file.name != "sentence_bert_config.json":
            (folder / file.name).symlink_to(file)
        elif file.is_dir():
            (folder / file.name).symlink_to(file, target_is_directory=True)
    given = {"max_seq_length": source.max_position_embeddings, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(given))
    return str(folder)


def run_chonkie(python: str, packages: str, how: list[str]) -> dict[str, float]:
    """What chunk_rivals.py prints."""
    command = [python, str(Path(__file__).with_name("chunk_rivals.py")), *how]
    environment = os.environ | {"PYTHONPATH": packages}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    printed: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return printed


def run_layerbeam(folder: str, context: str) -> tuple[float, int]:
    """(seconds without start-up, number of chunks) of a run."""
    output = tempfile.mkdtemp(dir=folder)
    read = {"files": [f"{folder}/documents.txt"], "unit": "chunk", "chunk": {"tokens": TOKENS, "overlap": 0}}
    run = layerbeam.run({
        "input": read,
        "encoder": {"handle": "minilm", "max_seq_length": 512, "context": context},
        "views": {"chunks": {"level": "text", "layers": [-1]}},
        "output": {"path": output},
    })  # fmt: skip
    attempt = json.loads(Path(output, "_runs", "1.json").read_text())
    return attempt["seconds"], len(run["chunks"])


if __name__ == "__main__":
    main(*sys.argv[1:])
