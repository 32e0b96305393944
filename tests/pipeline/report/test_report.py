"""`layerbeam report`: content of the page, its figures compared with plain NumPy, and that no text becomes markup."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import yaml
from corpora import random_lines
from object_store import upload
from repository import python
from weights import vectors

import layerbeam
from layerbeam.pipeline.report import context
from layerbeam.pipeline.report import page as report_page
from layerbeam.pipeline.report.stats import group, mean_cosine, pca
from layerbeam.transforms.parts.parquet import ParquetFormat

Figure = pytest.importorskip("matplotlib.figure").Figure  # an extra; `make` installs it
metrics = pytest.importorskip("sklearn.metrics")

VIEWS = {
    "texts": {"level": "text", "layers": "all", "pooling": "mean"},
    "tokens": {"level": "token", "layers": "all"},
    "words": {"level": "word", "layers": [0, 2], "keep_words": ["bank"], "include_text": True},
}
# A page of few plots.
FEW = {
    "texts": {"level": "text", "layers": [2], "pooling": "mean"},
    "tokens": {"level": "token", "layers": [2]},
}
RIVER = ["the bank of the river", "they sat by the river on the bank", "the river bank"]
MONEY = ["money in the bank", "the bank lends money", "she took money to the bank"]
HOSTILE = [
    "<script>alert('bank')</script> <img src=x onerror=alert(1)> </td></table> bank",
    "bank \x00\x1b[2J \u202egnirts\u202c &lt;&amp; \"quoted\" 'bank'",
    "בנק ليس bank " + "x" * 5000,
]


class Page(html.parser.HTMLParser):
    """The page's elements, in order, with their attributes; and its text, with white space as a browser shows it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


_draw = Figure.savefig


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Plots are made, but Matplotlib does not draw them, which is two thirds of a report's time."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, out, **_: out.write("<svg></svg>"))


@pytest.fixture
def drawn(undrawn, monkeypatch):
    monkeypatch.setattr(Figure, "savefig", _draw)


@pytest.fixture
def report(workplace):
    """Run `layerbeam report out`; returns the page and the output of `--json`."""

    def write(*arguments: str, status: int = 0) -> tuple[Page, dict]:
        done = workplace._call("report", "out", "--json", *arguments, status=status)
        return Page((workplace.folder / "out" / "report.html").read_text(encoding="utf-8")), json.loads(done.out)

    return write


def run(workplace, lines=None, views=VIEWS, *, status=0, **sections):
    parts = (random_lines(40), random_lines(30, seed=1)) if lines is None else (lines[::2], lines[1::2])
    corpus = {name: "\n".join(part) + "\n" for name, part in zip(("a.txt", "b.txt"), parts, strict=True)}
    workplace.finished(corpus, status=status, views=views, **sections)


def test_cosines_by_hand():
    # Pairs: 1 and 2 with cosine 1, the other two with 0; -> 1/3, all of it from the first dimension.
    assert mean_cosine(np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])) == pytest.approx((1 / 3, 1.0))
    assert mean_cosine(np.array([[1.0, 1.0], [1.0, -1.0]]))[0] == pytest.approx(0)
    assert np.isnan(mean_cosine(np.ones((1, 4)))[0])


def test_principal_components_by_hand():
    along = np.array([[3.0, 4.0, 0.0]]) * np.array([[-1.0], [0.0], [4.0]])
    found = pca(along)
    assert found.explained == pytest.approx((1.0, 0.0))
    assert found.points[:, 0] == pytest.approx([-10.0, -5.0, 15.0])
    assert pca(along, like=np.array([[1.0, 0], [1, 0], [-1, 0]])).points[:, 0] == pytest.approx([10.0, 5.0, -15.0])
    assert pca(np.ones((3, 4))).explained == (0.0, 0.0)
    square = np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]])
    assert pca(square).explained == pytest.approx((0.8, 0.2))


