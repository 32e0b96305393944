"""An adversarial corpus, and the check that a run loses, duplicates and moves nothing of it.

`write_corpus` writes it, `check_output` compares the output of `layerbeam run` with a simple reading of the files, and
`snapshot` shows whether anything outside the output was changed.
"""

from __future__ import annotations

import base64
import bz2
import collections
import dataclasses
import gzip
import json
import os
import random
import re
import stat
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard

from layerbeam.transforms.flow.commits import printable
from layerbeam.transforms.input.content import contradiction
from layerbeam.transforms.settings import LINES

DATA = Path(__file__).resolve().parents[1] / "data"
ENCODER = DATA / "hf_uncased"
VIEW = "texts"
MARK = b"\xef\xbb\xbf"

_WORDS = [word for word in (ENCODER / "vocab.txt").read_text(encoding="utf-8").split() if word.isalpha()]
_MARKS = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
_SPACES = [chr(code) for code in range(0x110000) if chr(code).isspace() and code != 0x0A]
_NONCHARACTERS = [*range(0xFDD0, 0xFDF0), *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF))]
_PRIVATE = [*range(0xE000, 0xF900), *range(0xF0000, 0xF0100), *range(0x10FF00, 0x10FFFE)]
_JAMO = [*range(0x1100, 0x1200), *range(0xA960, 0xA97D), *range(0xD7B0, 0xD7FC), *range(0xAC00, 0xAC40)]
_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u05d0\u0634a "
_EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1f9\U0001f1f7"]
_EMOJI += ["\U0001f44d\U0001f3fd", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u2764\ufe0f"]
_MARKUP = ["[CLS] [SEP] [PAD] [UNK]", "a ||| b", "[bold]x[/bold] [/url]", '{"text": "a"}', "- {a: !!python/name:x}"]
_MARKUP += ["%s %n {0}", "\x1b[2J\x1b]0;title\x07", "', DROP TABLE; --", "=1+1", "NaN", "null", "\\n\\x00", "<a>&amp;"]
_INVALID_UTF8 = [
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"\xc0\xaf",
    b"\xc1\x81",
    b"\xe0\x80\xaf",
]
_INVALID_UTF8 += [b"\xf0\x80\x80\xaf", b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xf4\x90\x80\x80"]
_INVALID_UTF8 += [
    b"\xc3",
    b"\xe6\xbc",
    b"\xf0\x9f\x98",
    b"\x80",
    b"\xbf",
    b"caf\xe9 cr\xe8me br\xfbl\xe9e",
    b"\x93quoted\x94",
]
_INVALID_UTF8 += [bytes([byte]) for byte in range(0xF5, 0x100)]


@dataclasses.dataclass
class Corpus:
    """The content of a folder. `globs`: for `input.files`; paths are as these match them, starting with `folder`.

    `read`: the bytes of each file that must be read to its end, decompressed; None means the bytes on disk. `skipped`:
    for each file that must be skipped, the text of its reason. `cut_off`: for some of them, the original content; whole
    blocks of it may appear in the output.
    """

    folder: Path
    globs: list[str]
    read: dict[str, bytes | None] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    cut_off: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def write(self, path: str | bytes, data: bytes, *, text: bytes | None = None, skipped: str | None = None) -> None:
        """Write a file. `text`: its content if it is compressed."""
        name = os.fsdecode(path)
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        if skipped is None:
            self.read[name] = text
        else:
            self.skipped[name] = skipped
            if text is not None:
                self.cut_off[name] = text

    def data(self, path: str) -> bytes:
        known = self.read[path]
        return (self.folder / path).read_bytes() if known is None else known


def write_corpus(
    folder: Path, *, texts: int = 3_000, tiny_files: int = 200, line_bytes: int = 1_000_000, seed: int = 0
) -> Corpus:
    """Write the corpus below `folder`, with these numbers of adversarial lines and tiny files, and this line length."""
    rng = random.Random(seed)
    corpus = Corpus(folder, ["corpus/**/*", "corpus/names/..a..txt", "corpus/names/.dot.txt", "corpus/[x]/a.txt"])
    _write_texts(corpus, rng, texts)
    _write_line_ends(corpus, rng)
    _write_marks(corpus)
    _write_no_text(corpus, rng)
    _write_compressed(corpus, rng)
    _write_long_lines(corpus, line_bytes)
    _write_names(corpus)
    _write_no_files(corpus)
    for number in range(tiny_files):
        lines = [_line(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        path = f"corpus/tiny/{number // 100:03d}/{number:06d}.txt"
        data = b"\n".join(lines) + rng.choice([b"", b"\n"])
        corpus.write(path, data, skipped=contradiction(data, LINES))  # some look like another format by chance
    return corpus


def _characters(codes: list[int]) -> Callable[[random.Random], str]:
    return lambda rng: "".join(chr(rng.choice(codes)) for _ in range(rng.randint(1, 8)))


def _any_of(choices: list[str] | str, most: int) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(choices, k=rng.randint(1, most)))


def _from_one_plane(rng: random.Random) -> str:
    plane = rng.randrange(17) << 16
    codes = (plane | rng.randrange(0x10000) for _ in range(rng.randint(1, 8)))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000 and code != 0x0A)


def _combining(rng: random.Random) -> str:
    length = rng.choice([1, 2, 3, 5, 8, 200, 2_000]) if rng.random() < 0.1 else rng.randint(1, 4)
    return rng.choice("aeiou\u0391\u4e2d\uac00") + "".join(rng.choices(_MARKS, k=length))


def _words(rng: random.Random) -> str:
    words = " ".join(rng.choices(_WORDS, k=rng.randint(1, 30)))
    return rng.choice([str, str.upper, str.title])(words)


_TEXTS: list[Callable[[random.Random], str]] = [
    *(_words, _words, _words, _from_one_plane, _from_one_plane, _combining),
    *(_characters(_NONCHARACTERS), _characters(_PRIVATE), _characters(_JAMO)),
    *(_any_of(_EMOJI, 4), _any_of(_BIDI, 12), _any_of(_SPACES, 4), _any_of(_MARKUP, 2)),
    _any_of("\u03a3\u03c3\u03c2\u0391aA1'.\u00ad\u200b\u0301 \u0130Ii\u0131\u0307\u1e9e\u00df\ufb03\u01c5", 8),
    _any_of([chr(code) for code in (*range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0))], 4),
    _any_of(["\0", "\ufeff", "\ufffd", "\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\r", "a"], 4),
]


def _line(rng: random.Random) -> bytes:
    """A line without its end; one in twelve is invalid UTF-8, some are blank, in ASCII or other Unicode white space."""
    kind = rng.random()
    if kind < 0.04:
        return b""
    if kind < 0.08:
        return "".join(rng.choices(_SPACES, k=rng.randint(1, 5))).encode()
    text = rng.choice(["", "", " "]).join(rng.choice(_TEXTS)(rng) for _ in range(rng.randint(1, 3))).encode()
    if kind < 0.14:
        place = rng.randint(0, len(text))
        return text[:place] + rng.choice(_INVALID_UTF8) + text[place:]
    if kind < 0.16:
        return rng.randbytes(rng.randint(1, 40)).replace(b"\n", b"\xff")
    return text


def _write_texts(corpus: Corpus, rng: random.Random, texts: int) -> None:
    lines = [_line(rng) for _ in range(texts)]
    for number, begin in enumerate(range(0, texts, 1_000)):
        end = (b"\n", b"\r\n")[number % 2]
        # No file may begin with a byte order mark of UTF-16; `_write_no_text` has those.
        corpus.write(f"corpus/texts/{number:03d}.txt", b"first" + end + end.join(lines[begin : begin + 1_000]) + end)
    planes = ["".join(chr(plane << 16 | low) for low in range(0x20, 0x10000, 97)) for plane in range(17) if plane]
    for plane, text in enumerate(planes, start=1):
        corpus.write(f"corpus/texts/plane-{plane}", "\n".join(text[i : i + 30] for i in range(0, 660, 30)).encode())


def _write_line_ends(corpus: Corpus, rng: random.Random) -> None:
    lines = [_words(rng).encode() for _ in range(50)]
    for name, end in (("cr", b"\r"), ("crlf", b"\r\n"), ("crcrlf", b"\r\r\n"), ("lfcr", b"\n\r"), ("vt", b"\x0b")):
        skipped = "lines that end with a carriage return alone" if name == "cr" else None
        corpus.write(f"corpus/ends/{name}.txt", end.join(lines) + end, skipped=skipped)
        corpus.write(f"corpus/ends/{name}-not-last.txt", end.join(lines), skipped=skipped)
    mixed = b"".join(line + rng.choice([b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\n\r\n"]) for line in lines)
    corpus.write("corpus/ends/mixed.txt", mixed)
    for name, data in (("lf", b"\n"), ("cr", b"\r"), ("crlf", b"\r\n"), ("many", b"\n" * 1_000)):
        corpus.write(f"corpus/ends/only-{name}.txt", data)


def _write_marks(corpus: Corpus) -> None:
    for name, data in {
        "start": MARK + b"first\nsecond\n",
        "twice": MARK + MARK + b"first\n" + MARK + MARK + b"second",
        "middle": b"first\nsec" + MARK + b"ond\n" + MARK + b"\n",
        "only": MARK,
        "only-line": MARK + b"\r\n",
        "and-bad-bytes": MARK + b"\xff\n" + MARK + b"\xff\n",
        "half": b"\xef\xbb\nfirst\n",
    }.items():
        corpus.write(f"corpus/marks/{name}.txt", data)


def _write_no_text(corpus: Corpus, rng: random.Random) -> None:
    text = "a text\nand another\n" * 100
    corpus.write("corpus/binary/utf-16.txt", text.encode("utf-16"), skipped="it is UTF-16, not UTF-8; convert it")
    corpus.write("corpus/binary/utf-16-be.txt", b"\xfe\xff" + text.encode("utf-16-be"), skipped="it is UTF-16")
    corpus.write("corpus/binary/utf-32.txt", text.encode("utf-32"), skipped="it is UTF-32")
    corpus.write("corpus/binary/mark-only.txt", b"\xff\xfe", skipped="it is UTF-16")
    corpus.write("corpus/binary/utf-16-no-mark.txt", text.encode("utf-16-le"), skipped="it is UTF-16LE")
    corpus.write("corpus/binary/random", b"random" + rng.randbytes(65_536), skipped="looks like binary data")
    program = b"\x7fELF\x02\x01\x01" + bytes(9) + rng.randbytes(4_096) + bytes(4_096)
    corpus.write("corpus/binary/program", program, skipped="looks like binary data")
    corpus.write("corpus/binary/gzip.txt", gzip.compress(text.encode(), mtime=0), skipped="looks like gzip")
    corpus.write("corpus/binary/zeros", bytes(100_000), skipped="looks like binary data")
    corpus.write("corpus/binary/latin-1.txt", "à la crème brûlée\nplain\nnaïve\n".encode("latin-1"))
    corpus.write("corpus/empty/nothing.txt", b"")
    corpus.write("corpus/empty/blanks.txt", b" \n\t\n \x0b\x0c \n\r\n   ")
    corpus.write("corpus/empty/unicode-blanks.txt", "\u00a0\n\u3000\u2003\n\u2028\n\x1c\x1f\x85\n".encode())
    corpus.write("corpus/empty/zero-width.txt", "\u200b\n\u2060\n\u180e\n\ufeff\n".encode())


def _write_compressed(corpus: Corpus, rng: random.Random) -> None:
    text = b"\n".join(_line(rng) for _ in range(500))
    packed = gzip.compress(text, mtime=0)
    corpus.write("corpus/packed/good.txt.gz", packed, text=text)
    corpus.write(
        "corpus/packed/members.gz", packed[:0] + gzip.compress(b"a\nb") + packed + bytes(512), text=b"a\nb" + text
    )
    corpus.write("corpus/packed/good.bz2", bz2.compress(text), text=text)
    corpus.write("corpus/packed/good.txt.zst", zstandard.compress(text), text=text)
    corpus.write("corpus/packed/no-line.gz", gzip.compress(b""), text=b"")
    corpus.write("corpus/packed/twice.txt.gz", gzip.compress(packed, mtime=0), skipped="looks like gzip")
    damaged = bytearray(packed)
    damaged[len(damaged) // 2] ^= 0xFF
    corpus.write("corpus/packed/damaged.gz", bytes(damaged), text=text, skipped="the compressed data is damaged")
    # More than one block of random digits, which compression does not reduce to one piece.
    digits = b"\n".join(rng.randbytes(50).hex().encode() for _ in range(3_000))
    ends = "the compressed data is truncated"
    for name, data in {
        "cut-off.gz": gzip.compress(digits, mtime=0),
        "cut-off.bz2": bz2.compress(digits),
        "cut-off.zst": zstandard.compress(digits),
    }.items():
        corpus.write(f"corpus/packed/{name}", data[:-9], text=digits, skipped=ends)
    corpus.write("corpus/packed/empty.txt.gz", b"", skipped="the compressed data is truncated")
    corpus.write("corpus/packed/plain.txt.gz", b"no gzip\n", skipped="the compressed data is damaged")
    corpus.write("corpus/packed/utf-16.gz", gzip.compress("a\n".encode("utf-16")), skipped="it is UTF-16")


def _write_long_lines(corpus: Corpus, line_bytes: int) -> None:
    for name, piece in {
        "words": b"word ",
        "one-word": b"w",
        "chinese": "\u6f22".encode(),
        "marks": "\u0301".encode(),
        "bad-bytes": b"\xff",
        "blanks": b" ",
        "control": b"\x01",
    }.items():
        line = piece * (line_bytes // len(piece))
        skipped = "looks like binary data" if name == "control" else None
        corpus.write(f"corpus/long/{name}.txt", b"before\n" + line + b"\nafter\n", skipped=skipped)


def _write_names(corpus: Corpus) -> None:
    names = [
        *(b" .txt", b"a b.txt", b"new\nline.txt", b"tab\there.txt", b"'quote'.txt", b'"quotes".txt', b"`tick`.txt"),
        *(b"$(rm -rf x).txt", b"; rm -rf x.txt", b"a..b.txt", b"..a..txt", b".dot.txt", b"-rf.txt", b"--help", b"~"),
        *(b"*", b"**", b"[1].txt", b"?.txt", b"{a,b}.txt", b"back\\slash.txt", b"a\\..\\..\\up.txt", b"file:name.txt"),
        *("\U0001f600.txt".encode(), "a\u202etxt.exe".encode(), "\u6f22\u5b57.txt".encode(), "e\u0301.txt".encode()),
        *("\u00e9.txt".encode(), b"caf\xe9.txt", b"\xff\xfe\x80.txt", b"\xed\xa0\x80.txt", b"%41.txt", b"x.TXT.GZ"),
        *(b"same stem.txt", b"same_stem.txt", b"same?stem.txt", b"same stem.text", b"same stem", b"a\x1b[31m\x07.txt"),
        *(b"_SUCCESS", b"manifest.json", b"parts.jsonl", b"empty", b"CON", b"nul.txt", b"a.txt.gz.txt", b"#", b"a%sb"),
        *(b"x" * 251 + b".txt", "\u6f22".encode() * 85),
    ]
    for number, name in enumerate(names):
        corpus.write(b"corpus/names/" + name, b"text %d\n\xff\n" % number)
    # A leading dot hides a file from globs: those above are named explicitly.
    (corpus.folder / "corpus" / "names" / ".hidden.txt").write_bytes(b"never read\n")
    corpus.write("corpus/[x]/a.txt", b"a text\n")
    corpus.write("corpus/$HOME/$(id)/a.txt", b"a text\n")
    deep = "/".join(["deep" * 15] * 20)
    corpus.write(f"corpus/{deep}/a.txt", b"a text far below\n")


def _write_no_files(corpus: Corpus) -> None:
    """Links, pipes and folders; `**` follows links to folders, but not endlessly."""
    odd = corpus.folder / "corpus" / "odd"
    (odd / "folder.txt").mkdir(parents=True)
    (odd / "broken.txt").symlink_to("nowhere")
    (odd / "broken\x1b[31m\n.txt").symlink_to("nowhere")
    (odd / "ring-a").symlink_to("ring-b")
    (odd / "ring-b").symlink_to("ring-a")
    (odd / "here").symlink_to(".")
    (odd / "up").symlink_to("..")
    os.mkfifo(odd / "pipe.txt")
    corpus.write("outside/linked.txt", b"a text behind a link\n\xff\n")
    (odd / "link.txt").symlink_to("../../outside/linked.txt")
    del corpus.read["outside/linked.txt"]
    corpus.read["corpus/odd/link.txt"] = None
    ring = "Too many levels of symbolic links"
    corpus.skipped |= {
        "corpus/odd/broken.txt": "No such file or directory",
        "corpus/odd/broken\x1b[31m\n.txt": "No such file or directory",
        "corpus/odd/ring-a": ring,
        "corpus/odd/ring-b": ring,
        "corpus/odd/pipe.txt": "is not a regular file",
    }


def configuration(corpus: Corpus, output: str) -> dict[str, Any]:
    """One vector per line from the small encoder with random weights."""
    return {
        "input": {"format": "text", "files": corpus.globs, "slice_bytes": 65_536, "max_reject_rate": 1.0},
        "encoder": {"handle": str(ENCODER)},
        "views": {VIEW: {"level": "text", "layers": [-1]}},
        "output": {"path": output},
    }


def snapshot(folder: Path, *, without: Path) -> dict[bytes, tuple[Any, ...]]:
    """Everything below a folder except `without`: kind, size, times and link targets."""
    found = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        folders[:] = [name for name in folders if os.path.join(place, name) != os.fsencode(without)]
        for name in folders + files:
            path = os.path.join(place, name)
            status = os.lstat(path)
            target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
            found[path] = (status.st_mode, status.st_size, status.st_mtime_ns, target)
    return found


def plain_lines(data: bytes) -> list[bytes]:
    """The lines of a file, by the documented rules for line ends and the byte order mark."""
    lines = data.removeprefix(MARK).split(b"\n")
    last = lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines]
    # A file that holds only a byte order mark has one blank line.
    return [*lines, last] if last or data == MARK else lines


def is_blank(line: bytes) -> bool:
    """Whether a line is only Unicode white space; invalid UTF-8 is not."""
    try:
        return not line.decode().strip()
    except UnicodeDecodeError:
        return False


@dataclasses.dataclass
class Figures:
    """Statistics of a run over the corpus. `from_cut_off`: records from files skipped because their end is missing."""

    files: int
    records: int
    embedded: int
    blank: int
    rejected: dict[str, int]
    skipped: dict[str, str]
    from_cut_off: int


def check_output(corpus: Corpus, output: Path) -> Figures:
    """Check that every line of every file is in exactly one place: the rows, the rejects or the blank lines.

    Raises AssertionError that names the file. Reads the output without layerbeam's code.
    """
    manifest = json.loads((output / "manifest.json").read_text(encoding="ascii"))
    inputs: dict[str, Any] = {}
    for line in (output / "parts.jsonl").read_text("ascii").splitlines():
        for own in json.loads(line)["files"]:
            entry = inputs.setdefault(own["file"]["path"], {"records": 0, "left_out": None})
            entry["records"] += own["counts"]["records_read"]
    for path, reason in manifest["left_out"].items():
        inputs.setdefault(path, {"records": 0})["left_out"] = reason
    _check_skipped(corpus, output, manifest, inputs)
    _check_names(output, {VIEW, "rejects", "_runs"})
    rows, row_files = _read_rows(output, manifest)
    rejects = list(_read_rejects(output))
    places: dict[str, dict[int, bytes]] = collections.defaultdict(dict)
    for file, line, content in [*rows, *((r["file"], r["line"], base64.b64decode(r["raw"])) for r in rejects)]:
        assert places[file].setdefault(line, content) is content, (file, line, "comes twice")
    shown = {printable(path): path for path in inputs}
    assert len(shown) == len(inputs)
    assert row_files | {reject["file"] for reject in rejects} <= shown.keys()
    blank = 0
    for path in [*corpus.read, *corpus.cut_off]:
        if path in corpus.cut_off:
            lines = plain_lines(corpus.cut_off[path])[: inputs[path]["records"]]
        else:
            lines = plain_lines(corpus.data(path))
        given = places[printable(path)]
        assert inputs[path]["records"] == len(lines), path
        assert set(given) <= set(range(len(lines))), path
        for number, line in enumerate(lines):
            if number in given:
                assert given[number] == line, (path, number)
                assert not is_blank(line), (path, number)
            else:
                assert is_blank(line), (path, number, line[:100])
                blank += 1
    _check_balance(manifest, inputs, corpus, len(rows), blank, rejects)
    reasons = collections.Counter(re.split(r" at (?:byte|character) \d", reject["reason"])[0] for reject in rejects)
    counts = manifest["counts"]
    return Figures(
        len(inputs),
        counts["records_read"],
        counts["embedded"],
        counts["blank_skipped"],
        dict(reasons.most_common()),
        {printable(path): inputs[path]["left_out"] for path in sorted(corpus.skipped)},
        sum(inputs[path]["records"] for path in corpus.cut_off),
    )


def _check_skipped(corpus: Corpus, output: Path, manifest: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Exactly the expected files are skipped, each with its reason; there are no other problems."""
    assert inputs.keys() ^ (corpus.read.keys() | corpus.skipped.keys()) == set()
    reasons = {path: entry["left_out"] for path, entry in inputs.items() if entry["left_out"] is not None}
    assert reasons.keys() == corpus.skipped.keys()
    for path, reason in corpus.skipped.items():
        assert reason in reasons[path], (path, reasons[path])
    problems = [f"{printable(path)}: {reason}" for path, reason in sorted(reasons.items())]
    assert sorted(manifest["problems"]) == sorted(problems)
    assert not manifest["complete"]
    assert not (output / "_SUCCESS").exists()


def _check_names(output: Path, folders: set[str]) -> None:
    assert folders == {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_dir()}
    for path in output.rglob("*"):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}", path.name), path
        assert not path.is_symlink()


def _read_rows(output: Path, manifest: dict[str, Any]) -> tuple[list[tuple[str, int, bytes]], set[str]]:
    """(file, line, text) of each row of the view. Its vectors are finite and as many as the manifest states."""
    rows: list[tuple[str, int, bytes]] = []
    for path in sorted((output / VIEW).iterdir()):
        table = pq.ParquetFile(path).read()
        (column,) = manifest["views"][VIEW]["vectors"]
        vectors = table[column].combine_chunks().flatten().to_numpy()
        assert len(vectors) == table.num_rows * manifest["views"][VIEW]["width"]
        assert np.isfinite(vectors).all(), path
        texts = (text.encode() for text in table["text"].to_pylist())
        rows += zip(table["file"].to_pylist(), table["line"].to_pylist(), texts, strict=True)
    assert len(rows) == manifest["views"][VIEW]["rows"] == manifest["counts"]["embedded"]
    return rows, {file for file, _, _ in rows}


def _read_rejects(output: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((output / "rejects").iterdir()):
        yield from map(json.loads, path.read_text(encoding="ascii").splitlines())


def _check_balance(
    manifest: dict[str, Any],
    inputs: dict[str, Any],
    corpus: Corpus,
    rows: int,
    blank: int,
    rejects: list[dict[str, Any]],
) -> None:
    counts = manifest["counts"]
    assert counts["rejected"] == len(rejects)
    assert counts["records_read"] == sum(entry["records"] for entry in inputs.values())
    assert counts["records_read"] == rows + counts["blank_skipped"] + counts["filtered"] + len(rejects)
    assert blank == counts["blank_skipped"]
    # Files that were skipped before they were scanned have no blocks.
    assert all(inputs[path]["records"] == 0 for path in corpus.skipped.keys() - corpus.cut_off.keys())
