"""The results of Hugging Face transformers for the sentences: ids, all hidden states, pooled outputs.

Also the results of sentence-transformers' `encode` for 1,000 texts.

Runs in its own environment, made from requirements.txt: python expect.py ENCODER_FOLDER OUTPUT.npz
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from texts import make_texts, read_sentences

MAX_SEQ_LENGTH = 128


def main(folder: str, output: str) -> None:
    """Write `row_splits` [T + 1], `ids` [N], `hidden` [L + 1, N, H] and `pooler` [T, H], one sentence at a time.

    Also `sentence_vectors` [1000, H].
    """
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    ids, hidden, pooler = [], [], []
    for text in read_sentences():
        # The encoder's tokenizer.json pads to 128 by default.
        encoded = tokenizer(text, padding=False, truncation=True, max_length=MAX_SEQ_LENGTH, return_tensors="pt")
        with torch.inference_mode():
            got = model(**encoded, output_hidden_states=True)
        ids.append(encoded["input_ids"][0].numpy())
        hidden.append(torch.cat(got.hidden_states).numpy())
        pooler.append(got.pooler_output[0].numpy())
    sentence_vectors = SentenceTransformer(folder, device="cpu").encode(make_texts(), show_progress_bar=False)
    np.savez(
        output,
        row_splits=np.cumsum([0, *map(len, ids)]),
        ids=np.concatenate(ids),
        hidden=np.concatenate(hidden, axis=1),
        pooler=np.stack(pooler),
        sentence_vectors=sentence_vectors,
    )
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {type(model).__name__}: {output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
