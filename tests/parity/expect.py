"""The results of Hugging Face transformers for the sentences: ids, all hidden states, pooled outputs.

Also the results of sentence-transformers' `encode` for 1,000 texts.

Runs in its own environment, made from requirements.txt: python expect.py ENCODER_FOLDER OUTPUT.npz
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from texts import make_documents, make_texts, read_sentences

MAX_SEQ_LENGTH = 128
OVERLAP = 32


def windows_of(words: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """(first token and the one after the last of each window, the window of each token) of a document.

    `words`: the word of each token. A word is in the window where its worst token has most tokens on its shorter side.
    """
    room = MAX_SEQ_LENGTH - 2
    starts = [0]
    while starts[-1] + room < len(words):
        starts.append(min(starts[-1] + room - OVERLAP, len(words) - room))
    windows = [(start, min(start + room, len(words))) for start in starts]
    chosen = []
    for word in words:
        own = [token for token, other in enumerate(words) if other == word]
        context = [min(min(token - start, end - 1 - token) for token in own) for start, end in windows]
        chosen.append(context.index(max(context)))
    return windows, chosen


def last_layer_of_documents(tokenizer: Any, model: Any) -> dict[str, np.ndarray]:
    """Of the N tokens but special ones: `document`, `start`, `end` [N], and the last layer's `vectors` [N, H]."""
    found: list[tuple[int, int, int, np.ndarray]] = []
    for number, text in enumerate(make_documents()):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = encoded["input_ids"], encoded["offset_mapping"]
        windows, chosen = windows_of(encoded.word_ids())
        hidden = []
        for start, end in windows:
            given = [tokenizer.cls_token_id, *ids[start:end], tokenizer.sep_token_id]
            with torch.inference_mode():
                hidden.append(model(torch.tensor([given])).last_hidden_state[0, 1:-1].numpy())
        for token, (span, window) in enumerate(zip(spans, chosen, strict=True)):
            found.append((number, *span, hidden[window][token - windows[window][0]]))
    document, start, end, vectors = zip(*found, strict=True)
    return {
        "document": np.array(document),
        "start": np.array(start),
        "end": np.array(end),
        "vectors": np.stack(vectors),
    }


def main(folder: str, output: str) -> None:
    """Write `row_splits` [T + 1], `ids` [N], `hidden` [L + 1, N, H] and `pooler` [T, H], one sentence at a time.

    Also `sentence_vectors` [1000, H], and what `last_layer_of_documents` gives as `documents_*`.
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
        **{f"documents_{name}": values for name, values in last_layer_of_documents(tokenizer, model).items()},
    )
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {type(model).__name__}: {output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
