"""A million word types in 2,000 blocks: is memory flat, and is the table equal to NumPy's, for any workers and kills?

A small encoder with random weights. Each word occurs twice, so that float64 sums do not depend on an order and the
table must equal NumPy's bit by bit. The table is made again with one worker, with two, and after SIGKILL; the peak of
these runs, which encode nothing, is compared with that of a tenth of the corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from command import layerbeam
from random_encoder import make_weights, write_huggingface

from layerbeam import open_run
from layerbeam.transforms.encoders.architectures import Bert

WORDS_PER_LINE, LINES_PER_BLOCK = 50, 20
LETTERS = 5
WIDTH = 64
MAX_RATIO = 1.5
KEYS_AT_ONCE = 100_000


def write_encoder(folder: Path) -> None:
    pieces = ["".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2)] + [*string.ascii_lowercase]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces, *(f"##{piece}" for piece in pieces)]
    folder.mkdir()
    config = Bert(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        max_position_embeddings=512,
        type_vocab_size=2,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
    )
    write_huggingface(folder, config, make_weights(config))
    (folder / "vocab.txt").write_text("\n".join(vocabulary))


def write_corpus(folder: Path, num_words: int) -> int:
    """Four files in which each of so many words occurs twice. Returns the bytes of a block."""
    random = np.random.default_rng(0)
    numbers = random.choice(26**LETTERS, num_words, replace=False)
    letters = numbers[:, None] // 26 ** np.arange(LETTERS) % 26 + ord("a")
    words = [bytes(row) for row in letters.astype(np.uint8)]
    order = random.permutation(np.repeat(np.arange(num_words), 2)).tolist()
    lines = [
        b" ".join(words[index] for index in order[begin : begin + WORDS_PER_LINE])
        for begin in range(0, len(order), WORDS_PER_LINE)
    ]
    for number, some in enumerate(np.array_split(np.arange(len(lines)), 4)):
        (folder / f"{number}.txt").write_bytes(b"\n".join(lines[index] for index in some) + b"\n")
    return LINES_PER_BLOCK * (len(lines[0]) + 1)


def tables(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [*sorted((folder / "out/types").iterdir()), folder / "out/manifest.json"]
    }


def end_again(folder: Path, workers: int, *, kill: bool = False) -> int:
    """The peak of a run that only makes the table: everything else is there. `kill`: it is killed within the table."""
    out = folder / "out"
    (out / "_SUCCESS").unlink(missing_ok=True)
    for path in (out / "types").iterdir():
        path.unlink()
    arguments = ("run", "c.yaml", "--workers", str(workers))
    if kill:
        with subprocess.Popen(
            [sys.executable, "-m", "layerbeam", *arguments], cwd=folder, stderr=subprocess.PIPE
        ) as run:
            while not any((out / "types").iterdir()):
                time.sleep(0.01)
            run.kill()
        assert run.returncode == -signal.SIGKILL
        assert not (out / "_SUCCESS").exists()
        print(f"killed with {len(list((out / 'types').iterdir()))} parts of the table")
    layerbeam(folder, *arguments)
    last = max((out / "_runs").iterdir(), key=lambda path: int(path.stem))
    return int(json.loads(last.read_text())["peak_memory_bytes"])


def plain_table(folder: Path) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
    """(words, means, deviations) of the rows of the word view, some words at a time."""
    view = open_run(folder / "out")["words"]
    words, inverse = np.unique(view.to_numpy("word").astype(str), return_inverse=True)
    rows, vectors = np.argsort(inverse, kind="stable"), view.to_numpy("layer_1")
    for begin in range(0, len(words), KEYS_AT_ONCE):
        some = words[begin : begin + KEYS_AT_ONCE]
        first, second = (vectors[rows[2 * begin + n : 2 * (begin + len(some)) : 2]].astype(np.float64) for n in (0, 1))
        means = (first + second) / 2
        deviations = np.sqrt(np.maximum((first**2 + second**2) / 2 - means**2, 0))
        yield some.tolist(), means.astype(np.float32), deviations.astype(np.float32)


def check(folder: Path) -> None:
    table = open_run(folder / "out")["types"].to_arrow()
    begin = 0
    for words, means, deviations in plain_table(folder):
        rows = table.slice(begin, len(words))
        begin += len(words)
        assert rows["word"].to_pylist() == words
        assert set(rows["count"].to_pylist()) == {2}
        for name, values in (("layer_1", means), ("layer_1_std", deviations)):
            found = rows[name].combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)
            np.testing.assert_array_equal(found, values)
    assert begin == table.num_rows


def measure(folder: Path, num_words: int) -> int:
    """The largest peak of the runs that only make the table."""
    folder.mkdir()
    settings = {
        "input": {"files": ["*.txt"], "slice_bytes": write_corpus(folder, num_words)},
        "encoder": {"handle": str(folder.parent / "encoder_uncased"), "max_seq_length": 512},
        "views": {name: {"level": level, "layers": [1]} for name, level in (("words", "word"), ("types", "word_type"))},
        "output": {"path": "out"},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(settings))
    started = time.monotonic()
    layerbeam(folder, "run", "c.yaml", "--workers", "2")
    blocks = len((folder / "out/parts.jsonl").read_bytes().splitlines())
    first, peaks = tables(folder), []
    print(
        f"{num_words:,} words, {blocks:,} blocks, {len(first) - 1} parts: {time.monotonic() - started:.0f} s",
        flush=True,
    )
    for workers, kill in ((1, False), (2, False), (2, True)):
        started = time.monotonic()
        peaks.append(end_again(folder, workers, kill=kill))
        assert tables(folder) == first
        seconds = time.monotonic() - started
        print(f"workers: {workers}, killed: {kill}: equal, {peaks[-1] / 1e6:,.0f} MB, {seconds:.0f} s", flush=True)
    check(folder)
    print("equal to NumPy's", flush=True)
    return max(peaks[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where to work, instead of the system's folder for temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write_encoder(folder / "encoder_uncased")
        many, few = (measure(folder / str(words), words) for words in (arguments.words, arguments.words // 10))
    print(f"ten times as many words: {many / few:.2f} times the memory")
    sys.exit(many > MAX_RATIO * few)


if __name__ == "__main__":
    main()