def test_groups_by_hand():
    groups = [0, 1, 0, 1, 0, 1, 0]
    cosines = np.array(
        [[1.0 if i == j else 0.9 if groups[i] == groups[j] else 0.2 for j in range(7)] for i in range(7)]
    )
    found = group(cosines)
    assert found.groups.tolist() == groups
    assert found.silhouette == pytest.approx(1 - 0.1 / 0.8)
    inside = found.groups[found.order]
    assert (np.diff(inside) != 0).sum() == 1, "similar rows are adjacent"
    # Three senses, one of them distant. Separating only that one has the better silhouette, but says less.
    three = np.repeat([0, 1, 2], 4)
    apart = np.where(three[:, None] == three, 0.95, np.where((three[:, None] == 2) | (three == 2), 0.1, 0.75))
    found = group(np.where(np.eye(12, dtype=bool), 1.0, apart))
    assert found.groups.tolist() == [*[0] * 4, *[1] * 4, *[2] * 4]
    distances = np.where(np.eye(7, dtype=bool), 0.0, 1 - cosines)
    assert metrics.silhouette_score(distances, [0, 0, 0, 0, 1, 1, 1], metric="precomputed") < 0.1
    # The distinct sense again, a small third one inside the rest, and two outliers, as "well" has them.
    sizes, between = [30, 12, 10, 1, 1], np.full((5, 5), 0.1)
    between[np.ix_([0, 1, 3, 4], [0, 1, 3, 4])] = 0.68
    between[np.arange(5), np.arange(5)] = 0.8
    between[[0, 3, 0, 4], [3, 0, 4, 0]] = 0.5
    kinds = np.repeat(range(5), sizes)
    apart = np.where(np.eye(54, dtype=bool), 1.0, between[np.ix_(kinds, kinds)])
    assert np.bincount(group(apart).groups).tolist() == [30, 14, 10], "outliers join the nearer group"
    assert group(np.where(np.eye(5, dtype=bool), 1.0, 0.5)).groups.tolist() == [0] * 5
    assert group(np.full((4, 4), 1 + 1e-7)).groups.tolist() == [0] * 4  # equal vectors, and rounding


@pytest.mark.usefixtures("drawn")
def test_the_page(workplace, report):
    run(workplace, RIVER + MONEY)
    page, _ = report("--word", "bank", "--word", "river")
    assert [a["id"] for a in page.of("section") if "id" in a] == [
        "glance",
        "lengths",
        "rejects",
        "layers",
        "projection",
        "words",
        "word-0",
        "word-1",
        "neighbours",
    ]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    plots = page.of("svg")
    # 1 of lengths, 3 views x 3, 4 layers of texts, "bank" (4 layers of tokens) 1 + 2 x 4, "river" the same.
    assert len(plots) == 1 + 9 + 4 + 9 + 9
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in plots)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = {a["href"][1:] for a in page.of("use", "a")}
    assert used <= set(ids)
    assert all(a.get("href", "#").startswith(("#", "data:")) and "src" not in a for _, a in page.elements)
    assert "at most 20,000 rows of each view, by seed 0" in page.text
    assert "6 occurrences in view tokens" in page.text


def test_numbers_are_those_of_plain_numpy(workplace, report):
    run(workplace, views={"texts": VIEWS["texts"]})
    _, found = report()
    rows = workplace.rows("texts")
    for layer in range(4):
        x = vectors(rows, f"layer_{layer}").astype(np.float64)
        u = x / np.linalg.norm(x, axis=1, keepdims=True)
        pairs = [u[i] @ u[j] for i in range(len(u)) for j in range(i)]
        of_layer = found["sections"]["layers"]["figures"]["texts"]["layers"][f"layer_{layer}"]
        assert of_layer["anisotropy"] == pytest.approx(np.mean(pairs), abs=1e-9)
        assert of_layer["mean_norm"] == pytest.approx(np.linalg.norm(x, axis=1).mean(), abs=1e-6)
        variances = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2
        explained = found["sections"]["projection"]["figures"]["texts"]["explained_variance"][f"layer_{layer}"]
        assert explained == pytest.approx(variances[:2] / variances.sum(), abs=1e-6)
    lengths = rows["num_tokens"].to_numpy()
    assert found["sections"]["lengths"]["figures"]["texts"] == len(lengths) == 70 - 5
    assert found["sections"]["lengths"]["figures"]["median"] == np.median(lengths)
    query = found["sections"]["neighbours"]["figures"]["queries"][0]
    texts = rows["text"].to_pylist()
    x = vectors(rows, "layer_3").astype(np.float64)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = u @ u[texts.index(query["text"])]
    best = max((c, t) for c, t in zip(cosines, texts, strict=True) if t != query["text"])
    nearest = query["nearest"][0]
    assert (nearest["text"], nearest["cosine"]) == (best[1], pytest.approx(best[0]))
    (row,) = rows.filter((pc.field("file") == nearest["file"]) & (pc.field("line") == nearest["line"])).to_pylist()
    assert row["text"] == best[1], "the place is that of the row"


