"""A word that a user names and a word of a text are compared in one way, by selections, reports and searches."""

from __future__ import annotations

import json
import re

import pytest
from architectures import write_encoder
from repository import DATA

LIBRARY = ("roberta", "modernbert", "qwen3", "albert", "deberta")
TOKENS = {"t": {"level": "token", "layers": [1]}}
WORD = {"level": "word", "layers": [1]}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """{name: handle}, of each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("encoders")
    for name in ("bert", *LIBRARY):
        write_encoder(folder / name, name)
    own = {name: str(folder / name) for name in ("bert", *LIBRARY)}
    return own | {"uncased": str(DATA / "hf_uncased"), "cased": str(DATA / "google_cased")}


def occurrences(workplace, word: str, status: int = 0) -> int:
    found = json.loads(workplace._call("report", "out", "--word", word, "--json", status=status).out)
    return found["sections"]["words"]["figures"][word]["occurrences"]


def search(workplace, *arguments: str, status: int = 0) -> list[int]:
    """The lines of the rows found."""
    done = workplace._call("search", "out", "--json", "-k", "99", *arguments, status=status)
    return sorted(row["line"] for row in json.loads(done.out)["queries"][0]["nearest"]) if status == 0 else []


@pytest.mark.parametrize("name", ["bert", *LIBRARY])
def test_tokens_of_a_word_are_found_by_its_characters(workplace, encoders, name):
    banks = 'bank a river\nthe river bank\nin the bank.\n(bank) "bank" a Bank\n'
    workplace.finished(banks, encoder={"handle": encoders[name]}, views=TOKENS)
    assert occurrences(workplace, "bank") == 6
    for line in range(4):
        search(workplace, "--like", f"corpus/a.txt:{line}:bank")
    (workplace.folder / "corpus/a.txt").unlink()
    assert (
        "“bank”: view t: its texts are not known: " in workplace._call("report", "out", "--word", "bank", status=1).err
    )
    arguments = ("search", "out", "--like", "corpus/a.txt:0:bank")
    assert "view t: its texts are not known: " in workplace._call(*arguments, status=2).err


def test_a_sentence_comes_from_the_text(workplace, encoders):
    text = "le caf\u00e9 de la gare bank\nbank \u94f6\u884c\n"
    workplace.finished(text, encoder={"handle": encoders["roberta"]}, views=TOKENS)
    assert occurrences(workplace, "caf\u00e9") == 1
    workplace._call("report", "out", "--word", "bank", status=0)
    page = (workplace.folder / "out/report.html").read_text()
    assert "<mark>bank</mark> \u94f6\u884c" in page
    assert "le caf\u00e9 de la gare <mark>bank</mark>" in page


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        *((name, [0, 1, 2]) for name in ("uncased", "albert", "deberta")),
        *((name, [0, 1]) for name in ("cased", "roberta", "modernbert", "qwen3")),
    ],
)
def test_unicode_forms_are_one_word_and_accents_are_the_encoder_s(workplace, encoders, name, lines):
    forms = {"keep_words": ["caf\u00e9"]}
    views = {"w": WORD, "k": WORD | forms, "exact": WORD | forms | {"match_case": True}}
    views["types"] = WORD | forms | {"level": "word_type"}
    workplace.finished("cafe\u0301 bank\nCaf\u00e9 bank\ncafe bank\n", encoder={"handle": encoders[name]}, views=views)
    assert workplace.rows("k")["line"].to_pylist() == lines
    assert workplace.rows("exact")["line"].to_pylist() == [0]
    assert sum(workplace.rows("types")["count"].to_pylist()) == len(lines)
    assert occurrences(workplace, "caf\u00e9") == len(lines)
    search(workplace, "--view", "w", "--like", "corpus/a.txt:0:caf\u00e9")
    search(workplace, "--view", "w", "--like", "corpus/a.txt:2:caf\u00e9", status=0 if 2 in lines else 2)
    like = ("--view", "w", "--like", "corpus/a.txt:0:bank", "--where")
    assert search(workplace, *like, "word == 'caf\u00e9'") == lines
    assert search(workplace, *like, "word in ['CAFE\u0301', 'x']") == lines
    assert search(workplace, *like, "word != 'caf\u00e9'") == sorted([*({0, 1, 2} - set(lines)), 1, 2])


@pytest.mark.parametrize(
    ("name", "words"),
    [("uncased", ["ba\u00adnk", "bank"]), ("albert", ["\uff42\uff41\uff4e\uff4b", "bank"]), ("roberta", ["bank"])],
)
def test_signs_that_the_encoder_leaves_out_or_changes(workplace, encoders, name, words):
    views = {"w": WORD, "k": WORD | {"keep_words": ["bank"]}}
    workplace.finished("ba\u00adnk\n\uff42\uff41\uff4e\uff4b\nbank\n", encoder={"handle": encoders[name]}, views=views)
    assert workplace.rows("k")["word"].to_pylist() == words
    assert occurrences(workplace, "bank") == len(words)


@pytest.mark.parametrize("name", LIBRARY)
def test_no_word_spans_an_emoji(workplace, encoders, name):
    text = "a bank\U0001f602\nbank\u2764\ufe0f it\nbank \U0001f602\nbank\u20ac a\n"
    workplace.finished(text, encoder={"handle": encoders[name]}, views={"k": WORD | {"keep_words": ["bank"]}})
    rows = workplace.rows("k")
    assert (rows["line"].to_pylist(), rows["word"].to_pylist()) == ([0, 1, 2, 3], ["bank"] * 4)


def test_words_that_stand_inside_of_others_are_counted(workplace):
    text = "a bank\U0001f602\nbank\u2764\ufe0f it\nbank \U0001f602\nbank\u20ac5 sch\u00f6n\nschon schon\n"
    views = {"k": WORD | {"keep_words": ["bank", "sch\u00f6n"]}}
    done = workplace.finished(text, views=views)
    inside = "k: keep_words that the texts have also inside of other words, where they have no row: bank 1 of 4"
    spelled = "k: keep_words whose rows are spelled otherwise, which is the same to this encoder: sch\u00f6n 2 of 3"
    assert inside in done.out
    assert spelled in done.out
    planned = workplace.plan("--output", "other").out
    assert f"in the texts that were read: {inside}" in " ".join(planned.split())
    assert f"in the texts that were read: {spelled}" in " ".join(planned.split())


@pytest.mark.parametrize("name", ["roberta", "modernbert", "qwen3"])
def test_words_of_scripts_without_spaces_are_pieces(workplace, encoders, name):
    text = "\u6211\u53bb\u94f6\u884c\u53d6\u94b1 \u94f6\u884c\n\u884c \u0e09\u0e31\u0e19\n"
    views = {"w": WORD, "k": WORD | {"keep_words": ["\u884c"]}}
    workplace.finished(text, encoder={"handle": encoders[name]}, views=views)
    words = [*"\u6211\u53bb\u94f6\u884c\u53d6\u94b1\u94f6\u884c\u884c", "\u0e09\u0e31", "\u0e19"]
    assert workplace.rows("w")["word"].to_pylist() == words
    assert workplace.rows("k")["line"].to_pylist() == [0, 0, 1]


def test_places_inside_of_a_clause_that_is_one_token_are_counted(workplace, encoders):
    text = "\u6211\u53bb\u94f6\u884c\u53d6\u94b1 \u94f6\u884c\n\u94f6\u884c\n"
    views = {"k": WORD | {"keep_words": ["\u94f6\u884c"]}}
    done = workplace.finished(text, encoder={"handle": encoders["albert"]}, views=views)
    assert workplace.rows("k")["line"].to_pylist() == [0, 1]
    assert "inside of other words, where they have no row: \u94f6\u884c 2 of 3" in done.out


@pytest.mark.parametrize(
    ("text", "settings", "recall"),
    [
        (
            "\u7a7a\u6c5f\u660e\u6708\u6765\uff0c\u4e91\n\u6708\u7167\u57ce\u5934\n"
            "\u660e\u6708\uff0c\n\u6708 \u9053\u4eba\n",
            {"keep_words": ["\u6708", "\u660e\u6708", "\u9053"]},
            "\u6708 1 of 4, \u660e\u6708 0 of 2, \u9053 0 of 1",
        ),
        (
            "\u0915\u0930 \u0915\u0930\u094b \u0915\u0930\u094b\u0964 \u0915\u0930\u094b, \u0915\u0930\u0964\n"
            "\u0915\u0930 \u0915\u0930\u094b \u0915\u0930\u0928\u0947\n",
            {"keep_words": ["\u0915\u0930", "\u0915\u0930\u094b"]},
            "\u0915\u0930 2 of 3, \u0915\u0930\u094b 2 of 4",
        ),
        ("bank bank. Bank. Bank bank-bank Bank-bank\n", {"keep_words": ["bank"]}, "bank 2 of 8"),
        (
            "bank bank. Bank. Bank bank-bank Bank-bank\n",
            {"keep_words": ["bank", "Bank"], "match_case": True},
            "bank 1 of 5, Bank 1 of 3",
        ),
        ("\u6708 \u6708\u5149\n", {"keep_words": ["\u6708"], "match_case": True}, "\u6708 1 of 2"),
    ],
)
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_every_occurrence_is_counted_once(workplace, encoders, name, text, settings, recall):
    views = {"k": WORD | {"words": "whitespace"} | settings}
    done = workplace.finished(text, encoder={"handle": encoders[name]}, views=views)
    assert f"inside of other words, where they have no row: {recall}\n" in done.out


@pytest.mark.parametrize("name", ["uncased", "cased", "albert", "roberta"])
def test_the_end_of_a_greek_word(workplace, encoders, name):
    text = "\u03bb\u03bf\u03b3\u03bf\u03c2 \u039b\u039f\u0393\u039f\u03a3\n\u03bb\u03bf\u03b3\u03bf\u03c2\n"
    views = {"k": WORD | {"keep_words": ["\u03bb\u03bf\u03b3\u03bf\u03c2"]}}
    workplace.finished(text, encoder={"handle": encoders[name]}, views=views)
    assert workplace.rows("k")["line"].to_pylist() == [0, 0, 1]
    assert occurrences(workplace, "\u039b\u039f\u0393\u039f\u03a3") == 3


def test_letters_with_marks_are_one_word_to_advice(workplace, encoders):
    workplace.finished("a bank\n", encoder={"handle": encoders["roberta"]}, views={"w": WORD})
    for word in ("Ko\u0308ln", "\u0915\u093f\u0924\u093e\u092c", "\u05e9\u05b8\u05c1\u05d1\u05b7\u05ea"):
        assert f"“{word}” does not occur" in workplace._call("report", "out", "--word", word, status=1).err
    assert "`--word a --word + --word b`" in workplace._call("report", "out", "--word", "a+b", status=1).err


def test_what_a_plan_read_is_not_scaled(workplace):
    for number in range(300):
        workplace.write(f"corpus/{number:03}.txt", "a bank. river bank\n" * 40)
    views = {"k": WORD | {"words": "whitespace", "keep_words": ["bank"]}}
    workplace.configure(views=views)
    printed = workplace.drive().err
    found = int(re.search(r"in the texts that were read: k: .*: bank [\d,]+ of ([\d,]+)", printed)[1].replace(",", ""))
    assert found % 80 == 0
    assert found < 300 * 80
