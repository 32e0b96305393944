"""A run over an adversarial corpus: no line is lost, duplicated, moved or written elsewhere."""

from __future__ import annotations

import yaml
from adversarial_corpus import check_output, configuration, snapshot, write_corpus


def test_every_line_of_adversarial_corpus_is_in_one_place(workplace):
    corpus = write_corpus(workplace.folder, texts=3_000, tiny_files=200, line_bytes=1_000_000)
    output = workplace.folder / "out"
    workplace.write("c.yaml", yaml.safe_dump(configuration(corpus, "out")))
    before = snapshot(workplace.folder, without=output)
    workplace.drive(status=3, arithmetic=True)
    assert snapshot(workplace.folder, without=output) == before
    figures = check_output(corpus, output)
    assert (figures.files, len(figures.skipped)) == (334, 27)
    assert figures.embedded > 3_000
    assert figures.blank > 1_000
    assert list(figures.rejected) == [
        "invalid UTF-8: invalid start byte",
        "invalid UTF-8: invalid continuation byte",
        "invalid UTF-8: unexpected end of data",
    ]
    # Of truncated files the complete blocks are in the same output, with correct line numbers.
    assert figures.from_cut_off > 1_000
    assert "corpus/names/caf%E9.txt" in workplace.rows("texts")["file"].to_pylist()
