"""A run over a corpus of everything that breaks readers of text: nothing lost, doubled, moved or written elsewhere."""

from __future__ import annotations

import yaml
from adversarial_corpus import check_output, configuration, snapshot, write_corpus


def test_every_line_of_a_hostile_corpus_is_in_one_place(workplace):
    corpus = write_corpus(workplace.folder, texts=3_000, tiny_files=200, line_bytes=1_000_000)
    output = workplace.folder / "out"
    workplace.write("c.yaml", yaml.safe_dump(configuration(corpus, "out")))
    before = snapshot(workplace.folder, without=output)
    workplace.run(status=3)
    assert snapshot(workplace.folder, without=output) == before
    figures = check_output(corpus, output)
    assert (figures.files, len(figures.left_out)) == (334, 16)
    assert figures.embedded > 3_000
    assert figures.blank > 1_000
    assert list(figures.rejected) == [
        "invalid UTF-8: invalid start byte",
        "invalid UTF-8: invalid continuation byte",
        "invalid UTF-8: unexpected end of data",
    ]
    # Of files cut off the whole blocks before the end are there, in the same output and rightly numbered.
    assert figures.from_cut_off > 1_000