@pytest.mark.usefixtures("drawn")
def test_lengths_and_the_cut(workplace, report):
    run(workplace, ["the river " * n for n in range(1, 11)], views=FEW, encoder={"max_seq_length": 12})
    page, found = report()
    lengths = found["sections"]["lengths"]["figures"]
    # Texts of 2, 4, ... 20 tokens; 10 fit: 5 texts lose 2 + 4 + ... + 10.
    assert (lengths["texts"], lengths["longest"], lengths["cut"]) == (10, 20, 0.5)
    assert lengths["tokens_lost"] == pytest.approx(30 / 110)
    assert "max_seq_length 12 cuts after 10: 50.00% of the texts are longer and lose their end, 27.27%" in page.text


def test_the_overview_has_the_facts_of_show(workplace, report):
    lines = [{"text": text, "id": "same"} for text in ("One. Two.", "A bank. The river. the river", "the bank")]
    workplace.write("corpus/a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    words = {"level": "word", "layers": [1], "keep_words": ["bank", "money"]}
    workplace.configure(
        input={"format": "jsonl", "id_field": "id", "unit": "sentence"},
        encoder={"max_seq_length": 4},
        views={"words": words},
    )
    workplace.drive(arithmetic=True)
    page, _ = report()
    shown = workplace.show().out
    for fact in (
        ": 3 layers of 64, engine native, lower-casing (tokenizer_config.json)",
        "3 read = 2 embedded + 0 blank + 1 filtered + 0 rejected",
        "6 found = 2 embedded + 0 blank + 4 filtered + 0 rejected",
        "2 records with the id of an earlier one",
        "words: keep_words with no matches: money",
    ):
        assert fact in shown
        assert fact in page.text


def test_rejects_by_reason(workplace, report):
    workplace.finished(b"the river\n\xff\xfe\nbank\n\xff\n", views=FEW, input={"max_reject_rate": 1.0})
    page, found = report()
    assert list(found["sections"]["rejects"]["figures"]["reasons"].values()) == [2]
    assert "2 of 4 records have no vector" in page.text


def test_a_section_without_data_is_left_out(workplace, report):
    run(workplace, RIVER + MONEY, views={"tokens": {"level": "token", "layers": [1], "special_tokens": False}})
    page, found = report("--word", "bank")
    lacks = {name: section["lacks"] for name, section in found["sections"].items() if section["lacks"]}
    assert set(lacks) == {"projection", "neighbours"}
    assert not {"projection", "neighbours"} & {attributes.get("id") for attributes in page.of("section")}
    assert not {"#projection", "#neighbours"} & {attributes["href"] for attributes in page.of("a")}
    assert "`texts: {level: text, layers: all, pooling: mean}`" in lacks["neighbours"]
    assert found["sections"]["lengths"]["figures"]["texts"] == 6
    assert "they sat by the river on the bank" in re.sub(r" +", " ", page.text), "joined from its tokens"
    assert "layerbeam report OUT --word bank" in report()[1]["sections"]["words"]["lacks"]

    shutil.rmtree("out")
    workplace.configure(views={"pooled": {"level": "text", "pooling": "pooler"}})
    workplace.drive()
    page, found = report("--word", "bank", status=1)
    assert "“bank”: no view of words or tokens has rows; add words: {level: word, layers: all, keep_words:" in page.text
    assert list(found["sections"]["layers"]["figures"]["pooled"]["layers"]) == ["pooled_output"]


def test_a_word(workplace, report):
    run(workplace, RIVER + MONEY, views={"words": VIEWS["words"]})
    page, found = report("--word", "Bank", "--word", "money", status=1)
    words = found["sections"]["words"]["figures"]
    assert words["Bank"]["occurrences"] == sum(words["Bank"]["groups"]) == 6
    assert words["money"] == {"occurrences": 0, "similar": []}
    assert (
        "“money” does not occur in view words (6 of 6 rows searched). It has only the words in its keep_words: add"
        in (page.text)
    )
    assert {(place["file"], place["line"]) for place in words["Bank"]["places"]} == {
        *((f"corpus/{name}.txt", line) for name in "ab" for line in range(3))
    }
    assert "corpus/a.txt line 0" in page.text
    assert "count from 0, as in the columns line and sentence" in page.text
    x = vectors(workplace.rows("words"), "layer_2").astype(np.float64)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = u @ u.T
    of_layer = words["Bank"]["layers"]["layer_2"]
    assert words["Bank"]["groups"] == [6]
    assert of_layer["within"] == pytest.approx(cosines[~np.eye(6, dtype=bool)].mean())
    assert of_layer["across"] is None
    marked = re.findall("<mark>(.*?)</mark>", (workplace.folder / "out" / "report.html").read_text())
    assert marked == ["bank"] * 6


def test_words_that_do_not_occur(workplace, report):
    run(workplace, RIVER + MONEY, views={"tokens": FEW["tokens"]})
    done = workplace._call("report", "out", "--word", "rivr", "--word", "bank", "--word", "the bank", status=1)
    assert done.err == (
        "layerbeam: “rivr” does not occur in view tokens (46 of 46 rows searched). Similar words there: river.\n"
        "layerbeam: “the bank” is several words; ask for each of them: `--word the --word bank`.\n"
    )
    assert "one page with everything in it" in done.out
    page = (workplace.folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "ask for each of them: <code>--word the --word bank</code>." in page
    assert page.count("<mark>bank</mark>") == 6
    _, found = report("--word", "rivr", status=1)
    assert found["sections"]["words"]["figures"]["rivr"] == {"occurrences": 0, "similar": ["river"]}


def test_advice_for_words_is_accepted(workplace, report):
    run(workplace, RIVER, views={"words": VIEWS["words"]})
    words = ["money", "no", "don't"]
    _, found = report(*(f"--word={word}" for word in [*words, "a: b"]), status=1)
    *problems, several = found["sections"]["words"]["problems"]
    for number, (word, problem) in enumerate(zip(words, problems, strict=True)):
        (code,) = [code for code in re.findall("`(.*?)`", problem) if code.startswith("words_2: ")]
        advised = yaml.safe_load(code)
        workplace.configure(views={"words": VIEWS["words"], **advised}, output={"path": f"other{number}"})
        workplace.drive(arithmetic=True)
        assert advised["words_2"]["keep_words"] == [word]
    assert "`--word a --word : --word b`" in several
    assert "`words_2: " not in several


@pytest.mark.parametrize("has_view_of_texts", [False, True])
@pytest.mark.parametrize("level", ["token", "word"])
def test_a_word_in_a_later_sentence(workplace, report, level, has_view_of_texts):
    """Its text is in the input file, or in a view of texts; the places of rows are those in the record."""
    views = {"rows": {"level": level, "layers": [1]}}
    views |= {"texts": {"level": "text", "layers": [1]}} if has_view_of_texts else {}
    workplace.prepare("A well is dry. The bank is near.\n" * 3, input={"unit": "sentence"}, views=views)
    workplace.drive(arithmetic=True)
    if has_view_of_texts:
        (workplace.folder / "corpus/a.txt").unlink()
    report("--word", "bank")
    assert (workplace.folder / "out/report.html").read_text(encoding="utf-8").count("<mark>bank</mark>") == 3


def test_a_word_of_several_pieces(workplace, report):
    run(workplace, ["an unaffable man", "unaffable", "affable"], views={"tokens": FEW["tokens"]})
    pieces = workplace.rows().filter(workplace.rows()["word_index"].to_numpy() == 1)["token"].to_pylist()
    assert len(pieces) > 2, "not one piece a word"
    _, found = report("--word", "Unaffable")
    assert found["sections"]["words"]["figures"]["Unaffable"]["occurrences"] == 2


@pytest.mark.usefixtures("drawn")
def test_text_stays_text(workplace, report):
    run(workplace, [*HOSTILE, *MONEY], views=FEW)
    page, _ = report("--word", "bank", "--word", "<b>bold</b>", "--text", "<b>bank</b>", status=1)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"img", "b", "iframe", "object"}
    assert len(page.of("script")) == 1
    text = (workplace.folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#x27;bank&#x27;)&lt;/script&gt;" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert "\\u202egnirts" in page.text
    assert "x" * 400 not in text


def test_neighbours_of_own_texts(workplace, report):
    run(workplace, RIVER + MONEY)
    page, found = report("--text", "money in the bank", "--text", "a river")
    own = found["sections"]["neighbours"]["figures"]["own_texts"]
    assert [query["text"] for query in own] == ["money in the bank", "a river"]
    assert own[0]["nearest"][0] == {
        "text": "money in the bank",
        "cosine": pytest.approx(1, abs=1e-6),
        "file": "corpus/b.txt",
        "line": 1,
        "sentence": 0,
    }
    assert len(own[1]["nearest"]) == 5
    assert "2 texts of the command line, encoded with the encoder and settings of the run" in page.text
    for text, problem in (
        ("  ", "--text '  ': has no tokens; give a text with words"),
        ("bank", "--text needs the encoder of the run: encoder.handle: "),
    ):
        if text == "bank":
            for path in [workplace.folder / "out/manifest.json", *(workplace.folder / "out/_runs").glob("*.json")]:
                record = json.loads(path.read_text())
                record["settings"]["encoder"]["handle"] = "missing"
                path.write_text(json.dumps(record))
        error = workplace._call("report", "out", "--text", text, status=2).err
        assert error.startswith(f"layerbeam: {problem}")


def test_own_texts_are_compared_with_all_rows(workplace, report):
    """Not only with the sample, and without duplicates, however often a text occurs."""
    lines = [*random_lines(60, seed=3), *["a text that is often here"] * 90, *RIVER]
    run(workplace, lines, views={"texts": VIEWS["texts"]})
    view = layerbeam.open_run("out")["texts"]
    page, found = report("--sample", "5", "--text", "a text that is often here", "--text", RIVER[0])
    figures = found["sections"]["neighbours"]["figures"]
    texts = view.to_numpy("text")
    unit = vectors(view.to_arrow(), "layer_3").astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for query in figures["own_texts"]:
        cosines = unit @ unit[texts.tolist().index(query["text"])]
        best = dict.fromkeys(texts[np.argsort(-cosines, kind="stable")])
        assert [row["text"] for row in query["nearest"]] == list(best)[:5]
    assert len(figures["queries"]) <= 5
    assert f"and compared with all {view.num_rows} rows:" in page.text
    assert f"compared with the sample (5 of {view.num_rows} rows, from " in page.text


def test_a_text_needs_a_view_of_texts(workplace):
    run(workplace, RIVER, views={"tokens": FEW["tokens"]})
    error = workplace._call("report", "out", "--text", "a river", status=2).err
    assert error.startswith("layerbeam: --text: No view of texts has rows; add one under `views`: ")
    error = workplace._call("report", "out", "--color-by", "file", status=2).err
    assert error.startswith("layerbeam: --color-by: No view of texts has rows; add one under `views`: ")


def test_random_rows_need_a_view_with_all_words(workplace, report):
    run(workplace, RIVER + MONEY, views={"words": VIEWS["words"]})
    page, _ = report("--word", "bank")
    assert "For such a line add a view with all words: tokens: {level: token, layers: all}." in page.text


def test_a_sample_comes_from_all_parts(workplace, report, monkeypatch):
    monkeypatch.setattr(ParquetFormat, "sample_bytes", 40_000)
    run(workplace, (RIVER + MONEY) * 10, input={"slice_bytes": 150}, views={"tokens": VIEWS["tokens"]})
    parts = sorted((workplace.folder / "out" / "tokens").iterdir())
    page, found = report("--sample", "100", "--word", "bank")
    rows = found["sections"]["layers"]["figures"]["tokens"]["rows"]
    sample = re.search(r"Sample: (\d+) of (\d[\d,]*) rows, from all (\d+) parts\.", page.text)
    assert (int(sample[1]), int(sample[3])) == (rows, len(parts))
    assert f"The random rows are those of the sample: {sample[0][8:-1]} of view tokens." in page.text
    monkeypatch.setattr(context, "_SAMPLED_PARTS", 3)
    page, _ = report("--sample", "100")
    assert f"from 3 of {len(parts)} parts, evenly spaced." in page.text


@pytest.mark.usefixtures("drawn")
def test_colours_and_fields(workplace, report):
    lines = [{"text": text, "year": 1900 + n, "kind": kind} for n, (text, kind) in enumerate(_labelled())]
    workplace.write("corpus/a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    views = {"texts": FEW["texts"]}
    fields = {"year": "int64", "kind": "string"}
    workplace.configure(input={"format": "jsonl", "text_field": "text", "keep_fields": fields}, views=views)
    workplace.drive()
    page, found = report("--color-by", "kind")
    assert found["sections"]["projection"]["figures"]["texts"]["color"] == "kind"
    assert "(none)" in page.text
    assert "<i>kind</i>" in page.text
    page, _ = report("--color-by", "year")
    assert re.search("1900 to 1901.*1902 to 1903.*1904 to 1904.*1905 to 1906.*1907 to 1908", page.text)
    done = workplace._call("report", "out", "--color-by", "yaer", status=2)
    assert "--color-by yaer: no view of texts has this column; it can be " in done.err
    assert "did you mean `year`?" in done.err


def _labelled():
    return [*((text, "<i>kind</i>") for text in RIVER), *((text, None) for text in MONEY), *((t, "m") for t in RIVER)]


@pytest.mark.usefixtures("drawn")
def test_seeded(workplace, report):
    run(workplace, views={"tokens": FEW["tokens"]})
    page = workplace.folder / "out" / "report.html"
    seen = []
    for arguments in (["--seed", "3"], ["--seed", "3"], ["--seed", "4"]):
        _, found = report("--sample", "20", "--word", "bank", *arguments)
        assert found["sections"]["layers"]["figures"]["tokens"]["rows"] == 20
        seen.append(page.read_bytes())
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def test_the_order_of_sections_does_not_matter(workplace, report, monkeypatch):
    run(workplace, RIVER + MONEY)
    _, found = report("--word", "bank")
    monkeypatch.setattr(report_page, "_SECTIONS", report_page._SECTIONS[::-1])
    page, reversed_found = report("--word", "bank")
    assert reversed_found["sections"] == found["sections"]
    assert next(a["id"] for a in page.of("section") if "id" in a) == "neighbours"


def test_formats_give_the_same_figures(workplace, report):
    figures = []
    for format_ in ("parquet", "tfrecord", "jsonl"):
        shutil.rmtree("out", ignore_errors=True)
        run(workplace, RIVER + MONEY, views={name: view | {"format": format_} for name, view in VIEWS.items()})
        _, found = report("--sample", "5", "--word", "bank")
        figures.append(found["sections"])
    for name in ("texts", "words"):
        parquet, tfrecord, jsonl = (of["layers"]["figures"][name]["layers"]["layer_2"]["anisotropy"] for of in figures)
        assert (tfrecord, jsonl) == (pytest.approx(parquet), pytest.approx(parquet, abs=1e-4))
    assert [of["words"]["figures"]["bank"]["occurrences"] for of in figures] == [6, 6, 6]
    assert [of["neighbours"]["figures"]["column"] for of in figures] == ["layer_3"] * 3


def test_an_unfinished_run(workplace, report):
    run(workplace, views=FEW, input={"slice_bytes": 800})
    whole = len(workplace.rows("texts"))
    out = workplace.folder / "out"
    (out / "_SUCCESS").unlink()
    (out / "manifest.json").unlink()
    record = json.loads((out / "_runs" / "1.json").read_text())
    (out / "_runs" / "1.json").write_text(json.dumps(record | {"state": "interrupted"}))
    commits = (out / "parts.jsonl").read_text().splitlines(keepends=True)
    assert len(commits) > 3
    (out / "parts.jsonl").write_text("".join(commits[:2]))
    page, found = report()
    assert found["sections"]["glance"]["figures"]["state"] == "unfinished: interrupted"
    assert 0 < found["sections"]["lengths"]["figures"]["texts"] < whole
    assert "unfinished: interrupted" in page.text


@pytest.mark.usefixtures("drawn")
def test_nothing_embedded(workplace, report):
    run(workplace, ["", ""], FEW, status=3)
    _, found = report("--word", "bank", status=1)
    lacks = [name for name, section in found["sections"].items() if section["lacks"]]
    assert lacks == ["lengths", "layers", "projection", "neighbours"]


@pytest.mark.usefixtures("drawn")
def test_only_lists_of_vectors(workplace):
    run(workplace, RIVER, views={"lists": {"level": "text", "layers": [-1], "pooling": "none"}})
    done = workplace._call("report", "out", status=0)
    assert "left out  Layers: values, norms, anisotropy; Texts, layer by layer; A word" in done.out
    found = json.loads(workplace._call("report", "out", "--json", status=0).out)["sections"]
    assert found["layers"]["lacks"].startswith("There are only lists of vectors (view lists); add one under `views`: ")


def test_sentences_are_folded_after_twenty(workplace, report):
    run(workplace, ["the bank of the river and more"] * 12 + ["money in the bank"] * 12, FEW)
    page, found = report("--word", "bank", "--word", "river")
    assert [a["href"] for a in page.of("a")].count("#word-1") == 2, "in both lists of the words"
    groups = found["sections"]["words"]["figures"]["bank"]["groups"]
    rows = [a["id"] for a in page.of("tr") if a.get("id", "").startswith("word-0-")]
    assert rows == [f"word-0-{number}" for number in range(24)]
    more = [a for tag, a in page.elements if tag == "details" and a.get("class") == "more"]
    assert len(more) == sum(size > 20 // len(groups) for size in groups)


def test_a_report_does_not_disturb_later_runs(workplace, report):
    run(workplace, RIVER + MONEY, FEW)
    report()
    assert not list((workplace.folder / "out").rglob("_unfinished*"))
    assert "nothing to do: all of the input is embedded already\n" in workplace.drive().err
    assert (workplace.folder / "out" / "report.html").exists()
    workplace.verify()
    workplace.verify("--checksums")
    assert layerbeam.open_run("out").views == ("texts", "tokens")
    (workplace.folder / "out" / "_runs" / "1.json").write_text("damaged")
    for name in ("manifest.json", "_SUCCESS"):
        (workplace.folder / "out" / name).unlink()
    workplace.write("corpus/c.txt", "the bank\n")
    workplace.drive()
    assert report()[1]["sections"]["lengths"]["figures"]["texts"] == 7


@pytest.mark.usefixtures("drawn")
def test_to_another_file(workplace):
    run(workplace, RIVER, FEW)
    done = workplace._call("report", "out", "--to", "page.html", status=0)
    assert re.fullmatch(
        r"page\.html: [\d.]+ kB, one page with everything in it; open it in a browser\n"
        r"left out  A word over the layers \(--json says what each needs\)\n",
        done.out,
    )
    assert sorted(path.name for path in Path().iterdir()) == ["c.yaml", "corpus", "out", "page.html"]
    assert not (workplace.folder / "out" / "report.html").exists()
    error = workplace._call("report", "out", "--to", "no/page.html", status=2).err
    assert error == "layerbeam: --to no/page.html: the folder no does not exist; create it, or name another file\n"
    assert "holds no layerbeam run" in workplace._call("report", "corpus", status=2).err


def test_in_an_object_store(workplace, memory):
    run(workplace, RIVER, FEW)
    upload(workplace.folder / "out", "memory://bucket/out")
    workplace._call("report", "memory://bucket/out", "--word", "bank", "--to", "page.html", status=0)
    workplace._call("report", "out", "--word", "bank", status=0)
    page = (workplace.folder / "page.html").read_text()
    assert page.replace("memory://bucket/out", "out") == (workplace.folder / "out" / "report.html").read_text()


@pytest.mark.parametrize("module", ["jinja2", "matplotlib.figure", "scipy", "sklearn"])
def test_without_the_extra(workplace, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    error = workplace._call("report", "out", status=2).err
    assert "pip install -c constraints.txt -e '.[report]'" in error


def test_the_demo_does_not_need_the_extra():
    code = (
        "import sys, numpy as np; from layerbeam.pipeline.report.stats import mean_within_across, unit; "
        "mean_within_across(unit(np.ones((2, 2))), np.zeros(2)); "
        "assert not {'jinja2', 'matplotlib', 'scipy', 'sklearn'} & sys.modules.keys()"
    )
    python(code)
