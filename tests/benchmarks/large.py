"""A BERT-Large-size encoder with random weights, 512 positions: does a run fit in 6 GB, and does `verify` agree?

24 blocks of 1,024, stored in two layouts: Hugging Face and Google's checkpoint. Each run has its own process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from command import layerbeam, run_settings
from random_encoder import LARGE, make_weights, write_google, write_huggingface

MOST_BYTES = 6e9
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "river", "of", "money", "and", "a", "bank", "in", "it", "was", "he"]


def main() -> None:
    weights = make_weights(LARGE)
    random = np.random.default_rng(1)
    too_much = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lengths = (3, 30, 128, 700)
        (folder / "texts.txt").write_text("\n".join(" ".join(random.choice(WORDS[4:], n)) for n in lengths * 4))
        for kind, write in (("huggingface", write_huggingface), ("google", write_google)):
            encoder = folder / f"{kind}_uncased"
            encoder.mkdir()
            write(encoder, LARGE, weights)
            # As in many encoders, the embedding has more rows than the vocabulary.
            (encoder / "vocab.txt").write_text("\n".join(WORDS))
            settings = {
                "input": {"files": ["texts.txt"]},
                "encoder": {"handle": str(encoder), "max_seq_length": 512},
                "views": {"tokens": {"level": "token", "layers": "all"}, "p": {"level": "text", "pooling": "pooler"}},
                "output": {"path": kind},
            }
            started = time.monotonic()
            peak = run_settings(folder, settings)["peak_memory_bytes"]
            print(f"{kind}: run {time.monotonic() - started:.0f} s, peak {peak / 1e9:.2f} GB")
            too_much |= peak > MOST_BYTES
            started = time.monotonic()
            verdict = json.loads(layerbeam(folder, "verify", kind, "--json"))
            worst = max(column["max_difference"] for column in verdict["columns"])
            print(f"{kind}: verify {time.monotonic() - started:.0f} s, {verdict['result']}, at most {worst:.1e}")
    sys.exit(too_much)


if __name__ == "__main__":
    main()
