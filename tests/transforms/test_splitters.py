from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator

import pytest
from corpora import read_sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from layerbeam.transforms import splitters
from layerbeam.transforms.flow import metrics
from layerbeam.transforms.settings import check_splitter
from layerbeam.transforms.splitters import SplitterError, UnsplittableTextError, open_splitter
from layerbeam.transforms.tokenize import sentences as of_records


@contextlib.contextmanager
def windows_of(characters: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitters, "WINDOW", characters)
        yield


def split(text: str, language: str = "en") -> list[str]:
    pieces = (text[start:end].strip() for start, end in open_splitter("sentencex", language)(text))
    return [piece for piece in pieces if piece]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Mr. Smith paid 3.50. He left at 5 p.m. sharp.", ["Mr. Smith paid 3.50.", "He left at 5 p.m. sharp."]),
        ("en", "A heading\n\nText, e.g. this.\nMore\r\ntext.", ["A heading", "Text, e.g. this.", "More\r\ntext."]),
        ("en", "“Stop!” he cried. (Nobody did.) Why?", ["“Stop!” he cried.", "(Nobody did.) Why?"]),
        ("en", "Cafe\u0301 1.5 é. 😀 Two.\u00a0Three.", ["Cafe\u0301 1.5 é.", "😀 Two.", "Three."]),
        ("de", "Das gilt z. B. für Dr. Weber. Es regnet.", ["Das gilt z. B. für Dr. Weber.", "Es regnet."]),
        ("zh", "版本2.0.1已经发布。它修正了错误。", ["版本2.0.1已经发布。", "它修正了错误。"]),
        ("en", "no punctuation", ["no punctuation"]),
        ("en", " \n ", []),
        ("en", "", []),
    ],
)
def test_sentencex(language, text, expected):
    assert split(text, language) == expected


def test_language_decides():
    assert split("Das gilt z. B. für Dr. Weber u. a. Leute.", "de") == ["Das gilt z. B. für Dr. Weber u. a. Leute."]
    assert len(split("Это было в XIX в. до реформы.", "en")) == 2
    assert len(split("Это было в XIX в. до реформы.", "ru")) == 1


def test_white_space_on_which_sentencex_panics():
    assert split("Plan D\u3000. Then\u2028D\u2003. End.") == ["Plan D\u3000.", "Then\u2028D\u2003. End."]


@settings(max_examples=300)
@given(
    st.text(
        st.sampled_from("aDé漢😀.!?…。،।()[]「」“”\"'«»-1* \u00a0\u2003\u3000\u2028\t\r\n\x85\0\u0301\ufeff\x1c"),
        max_size=60,
    ),
    st.sampled_from(["en", "de", "fr", "ru", "zh", "ja", "ar", "hi", "hy"]),
    st.sampled_from([3, 10, 2000]),
)
def test_sentences_are_in_order_and_only_white_space_is_outside(text, language, window):
    with windows_of(window):
        spans = open_splitter("sentencex", language)(text)
        assert spans == open_splitter("sentencex", language)(text)
    left, end_before = list(text), 0
    for start, end in spans:
        assert end_before <= start <= end <= len(text)
        left[start:end] = [" "] * (end - start)
        end_before = end
    assert not "".join(left).strip()


def test_windows_do_not_change_sentences():
    text = " ".join(f"Mr. Smith number {n} paid 3.50 for it. He left!" for n in range(200))
    whole = split(text)
    assert len(whole) == 400
    with windows_of(90):
        assert split(text) == whole


def test_sentence_longer_than_windows_stays_whole():
    long = "word " * 40 + "end."
    with windows_of(50):
        assert split(f"First. {long} Last.") == ["First.", long, "Last."]
        assert split("漢" * 120 + "。短。") == ["漢" * 120 + "。", "短。"]


@pytest.mark.parametrize(
    "unit", ["word ", "a", ".", "(", '"', "“", "\n", "One two. ", "漢。", "「あ。」", "Mr. ", "A. "]
)
def test_long_texts_are_read_in_windows_of_bounded_total_length(unit):
    """sentencex alone needs minutes for 250 kB of some of these: the time is quadratic in the length of a window."""
    text = unit * math.ceil(100_000 / len(unit))
    lengths = []

    def get_boundaries(window):
        lengths.append(len(window))
        return original(window)

    original = open_splitter("sentencex", "en").args[0]
    splitters._split_in_windows(get_boundaries, text)
    assert max(lengths) <= 2000
    assert sum(lengths) <= 2 * len(text)


class PanicException(BaseException):
    """As pyo3 names it, which offers no class to import."""


