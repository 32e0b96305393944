"""Splitters of one text into sentences: sentencex, and functions of the user's."""

from __future__ import annotations

import functools
import importlib
import operator
import re
import reprlib
from collections.abc import Callable
from typing import Any

from layerbeam.transforms.panics import PanicError, panics_as_errors

Splitter = Callable[[str], list[tuple[int, int]]]

# sentencex takes quadratic time for Chinese and for many quotes, so a long text is read in windows.
WINDOW = 2000
# sentencex 1.0.32 panics at a capital letter, white space outside ASCII and a period.
_UNUSUAL_SPACE = re.compile(r"[^\S\t\n\r ]")


class SplitterError(ValueError):
    """A splitter cannot be used, or returned something that is not a list of sentences."""


class UnsplittableTextError(Exception):
    """A text that the splitter cannot split."""


@functools.cache
def open_splitter(sentences: str, language: str) -> Splitter:
    """The splitter that `input.sentences` names: text -> (start, end) of each sentence, in code points.

    Args:
        sentences: `sentencex`, or `module:function` for a function of the user's.
        language: The language of the texts, for sentencex.

    SplitterError if it cannot be imported.
    """
    if sentences != "sentencex":
        return functools.partial(_call, _import_function(sentences), f"input.sentences: {sentences}")
    import sentencex

    return functools.partial(_split_in_windows, functools.partial(sentencex.get_sentence_boundaries, language))


def _import_function(address: str) -> Callable[[str], Any]:
    module, _, name = address.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module may raise anything
        raise SplitterError(
            f"input.sentences: {address}: {type(error).__name__}: {error}; the function must be importable here and on "
            "the workers: install its module, or set PYTHONPATH"
        ) from error
    if not callable(function):
        raise SplitterError(f"input.sentences: {address}: is not a function")
    checked: Callable[[str], Any] = function
    return checked


def _call(function: Callable[[str], Any], name: str, text: str) -> list[tuple[int, int]]:
    """What the function returns, checked. SplitterError if it fails or breaks its contract."""
    try:
        returned = list(function(text))
    except (Exception, SystemExit) as error:
        raise SplitterError(f"{name} failed for {reprlib.repr(text)}: {type(error).__name__}: {error}") from error
    spans: list[tuple[int, int]] = []
    start_before = 0
    for span in returned:
        try:
            start, end = map(operator.index, span)
        except (TypeError, ValueError):
            start, end = -1, -1
        if not start_before <= start <= end <= len(text):
            raise SplitterError(
                f"{name} returned {reprlib.repr(span)} after a sentence that begins at {start_before}, in a text of "
                f"{len(text)} code points; it must return (start, end) of each sentence in code points, in the order "
                "of their starts"
            )
        spans.append((start, end))
        start_before = start
    return spans


def _split_in_windows(get_boundaries: Callable[[str], list[dict[str, Any]]], text: str) -> list[tuple[int, int]]:
    """The sentences, which cover the text. UnsplittableTextError if sentencex panics.

    The last sentence of a window may be incomplete: the next window begins with it, or inside it if it is long. So each
    window but the last advances by at least half of its length.
    """
    spaced = _UNUSUAL_SPACE.sub(" ", text)
    starts, begin = [0], 0
    while begin < len(text):
        end = begin + WINDOW
        try:
            with panics_as_errors():
                found = [begin + boundary["start_index"] for boundary in get_boundaries(spaced[begin:end])[1:]]
        except PanicError as error:
            raise UnsplittableTextError(f"sentencex cannot split the text: {error}") from None
        starts += found
        if end >= len(text):
            break
        half = begin + WINDOW // 2
        begin = found[-1] if found and found[-1] >= half else spaced.rfind(" ", half, end) + 1 or end
    return list(zip(starts, [*starts[1:], len(text)], strict=True))
