"""The table in docs/documents.md: how often a question finds the text that answers it, by texts and contexts.

python documents.py SQUAD.json ...: files of SQuAD 1.1 or 2.0. Each article is one record, its paragraphs one after the
other. A question counts if one of the k nearest texts, by cosine, holds all of its answer. Vectors of MiniLM.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import layerbeam

VIEWS = {"texts": {"level": "text", "layers": [-1], "normalize": True}}
NEAREST = (1, 5)


def main(files: list[str]) -> None:
    articles = [article for file in files for article in json.loads(Path(file).read_text())["data"]]
    texts = ["\n\n".join(one["context"] for one in article["paragraphs"]) for article in articles]
    questions = [question for number, article in enumerate(articles) for question in questions_of(article, number)]
    queries = layerbeam.encode([question for question, *_ in questions])
    print(f"{len(texts)} articles, {sum(map(len, texts)):,} characters, {len(questions):,} questions\n")
    heads = [f"recall at {k}" for k in NEAREST]
    print(
        f"| texts | context | number | {' | '.join(heads)} | tokens encoded |\n|---|---|---|{'---|' * (len(heads) + 1)}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            Path(folder, f"{number:03}.txt").write_text(text)
        units: dict[str, dict[str, Any]] = {"sentence": {"unit": "sentence"}}
        for size in (64, 128, 256):
            units[f"chunk, {size}"] = {"unit": "chunk", "chunk": {"tokens": size, "overlap": 0}}
        for name, unit in units.items():
            contexts = (
                ["text", {"sentences": 1}, {"sentences": 3}, "record"] if name == "sentence" else ["text", "record"]
            )
            for context in contexts:
                files_read = {"files": [f"{folder}/*.txt"], "record": "file", **unit}
                config = {"input": files_read, "encoder": {"handle": "minilm", "context": context}, "views": VIEWS}
                output = tempfile.mkdtemp(dir=folder)
                run = layerbeam.run(config | {"output": {"path": output}})
                found = shares_found(run, queries, questions)
                encoded = json.loads(Path(output, "_runs", "1.json").read_text())["counts"]["encoded_tokens"]
                of = context if isinstance(context, str) else f"{context['sentences']} on each side"
                cells = [f"{share:.1%}" for share in found]
                print(f"| {name} | {of} | {len(run['texts']):,} | {' | '.join(cells)} | {encoded:,} |", flush=True)


def questions_of(article: dict[str, Any], number: int) -> list[tuple[str, int, int, int]]:
    """(question, number of the article, start and end of the answer in it) of each question."""
    found = []
    paragraphs = article["paragraphs"]
    starts = itertools.accumulate((len(one["context"]) + 2 for one in paragraphs), initial=0)
    for start, paragraph in zip(starts, paragraphs, strict=False):
        for question in paragraph["qas"]:
            for answer in question["answers"][:1]:  # some questions of 2.0 have none
                begin = start + answer["answer_start"]
                found.append((question["question"], number, begin, begin + len(answer["text"])))
    return found


def shares_found(run: Any, queries: np.ndarray, questions: list[tuple[str, int, int, int]]) -> list[float]:
    """For each k the share of questions with their answer in one of the k nearest texts."""
    view = run["texts"]
    vectors = view.to_numpy("layer_6")
    rows = view.to_arrow(["file", "start", "end"]).to_pydict()
    article = np.array([int(Path(file).stem) for file in rows["file"]])
    start, end = np.array(rows["start"]), np.array(rows["end"])
    order = np.argsort(-(queries @ vectors.T), axis=1)[:, : max(NEAREST)]
    _, number, begin, stop = (np.array(column)[:, None] for column in zip(*questions, strict=True))
    holds = (article[order] == number) & (start[order] <= begin) & (stop <= end[order])
    return [float(holds[:, :k].any(axis=1).mean()) for k in NEAREST]


if __name__ == "__main__":
    main(sys.argv[1:])
