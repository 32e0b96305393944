"""Chunks of documents by chonkie, plain and late, with sentence-transformers: run by chunks.py in an own environment.

python chunk_rivals.py plain|late ENCODER_FOLDER DOCUMENTS.json TOKENS CONTEXT; prints {"seconds", "chunks"} as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

import torch
from chonkie import LateChunker, RecursiveChunker
from chonkie.embeddings import SentenceTransformerEmbeddings
from sentence_transformers import SentenceTransformer


def main(how: str, folder: str, documents: str, tokens: int, context: int) -> None:
    logging.disable()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    texts = json.loads(Path(documents).read_text())
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = context
    if how == "late":
        chunker = LateChunker(SentenceTransformerEmbeddings(model), chunk_size=tokens)
        chunker.chunk(texts[0])
        started = time.perf_counter()
        chunks = [chunk.embedding for text in texts for chunk in chunker.chunk(text)]
    else:
        plain = RecursiveChunker(model.tokenizer, chunk_size=tokens)
        model.encode(texts[:8], show_progress_bar=False)
        started = time.perf_counter()
        pieces = [chunk.text for text in texts for chunk in plain.chunk(text)]
        chunks = list(model.encode(pieces, batch_size=32, show_progress_bar=False))
    print(json.dumps({"seconds": time.perf_counter() - started, "chunks": len(chunks)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
