"""Groups of a word's occurrences: how well they are separated, and whether they only follow the word's place."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from layerbeam.pipeline.report.stats import cosine_matrix, describe_structure, follow_places, group, pca, separation
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
    assert "no row" in workplace._call("search", "out", "--view", "x", "--like", "corpus/a.txt:0", status=0).out


@pytest.mark.parametrize("views", [{"w": {}, "k": {"keep_words": ["the"]}}, {"k": {"keep_words": ["the"]}, "w": {}}])
def test_a_word_is_missing_from_the_view_that_has_all_words(workplace, views):
    workplace.finished(
        "the bank\n", views={name: {"level": "word", "layers": [-1]} | view for name, view in views.items()}
    )
    said = workplace._call("report", "out", "--word", "finance", status=1).err
    assert said == "layerbeam: “finance” does not occur in view w (2 of 2 rows searched).\n"


def test_separation_of_given_labels():
    # On a circle, at 0, 10, 30 and 90 degrees: the nearest are 1, 0, 1 and 2. Then two are equally near to a third one.
    angles = np.radians([0, 10, 30, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = np.array([0, 0, 1, 1])
    found = separation(cosine_matrix(vectors), labels)
    silhouettes = []
    for i in range(4):
        apart = [1 - vectors[i] @ other for other in vectors]
        own = next(apart[j] for j in range(4) if j != i and labels[j] == labels[i])
        other = np.mean([apart[j] for j in range(4) if labels[j] != labels[i]])
        silhouettes.append((other - own) / max(other, own))
    assert found == (pytest.approx(0.75), pytest.approx(np.mean(silhouettes)))
    equal = cosine_matrix(np.array([[1.0, 0], [1.0, 0], [1.0, 0]]))
    assert separation(equal, np.array([0, 0, 1])).agreement == pytest.approx((0.5 + 0.5 + 0) / 3)
    assert np.isnan(separation(equal, np.zeros(3, np.int64))).all()
    agreement, silhouette = separation(equal, np.arange(3))
    assert (agreement, np.isnan(silhouette)) == (0.0, True)


def test_no_group_of_outliers():
    """Of 160 occurrences, 3 are far from the others: no sense. 8 of 160 are a group."""
    for few, sizes in ((3, [160]), (7, [160]), (8, [152, 8])):
        kinds = np.arange(160) < few
        cosines = np.where(np.eye(160, dtype=bool), 1.0, np.where(kinds[:, None] == kinds, 0.9, 0.1))
        assert np.bincount(group(cosines).groups).tolist() == sizes


def test_occurrences_by_a_kept_field(workplace):
    """The word is "bank" in two kinds of sentences, with a label for each but one."""
    money, river = "money in the bank", "she sat by the river on the bank with him"
    labels = [(money, "money")] * 3 + [(river, "river")] * 3 + [(river, None)]
    lines = [json.dumps({"text": text, "sense": sense}) for text, sense in labels]
    workplace.write("corpus/a.jsonl", "\n".join(lines) + "\n")
    words = {"level": "word", "layers": [0, 2], "keep_words": ["bank"], "include_text": True}
    workplace.configure(input={"format": "jsonl", "keep_fields": {"sense": "string"}}, views={"words": words})
    workplace.drive()
    done = workplace._call("report", "out", "--json", "--word", "bank", "--color-by", "sense", status=0)
    sections = json.loads(done.out)["sections"]
    found = sections["words"]["figures"]["bank"]
    assert found["groups"] == [4, 3]
    assert found["by_label"] == {
        "field": "sense",
        "labels": ["money", "river", "(none)"],
        "groups": [[0, 3, 1], [3, 0, 0]],
        "labelled": 6,
        "by_chance": pytest.approx(0.4),
        "layers": {name: {"agreement": 1.0, "silhouette": pytest.approx(1.0)} for name in ("layer_0", "layer_2")},
        "best": {"agreement": "layer_0", "silhouette": found["by_label"]["best"]["silhouette"]},
    }
    page = " ".join((workplace.folder / "out/report.html").read_text(encoding="utf-8").split())
    assert "the nearest other occurrence has the same label for 100% of them; by chance it would be 40%" in page
    assert page.count("<td><bdi>river</bdi></td>") == 3
    assert (
        json.loads(workplace._call("report", "out", "--json", "--word", "bank", status=0).out)["sections"]["words"][
            "figures"
        ]["bank"]["by_label"]
        is None
    )
    assert "No view of texts has rows" in workplace._call("report", "out", "--color-by", "sense", status=2).err
    err = workplace._call("report", "out", "--word", "bank", "--color-by", "sens", status=2).err
    assert "--color-by sens: no view of texts or words has this column" in err
    assert "did you mean `sense`?" in err