def test_text_on_which_sentencex_panics_is_rejected(corpus, monkeypatch):
    def get_boundaries(window):
        if "x" in window:
            raise PanicException("end byte index 3 is not a char boundary")
        return [{"start_index": 0, "end_index": len(window)}]

    monkeypatch.setattr(
        of_records, "open_splitter", lambda *_: lambda text: splitters._split_in_windows(get_boundaries, text)
    )
    (block,) = read_sentences(corpus("one\nx\ntwo\n"))
    assert block.texts.to_pylist() == ["one", "two"]
    assert block.line.tolist() == [0, 2]
    (rejected,) = block.rejected
    assert (rejected.line, rejected.stage, rejected.raw) == (1, "tokenize", b"x")
    assert rejected.reason == "sentencex cannot split the text: end byte index 3 is not a char boundary"
    assert (block.counts[metrics.RECORDS], block.counts[metrics.REJECTED], block.counts[metrics.SENTENCES]) == (3, 1, 2)
    assert metrics.unbalanced(block.counts) is None


def test_other_exceptions_are_not_hidden():
    def get_boundaries(window):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        splitters._split_in_windows(get_boundaries, "a")
    with pytest.raises(UnsplittableTextError):
        splitters._split_in_windows(lambda window: (_ for _ in ()).throw(PanicException("x")), "a")


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """A module with splitters, as a user writes one."""
    (tmp_path / "my_sentences.py").write_text(
        "import re\n"
        "def at_semicolons(text):\n"
        "    return [match.span() for match in re.finditer('[^;]+', text)]\n"
        "def pieces(text): return text.split(';')\n"
        "def numbers(text): return 3\n"
        "def outside(text): return [(0, len(text) + 1)]\n"
        "def backwards(text): return [(2, 3), (0, 1)]\n"
        "def overlapping(text): return [(0, 3), (2, 4)]\n"
        "def reversed_(text): return [(3, 1)]\n"
        "def fails(text): return text[99]\n"
        "def letters(text): return 'ab'\n"
        "constant = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    open_splitter.cache_clear()
    sys.modules.pop("my_sentences", None)


@pytest.mark.usefixtures("my_module")
def test_function_of_ones_own(corpus):
    path = corpus(" Mr. é; 漢 😀;;b\n;\n")
    (block,) = read_sentences(path, sentences="my_sentences:at_semicolons")
    assert block.texts.to_pylist() == ["Mr. é", "漢 😀", "b"]
    assert block.offset.tolist() == [1, 8, 13]
    assert block.sentence.tolist() == [0, 1, 2]
    assert (block.counts[metrics.EMBEDDED], block.counts[metrics.BLANK]) == (1, 1)


@pytest.mark.usefixtures("my_module")
def test_pieces_that_overlap(corpus):
    path = corpus("a b c\nd é f g\n")
    (block,) = read_sentences(path, sentences="my_sentences:overlapping")
    assert block.texts.to_pylist() == ["a b", "b", "d é", "é"]
    assert block.offset.tolist() == [0, 2, 0, 2]
    assert block.sentence.tolist() == [0, 1, 0, 1]


@pytest.mark.usefixtures("my_module")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("pieces", " returned 'some' after a sentence that begins at 0, in a text of 9 code points; it must return"),
        ("letters", " returned 'a' after a sentence that begins at 0, in a text of 9 code points; it must return"),
        ("numbers", " failed for 'some;text': TypeError: 'int' object is not iterable"),
        ("fails", " failed for 'some;text': IndexError: string index out of range"),
        ("outside", " returned (0, 10) after a sentence that begins at 0, in a text of 9 code points; it must return"),
        ("reversed_", " returned (3, 1) after a sentence that begins at 0, in a text of 9 code points; it must return"),
        (
            "backwards",
            " returned (0, 1) after a sentence that begins at 2, in a text of 9 code points; it must return "
            "(start, end) of each sentence in code points, in the order of their starts",
        ),
        ("missing", ": AttributeError: module 'my_sentences' has no attribute 'missing'; the function must be"),
        ("constant", ": is not a function"),
    ],
)
def test_function_that_breaks_its_contract(function, message):
    with pytest.raises(SplitterError) as error:
        open_splitter(f"my_sentences:{function}", "en")("some;text")
    assert str(error.value).startswith(f"input.sentences: my_sentences:{function}{message}")


@pytest.mark.parametrize(
    ("module", "code", "message"),
    [
        (
            "my_broken_module",
            "def split(text:\n",
            r"SyntaxError: .* \(my_broken_module.py, line 1\); the function must be",
        ),
        ("my_script", "import sys; sys.exit()\n", "SystemExit: ; the function must be importable"),
    ],
)
def test_module_that_fails_when_it_is_imported(tmp_path, monkeypatch, module, code, message):
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SplitterError, match=f"^input.sentences: {module}:split: {message}"):
        open_splitter(f"{module}:split", "en")


@pytest.mark.parametrize("name", ["sentencex", "a:b", "my_package.text:split_é"])
def test_allowed_names(name):
    assert check_splitter(name) == name


@pytest.mark.parametrize("name", ["", "pysbd", "a.b", "a:", ":b", "a:b:c", "a b:c", "../x:y", "1:2"])
def test_other_names(name):
    with pytest.raises(ValueError, match="should be sentencex or your own module:function"):
        check_splitter(name)
