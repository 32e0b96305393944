"""Groups of a word's occurrences: how well they are separated, and whether they only follow the word's place."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from layerbeam.pipeline.report.stats import cosine_matrix, describe_structure, follow_places, group, pca
from layerbeam.pipeline.report.word_senses import _best_grouping

pytest.importorskip("matplotlib")  # an extra; `make` installs it
pytest.importorskip("sklearn")

THREE = np.repeat([0, 1, 2], 4)


def test_groups_that_follow_the_places():
    # By hand: the variance of the means 2.5, 12.5 and 22.5 is 200 / 3, that inside the groups 1.25.
    places = np.array([1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24])
    assert follow_places(THREE, places) == (True, pytest.approx(200 / 203.75))
    assert follow_places(THREE, np.array([1, 12, 23, 4, 11, 2, 13, 24, 21, 22, 3, 14]))[0] is False
    assert follow_places(np.array([0, 0, 1]), np.array([1, 2, 9]))[0] is False, "with three rows it may be chance"
    assert follow_places(np.zeros(5, np.int64), np.arange(5)) == (False, 0.0)
    assert follow_places(THREE, np.full(12, 7)) == (False, 0.0)


def test_best_layer_has_groups_independent_of_places():
    def cosines(groups, within, across):
        return np.where(np.eye(12, dtype=bool), 1.0, np.where(groups[:, None] == groups, within, across))

    places = np.arange(12)
    by_place, by_sense = cosines(places // 6, 0.99, 0.1), cosines(places % 2, 0.9, 0.2)
    found, grouping = _best_grouping({"layer_0": by_place, "layer_1": by_place, "layer_2": by_sense}, places)
    assert (found, grouping.groups.tolist()) == ("layer_2", [0, 1] * 6)
    found, grouping = _best_grouping({"layer_1": by_place, "layer_2": np.ones((12, 12))}, places)
    assert (found, grouping.groups.tolist()) == ("layer_1", [0] * 6 + [1] * 6)


def test_structures_of_kaufman_and_rousseeuw():
    silhouettes = [0.25, 0.26, 0.5, 0.51, 0.7, 0.71]
    assert [describe_structure(silhouette) for silhouette in silhouettes] == [
        "no structure",
        "a weak structure",
        "a weak structure",
        "a reasonable structure",
        "a reasonable structure",
        "a strong structure",
    ]


def test_the_page_says_that_the_groups_follow_the_place(workplace):
    workplace.write("corpus/a.txt", "bank of money\n" * 6 + "she took the river money to the bank\n" * 6)
    workplace.configure(views={"words": {"level": "word", "layers": [0], "keep_words": ["bank"]}})
    workplace.drive()
    found = json.loads(workplace._call("report", "out", "--json", "--word", "bank", status=0).out)
    figures = found["sections"]["words"]["figures"]["bank"]
    assert (figures["groups"], figures["follows_place"], figures["place_share"]) == ([6, 6], True, 1.0)
    page = " ".join((workplace.folder / "out/report.html").read_text(encoding="utf-8").split())
    assert "finds groups in layer 0: A with 6, B with 6; a strong structure (silhouette 1.00," in page
    assert "they explain 100% of the variance of its index" in page


def test_words_of_small_files_in_one_part(workplace):
    """They share a part, in which lines of several files have the same number."""
    for number in range(40):
        workplace.write(f"corpus/{number:02}.txt", f"bank\nbank {number} of\n")
    views = {"tokens": {"level": "token", "layers": [0]}, "texts": {"level": "text", "layers": [0]}}
    workplace.configure(views=views)
    workplace.drive()
    assert len(list((workplace.folder / "out" / "tokens").glob("*.parquet"))) < 10
    found = json.loads(workplace._call("report", "out", "--json", "--word", "bank", status=0).out)
    assert found["sections"]["words"]["figures"]["bank"]["occurrences"] == 80
    page = (workplace.folder / "out/report.html").read_text(encoding="utf-8")
    assert sorted(set(map(int, re.findall(r"bank</\w+> (\d+) of", page)))) == list(range(40))


def test_cosines_of_vectors_that_differ_by_rounding():
    vectors = np.full((3, 384), 0.1, np.float32)
    vectors[1] = np.nextafter(vectors[1], np.float32(1))
    vectors[2, :192] = -0.1
    assert cosine_matrix(vectors).round(6).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert cosine_matrix(vectors).max() == 1.0
    assert pca(vectors[:2]).explained == (0.0, 0.0)
    assert group(cosine_matrix(np.repeat(vectors[:2], 4, axis=0))).groups.tolist() == [0] * 8


@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_vectors_have_a_page(workplace, count):
    workplace.finished("bank\n" * count, views={"w": {"level": "word", "layers": [-1]}})
    found = json.loads(workplace._call("report", "out", "--json", "--word", "bank", status=0).out)
    figures = found["sections"]["words"]["figures"]["bank"]
    assert (figures["groups"], figures["silhouette"]) == ([count], 0.0)
    assert figures["layers"]["layer_3"]["within"] in ([1.0] if count > 1 else [None])


def test_zeros_have_a_page(workplace):
    view = {"level": "text", "layers": [-1], "special_tokens": False, "normalize": True}
    workplace.finished("\u200b\n\u200c\n\u00ad\n", views={"x": view, "max": view | {"pooling": "max"}})
    assert "NaN" not in workplace._call("report", "out", "--json", status=0).out
    assert json.loads(workplace.verify("--json").out)["result"] == "pass"
    assert "0.000" in workplace._call("search", "out", "--view", "x", "--like", "corpus/a.txt:0", status=0).out


@pytest.mark.parametrize("views", [{"w": {}, "k": {"keep_words": ["the"]}}, {"k": {"keep_words": ["the"]}, "w": {}}])
def test_a_word_is_missing_from_the_view_that_has_all_words(workplace, views):
    workplace.finished(
        "the bank\n", views={name: {"level": "word", "layers": [-1]} | view for name, view in views.items()}
    )
    said = workplace._call("report", "out", "--word", "finance", status=1).err
    assert said == "layerbeam: “finance” does not occur in view w (2 of 2 rows searched).\n"
