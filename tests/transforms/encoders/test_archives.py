"""Encoders in archives: unpacked once, the same encoder as the folder, and nothing written where it should not be."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import tarfile
import time
import types
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from model_server import tar_of
from repository import DATA
from tampering import deny
from weights import refused

from layerbeam.transforms.encoders import EncoderError, open_encoder
from layerbeam.transforms.encoders.fetch.archives import ending_of, extract, stem

GOOGLE = DATA / "google_uncased"

pytestmark = pytest.mark.usefixtures("cache")


def make_zip(path: Path, folder: Path, prefix: str = "", others: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, prefix + str(file.relative_to(folder)))
        for name, data in (others or {}).items():
            archive.writestr(name, data)
    return path


def make_tar(path: Path, folder: Path, prefix: str = ".") -> Path:
    path.write_bytes(tar_of(folder, prefix=prefix, compressed=path.name.endswith("gz")))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("name", "what"),
    [("a.zip", "a"), ("a.tar", "a"), ("a.tar.gz", "a"), ("a.tgz", "a"), ("a.b.zip", "a.b"), ("a.gz", None)],
)
def test_names_of_archives(name, what):
    assert bool(ending_of(name)) == (what is not None)
    assert stem(name) == (what or name)


@pytest.mark.parametrize(
    ("archive", "inner", "lower_case", "who"),
    [
        ("uncased_L-3_H-64_A-4", "", True, "uncased_L-3_H-64_A-4"),
        ("download", "uncased_L-3_H-64_A-4", True, "uncased_L-3_H-64_A-4"),  # as Google makes them
        ("cased_L-3_H-64_A-4", "", False, "cased_L-3_H-64_A-4"),
        ("cased_L-3_H-64_A-4", "model", False, "cased_L-3_H-64_A-4"),
        ("cased_L-3_H-64_A-4", "uncased_L-3_H-64_A-4", True, "uncased_L-3_H-64_A-4"),
    ],
)
def test_zip_and_casing_by_the_nearest_name(tmp_path, cache, archive, inner, lower_case, who):
    mac = {f"__MACOSX/{inner}/._vocab.txt": b"of a Mac", f"__MACOSX/._{inner}": b"of a Mac"}
    path = make_zip(tmp_path / f"{archive}.zip", GOOGLE, inner and f"{inner}/", mac if inner else {})
    source = open_encoder(str(path))
    assert source.fingerprint == open_encoder(str(GOOGLE)).fingerprint
    assert (source.handle, source.kind) == (str(path), "google")
    assert (source.do_lower_case, source.casing_from) == (lower_case, f"the name {who}")
    assert Path(source.folder).relative_to(cache).parts[1:] == ((inner,) if inner else ())


@pytest.mark.parametrize("name", ["encoder.tar.gz", "encoder.tgz", "encoder.tar"])
@pytest.mark.parametrize("what", ["tfhub_uncased", "hf_uncased"])
@pytest.mark.parametrize("prefix", [".", "inner"])
def test_tar(tmp_path, name, what, prefix):
    source = open_encoder(str(make_tar(tmp_path / name, DATA / what, prefix)))
    assert source.fingerprint == open_encoder(str(DATA / what)).fingerprint
    assert source.do_lower_case is True


def test_zip_with_backslashes_between_the_names(tmp_path):
    with zipfile.ZipFile(tmp_path / "windows.zip", "w") as archive:
        for name, data in files_of(DATA / "hf_uncased").items():
            entry = zipfile.ZipInfo("name")
            entry.filename = f"model\\{name}"
            archive.writestr(entry, data)
    source = open_encoder(str(tmp_path / "windows.zip"))
    assert source.fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_unpacked_once(tmp_path, cache):
    path = make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")
    first = open_encoder(str(path))
    before = Path(first.folder).stat()
    again = open_encoder(str(path))
    after = Path(again.folder).stat()
    assert again == first
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert os.listdir(cache) == [Path(first.folder).name]


def test_several_unpack_at_once(tmp_path, cache):
    path = make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")
    with ThreadPoolExecutor(8) as threads:
        sources = list(threads.map(open_encoder, [str(path)] * 16))
    assert len(set(sources)) == 1
    assert os.listdir(cache) == [Path(sources[0].folder).name]


def test_relative_path_is_the_same_archive(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")
    monkeypatch.chdir(tmp_path)
    assert open_encoder("encoder.zip").folder == open_encoder(str(path)).folder


def test_changed_archive_is_unpacked_anew(tmp_path):
    path = make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")
    first = open_encoder(str(path))
    make_zip(path, GOOGLE)
    second = open_encoder(str(path))
    assert (first.kind, second.kind) == ("huggingface", "google")
    # As large as before: the time tells.
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
    assert len({first.folder, second.folder, open_encoder(str(path)).folder}) == 3


def test_archive_without_an_encoder_says_where_it_was_unpacked(tmp_path, cache):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    error = refused(tmp_path / "other.zip")
    assert "readme.txt" in error
    assert f"it was fetched into {cache}" in error
    assert "delete that to fetch it again" in error


def small_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", '{"hidden_size": 64}' * 9)
        archive.writestr("inner/vocab.txt", bytes(range(256)))
    return stream.getvalue()


def small_tar(mode: str) -> Callable[[], bytes]:
    def make() -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode=mode) as archive:
            for name, data in (("config.json", b'{"hidden_size": 64}' * 9), ("inner/vocab.txt", bytes(range(256)))):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return stream.getvalue()

    return make


@pytest.fixture(params=[("a.zip", small_zip), ("a.tar.gz", small_tar("w:gz")), ("a.tar", small_tar("w"))])
def small(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    name, make = request.param
    return name, make()


WHOLE = {"config.json": b'{"hidden_size": 64}' * 9, "inner/vocab.txt": bytes(range(256))}


def outcome(archive: Path, data: bytes) -> dict[str, bytes] | None:
    """What is unpacked of these bytes; None where they are refused, as they should be."""
    archive.write_bytes(data)
    target = archive.parent / "target"
    for path in sorted(target.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    target.mkdir(exist_ok=True)
    try:
        extract("encoder", archive, target)
    except EncoderError as error:
        said = str(error)
    else:
        return files_of(target)
    assert said.startswith("encoder: ")
    assert any(advice in said for advice in ("download it again", "take it from its publisher", "free"))
    return None


def test_archive_cut_off_anywhere(tmp_path, small):
    name, data = small
    assert outcome(tmp_path / name, data) == WHOLE
    ends = {outcome(tmp_path / name, data[:size]) is None for size in range(len(data) - 8 if "gz" in name else 0)}
    assert ends <= {True}
    # Past the last file a .tar has only zeros: what is lost of them is no loss.
    content = len(data.rstrip(b"\0"))
    for size in range(0, content, 7):
        assert outcome(tmp_path / name, data[:size]) is None, size


# A .tar has no checksum over its files.
@pytest.mark.parametrize(("name", "make"), [("a.zip", small_zip), ("a.tar.gz", small_tar("w:gz"))])
def test_flipped_bits_never_give_other_files(tmp_path, name, make):
    data = make()
    refusals = 0
    for place in range(len(data)):
        spoiled = bytearray(data)
        spoiled[place] ^= 1 << place % 8
        got = outcome(tmp_path / name, bytes(spoiled))
        refusals += got is None
        # A central directory that hides an entry is the one damage that a .zip cannot tell.
        assert got is None or got.items() <= WHOLE.items(), place
    assert refusals > len(data) // 2


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz"])
@pytest.mark.parametrize("data", [b"", b"not an archive", b"<html>" + b"page " * 900, bytes(4096)])
def test_no_archive_at_all(tmp_path, cache, name, data):
    (tmp_path / name).write_bytes(data)
    error = refused(tmp_path / name)
    assert "cannot be unpacked" in error
    assert "download it again" in error
    assert os.listdir(cache) == []


def test_damaged_zip_leaves_nothing_and_the_whole_one_opens(tmp_path, cache):
    path = make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\0\1\2\3" + data[len(data) // 2 + 4 :])
    assert "cannot be unpacked" in refused(path)
    assert os.listdir(cache) == []
    path.write_bytes(data)
    assert open_encoder(str(path)).fingerprint == open_encoder(str(DATA / "hf_uncased")).fingerprint


def test_encrypted_zip(tmp_path):
    data = bytearray(small_zip())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.find(signature)
        while start >= 0:
            data[start + flags] |= 1
            start = data.find(signature, start + 1)
    (tmp_path / "secret.zip").write_bytes(data)
    error = refused(tmp_path / "secret.zip")
    assert "cannot be unpacked" in error
    assert "encrypted" in error


OUTSIDE = [
    *("../x", "../../x", "a/../../x", "./../x", "C:\\x", "C:x", "..\\x", "a\\..\\..\\x"),
    *("/proc/x", "//proc/x", "\\proc\\x", "\\\\proc\\share\\x"),  # where nothing can be written, should it be tried
]


def zip_with(path: Path, *entries: tuple[str, int]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        for name, mode in entries:
            entry = zipfile.ZipInfo("x")
            entry.filename = name
            entry.create_system = 3
            entry.external_attr = mode << 16
            archive.writestr(entry, "data")
    return path


def tar_with(path: Path, name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        first = tarfile.TarInfo("config.json")
        first.size = 2
        archive.addfile(first, io.BytesIO(b"{}"))
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        entry.size = 4 if kind == tarfile.REGTYPE else 0
        archive.addfile(entry, io.BytesIO(b"data"))
    return path


@pytest.fixture
def nothing_written(tmp_path: Path, cache: Path) -> Iterator[None]:
    """At the end there is nothing but what the test itself made."""
    yield
    made = [name for name in everything_in(tmp_path) if not name.startswith("cache") and "encoder." not in name]
    assert made == []
    assert everything_in(cache) == []


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_entry_that_would_lie_outside(tmp_path, name, ending):
    path = tmp_path / f"encoder.{ending}"
    if ending == "zip":
        zip_with(path, (name, 0o644))
    else:
        tar_with(path, name)
    error = refused(path)
    assert f"the entry {name!r} would lie outside the folder" in error
    assert "take it from its publisher" in error


@pytest.mark.usefixtures("nothing_written")
def test_symlink_in_zip(tmp_path):
    path = zip_with(tmp_path / "encoder.zip", ("vocab.txt", stat.S_IFLNK | 0o777))
    assert "the entry 'vocab.txt' is a link" in refused(path)


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_what_is_no_file_in_tar(tmp_path, kind):
    path = tar_with(tmp_path / "encoder.tar.gz", "vocab.txt", kind, "/etc/passwd")
    assert "the entry 'vocab.txt' is neither a file nor a folder" in refused(path)


@pytest.mark.usefixtures("nothing_written")
@pytest.mark.parametrize("name", ["", ".", "./."])
def test_entry_without_a_name(tmp_path, name):
    assert "cannot be unpacked" in refused(zip_with(tmp_path / "encoder.zip", (name, 0o644)))


@pytest.mark.usefixtures("nothing_written")
def test_name_that_is_both_file_and_folder(tmp_path):
    path = zip_with(tmp_path / "encoder.zip", ("config.json/x", 0o644))
    assert re.search(r"cannot be fetched \(.*: '.*/config.json/x'", refused(path))
    path = zip_with(tmp_path / "encoder.zip", ("a/b", 0o644), ("a", 0o644))
    assert re.search(r"cannot be fetched \(.*: '.*/a'\)", refused(path))


@pytest.mark.usefixtures("nothing_written")
def test_name_that_is_too_long(tmp_path):
    error = refused(zip_with(tmp_path / "encoder.zip", ("n" * 400, 0o644)))
    assert re.search(r"cannot be fetched \(.*File name too long: '.*/nnnnn", error)


def test_archive_that_may_not_be_read(tmp_path, cache, monkeypatch):
    path = make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")
    deny(monkeypatch, path)
    assert f"{path}: cannot be fetched ([Errno 13] Permission denied: '{path}')" in refused(path)
    assert list(cache.iterdir()) == []


def test_zip_that_is_called_tar(tmp_path):
    path = make_zip(tmp_path / "encoder.tar.gz", DATA / "hf_uncased")
    assert refused(path) == (f"{path}: cannot be unpacked (file could not be opened successfully); download it again")


def test_endings_in_capitals(tmp_path):
    make_zip(tmp_path / "UNCASED_E.ZIP", GOOGLE)
    make_tar(tmp_path / "e.tar.gz", GOOGLE).rename(tmp_path / "CASED_E.Tar.GZ")
    source = open_encoder(str(tmp_path / "UNCASED_E.ZIP"))
    assert (source.do_lower_case, source.casing_from) == (True, "the name UNCASED_E")
    source = open_encoder(str(tmp_path / "CASED_E.Tar.GZ"))
    assert (source.do_lower_case, source.casing_from) == (False, "the name CASED_E")


def test_what_a_killed_process_left_is_cleared_away_after_a_day(tmp_path, cache):
    for name, age in (("old.tmp", 90_000), ("active.tmp", 80_000)):
        (cache / name).mkdir(parents=True)
        (cache / name / "model.safetensors").write_bytes(b"half of it")
        os.utime(cache / name, (time.time() - age,) * 2)
    made = Path(open_encoder(str(make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased"))).folder)
    assert sorted(os.listdir(cache)) == sorted(["active.tmp", made.name])


def test_unpacked_again_where_somebody_deleted_the_encoder_in_it(tmp_path, cache):
    path = make_zip(tmp_path / "download.zip", GOOGLE, "inner/")
    first = open_encoder(str(path))
    (Path(first.folder) / "vocab.txt").write_text("nonsense")
    outer = Path(first.folder).parent
    assert outer.parent == cache
    assert refused(path).endswith(f" (it was fetched into {outer}: delete that to fetch it again)")
    shutil.rmtree(first.folder)
    assert open_encoder(str(path)) == first


def test_folder_that_another_process_deletes_is_passed_over(tmp_path, cache):
    cache.mkdir(parents=True)
    (cache / "gone.tmp").symlink_to("nowhere")  # listed, and not there
    assert open_encoder(str(make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased"))).kind == "huggingface"


def test_relative_cache_folder_does_not_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    source = open_encoder(str(make_zip(tmp_path / "encoder.zip", DATA / "hf_uncased")))
    assert Path(source.folder).parent == tmp_path / "home" / ".cache" / "layerbeam" / "encoders"
    assert not (tmp_path / "here").exists()


def test_link_to_an_archive_that_tells_the_casing(tmp_path):
    (tmp_path / "current.zip").symlink_to(make_zip(tmp_path / "cased_L-3_H-64_A-4.zip", GOOGLE))
    assert open_encoder(str(tmp_path / "current.zip")).casing_from == "the name cased_L-3_H-64_A-4"


@pytest.mark.usefixtures("nothing_written")
def test_sizes_that_are_not_true(tmp_path):
    entry = tarfile.TarInfo("model.safetensors")
    entry.size = 1 << 60
    (tmp_path / "encoder.tar").write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))
    assert "cannot be unpacked" in refused(tmp_path / "encoder.tar")


@pytest.mark.usefixtures("nothing_written")
def test_disk_without_room(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "encoder.zip", GOOGLE)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: types.SimpleNamespace(free=1_000))
    error = refused(path)
    assert "unpacked it takes 671,681 bytes" in error
    assert "has 1,000 free" in error
