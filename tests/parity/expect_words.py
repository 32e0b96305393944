"""A treebank in three scripts, hostile sentences as lists of words, and what transformers makes of both.

Runs in the environment of requirements.txt: python expect_words.py FOLDER. Writes FOLDER/treebank.conllu, and for a
BERT-, a RoBERTa- and an XLM-R-like encoder with random weights its files, hostile.jsonl and expected.npz.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import expect_architectures
import numpy as np
import torch
import transformers
from hostile import hostile_texts

NUM_SENTENCES = 2_000
MAX_SEQ_LENGTH = 64  # some sentences are longer
NAMES = ("bert", "roberta", "xlm-roberta")
SCRIPTS = ("en", "el", "hi")


def treebank(seed: int) -> list[list[str]]:
    """Sentences of words of one script each; some words hold spaces, others are empty for a tokenizer."""
    data = Path(__file__).resolve().parents[1] / "data" / "sentences"
    words = [(data / f"{script}.txt").read_text(encoding="utf-8").split() for script in SCRIPTS]
    odd = ["1\u00a0000", "New York", "\u200b", "\u00ad", "...", "\U0001f1f9\U0001f1f7", "_", "#"]
    pick = random.Random(seed)
    sentences = []
    for number in range(NUM_SENTENCES):
        some = pick.choices(words[number % len(SCRIPTS)], k=pick.randint(1, 30))
        some[pick.randrange(len(some))] = pick.choice([*odd, some[0]])
        sentences.append(some)
    return sentences


def conllu(sentences: list[list[str]]) -> str:
    """The sentences with comments, multiword tokens and empty nodes; the fifth column is the word's number."""
    lines = []
    for number, words in enumerate(sentences):
        lines += [f"# sent_id = {number}", "# a remark"]
        for place, word in enumerate(words, start=1):
            if place % 7 == 1 and place < len(words):
                lines.append("\t".join([f"{place}-{place + 1}", "joined", *"_" * 8]))
            lines.append("\t".join([str(place), word, "_", f"TAG{place % 5}", str(place), *"_" * 5]))
            if place % 11 == 0:
                lines.append("\t".join([f"{place}.1", "empty", *"_" * 8]))
        lines.append("")
    return "\n".join(lines) + "\n"


def hostile_sentences(seed: int, specials: tuple[str, ...]) -> list[list[str]]:
    words, pick = hostile_texts(6 * NUM_SENTENCES, seed, specials), random.Random(seed)
    return [pick.sample(words, pick.randint(1, 8)) for _ in range(NUM_SENTENCES)]


def make(name: str, folder: Path, sentences: list[list[str]]) -> None:
    """Write an encoder, the hostile sentences for it, and what transformers gives."""
    torch.manual_seed(sum(map(ord, name)))
    make_tokenizer, make_config = expect_architectures.CASES[name]
    made = make_tokenizer()
    model = transformers.AutoModel.from_config(make_config(len(made))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    encoder = str(folder / "encoder")
    model.save_pretrained(encoder)
    made.save_pretrained(encoder)
    more = {"add_prefix_space": True} if name == "roberta" else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder, **more)
    model = transformers.AutoModel.from_pretrained(encoder, dtype=torch.float32, attn_implementation="eager").eval()

    def encode(words: list[str], **how: Any) -> Any:
        return tokenizer(words, is_split_into_words=True, truncation=True, max_length=MAX_SEQ_LENGTH, **how)

    vectors, sentence, word, lost = [], [], [], 0
    for number, words in enumerate(sentences):
        encoded = encode(words, return_tensors="pt")
        with torch.inference_mode():
            layers = torch.stack(model(**encoded, output_hidden_states=True).hidden_states)[:, 0]
        found = np.array([-1 if index is None else index for index in encoded.word_ids()])
        whole = tokenizer(words, is_split_into_words=True, add_special_tokens=False).word_ids()
        for index in dict.fromkeys(whole):
            own = np.flatnonzero(found == index)
            if len(own) < whole.count(index):  # cut off
                lost += 1
                continue
            vectors.append(layers[:, own].mean(dim=1).numpy())
            sentence.append(number)
            word.append(index)
    specials = tuple(tokenizer.all_special_tokens)
    hostile = hostile_sentences(len(name), specials)
    (folder / "hostile.jsonl").write_text("".join(json.dumps({"tokens": words}) + "\n" for words in hostile))
    encodings = [encode(words) for words in hostile]
    np.savez(
        folder / "expected.npz",
        vectors=np.stack(vectors, axis=1),
        sentence=sentence,
        word=word,
        lost=lost,
        hostile_splits=np.cumsum([0, *(len(encoding["input_ids"]) for encoding in encodings)]),
        hostile_ids=np.concatenate([encoding["input_ids"] for encoding in encodings]),
        hostile_words=[-1 if index is None else index for encoding in encodings for index in encoding.word_ids()],
    )
    print(f"{name}: {type(model).__name__}, {type(tokenizer).__name__}, {len(word):,} words")


def main(output: str) -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the encoders are small
    folder, sentences = Path(output), treebank(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "treebank.conllu").write_text(conllu(sentences), encoding="utf-8")
    for name in NAMES:
        (folder / name).mkdir(exist_ok=True)
        make(name, folder / name, sentences)


if __name__ == "__main__":
    main(*sys.argv[1:])
