from __future__ import annotations

import errno
import glob
import os
import re

import pytest
from apache_beam.io.filesystems import FileSystems
from flaky_filesystem import SCHEME, FaultyFileSystem, Plan
from repository import python

from layerbeam.transforms import storage
from layerbeam.transforms.flow.commits import InputFile
from layerbeam.transforms.storage import files, listing, stores


def names(found: list) -> list[str]:
    return [os.path.basename(file.path) for file in found if not file.problem]


def test_globs_give_each_file_once_in_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", ".hidden.txt"):
        (tmp_path / name).write_text("x")
    found = storage.find_files([f"{tmp_path}/*.txt", f"{tmp_path}/a*", f"{tmp_path}/c.md"])
    assert names(found) == ["a.txt", "b.txt", "c.md"]


@pytest.mark.parametrize("pattern", ["**", "**/*", "**/**/*.txt", "x/**/*.txt", "**/y/**/*.txt", "[x]/**/y/b.txt"])
def test_stars_twice_find_what_python_s_glob_finds(tmp_path, monkeypatch, pattern):
    tmp_path = tmp_path / "in"  # nothing is next to it
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    hidden = ("x/.hidden/d.txt", ".e.txt", ".z/b.txt")
    for name in ("a.txt", "x/y/b.txt", "x/y/y/c.txt", "[x]/y/b.txt", "x/**/f.txt", *hidden):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "x" / "y" / "link").symlink_to(tmp_path / ".z")
    for prefix in ("", "./", glob.escape(f"{tmp_path}/"), f"{tmp_path.parent}/*/"):
        paths = glob.glob(prefix + pattern, recursive=True)
        expected = sorted({os.path.normpath(path) for path in paths if os.path.isfile(path)})
        assert [os.path.normpath(file.path) for file in storage.find_files([prefix + pattern])] == expected
    assert expected


def test_stars_twice_end_where_links_lead_upwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "y" / "a.txt").write_text("x")
    (tmp_path / "x" / "here").symlink_to(".")
    (tmp_path / "x" / "y" / "up").symlink_to("..")
    (tmp_path / "x" / "ring").symlink_to("ring")
    (tmp_path / "z").symlink_to("x")
    found = storage.find_files(["**/*"])
    assert [file.path for file in found] == ["x/ring", "x/y/a.txt"]
    assert found[0] == InputFile.unreadable("x/ring", "Too many levels of symbolic links")


def test_stars_twice_enter_linked_folders_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (*"abcdefghijkl", ".elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    for folder in "abcdefghijkl":
        for other in "abcdefghijkl":
            (tmp_path / folder / f"to-{other}").symlink_to(tmp_path / other)
    (tmp_path / "0-current").symlink_to("l")  # its name comes first
    (tmp_path / "c" / "y").symlink_to(tmp_path / ".elsewhere")
    (tmp_path / "a" / "z").symlink_to(tmp_path / ".elsewhere")
    expected = [f"{name}/x.txt" for name in ("a", "a/z", *"bcdefghijkl")]
    for pattern in ("**/*.txt", "*/**/*.txt", "**/*/**/*.txt"):
        assert [file.path for file in storage.find_files([pattern])] == expected
    # Elsewhere a link is a name as any other.
    assert [file.path for file in storage.find_files(["[0l]*/*.txt"])] == ["0-current/x.txt", "l/x.txt"]
    (tmp_path / "l" / "same.txt").symlink_to("x.txt")
    assert [file.path for file in storage.find_files(["**/*.txt"])] == [*expected[:-1], "l/same.txt", "l/x.txt"]


def test_a_file_named_like_a_glob_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("1.txt", "a.txt", "[1].txt", "*.txt"):
        (tmp_path / name).write_text("x")
    assert names(storage.find_files(["*.txt"])) == ["*.txt", "1.txt", "[1].txt", "a.txt"]
    assert names(storage.find_files(["[1].txt"])) == ["1.txt", "[1].txt"]
    (tmp_path / "[a].txt").mkdir()
    (tmp_path / "[a-b].txt").symlink_to("nowhere")
    assert names(storage.find_files(["[a].txt"])) == ["a.txt"]
    broken, whole = storage.find_files(["[a-b].txt"])
    assert (broken, whole.path) == (InputFile.unreadable("[a-b].txt", "No such file or directory"), "a.txt")


@pytest.mark.parametrize("name", ["a[1].txt", "back\\slash.txt", "star*.txt", "new\nline.txt", "  "])
def test_a_path_that_exists_is_that_file(tmp_path, name):
    (tmp_path / name).write_text("x")
    assert names(storage.find_files([str(tmp_path / name)])) == [name]
    assert names(storage.find_files([f"{tmp_path}/*"])) == [name]


def test_what_is_no_readable_file_is_left_out(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    found = storage.find_files([str(tmp_path / name) for name in ("folder", "broken", "pipe")])
    assert found == [
        InputFile.unreadable(f"{tmp_path}/broken", "No such file or directory"),
        InputFile.unreadable(f"{tmp_path}/folder", f"is a folder; to read the files in it, write {tmp_path}/folder/*"),
        InputFile.unreadable(f"{tmp_path}/pipe", "is not a regular file"),
    ]


def test_the_files_of_a_folder_are_not_the_folders_in_it(tmp_path):
    for name in ("a-1", "b-1", "a-2/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "a-3")
    assert sorted(storage.file_names(str(tmp_path))) == ["a-1", "b-1"]
    assert list(storage.file_names(str(tmp_path), "a-")) == ["a-1"]
    assert storage.list_folder(str(tmp_path)) == {"a-1": 1, "b-1": 1}
    assert dict(storage.file_sizes(str(tmp_path), "a-")) == {"a-1": 1}


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = str(tmp_path / "out" / "file")

    def write_and_fail() -> None:
        with storage.write_atomically(path) as file:
            file.write(b"half")
            (unfinished,) = os.listdir(tmp_path / "out")
            # Readers of a folder skip names that begin with `_`, and globs of a suffix skip names without it.
            assert re.fullmatch("_unfinished-[0-9a-f]{32}", unfinished)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert os.listdir(tmp_path / "out") == []
    with storage.write_atomically(path) as file:
        file.write(b"abc")
    assert (file.num_bytes, file.sha256[:8]) == (3, "ba7816bf")
    assert storage.read_bytes(path) == b"abc"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """`faulty://` in this test's folder, and the setting of what fails."""
    plan = Plan()
    monkeypatch.setattr(FaultyFileSystem, "plan", plan)
    return f"{SCHEME}{tmp_path}", plan


def write_to(path: str) -> None:
    with storage.write_atomically(path) as file:
        file.write(b"some bytes")


def test_an_upload_that_breaks_off_deletes_nothing(store):
    """Beam's other stores may show the file incomplete: its size tells."""
    root, plan = store
    write_to(f"{root}/a")
    assert storage.read_bytes(f"{root}/a") == b"some bytes"
    for kind, kept in (("write", 0), ("close", 5)):
        plan.shares = {kind: 1.0}
        with pytest.raises(OSError, match=f"{kind} failed, as planned"):
            write_to(f"{root}/b")
        plan.shares = {}
        assert storage.list_folder(root) == {"a": 10, "b": kept}


def test_a_store_that_keeps_less_than_it_was_given_is_caught(store):
    root, plan = store
    plan.shares = {"truncate": 1.0}
    with pytest.raises(OSError, match="/a: only 5 of 10 bytes were written"):
        write_to(f"{root}/a")


def test_what_is_raised_while_a_file_is_written_uploads_nothing(store):
    root, _ = store

    def interrupted() -> None:
        with storage.write_atomically(f"{root}/a") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert storage.list_folder(root) == {}


def test_reading_behind_the_end_does_not_move_the_end(memory):
    memory.stored["memory://bucket/a"] = (0.0, b"0123456789")
    with storage.open_binary("memory://bucket/a", end=4) as file:
        assert (file.seek(20), file.read(1)) == (20, b"")
        assert (file.seek(-2, 2), file.read()) == (8, b"89")


def test_a_file_that_cannot_be_read_now_is_not_a_missing_one(tmp_path, monkeypatch):
    path = str(tmp_path / "a")
    assert storage.stat_if_exists(path) is storage.read_if_exists(path) is storage.read_json(path) is None
    assert storage.stat_if_exists(f"{tmp_path}") is None
    (tmp_path / "a").write_text("{}")
    assert storage.stat_if_exists(path).size == 2
    assert storage.read_json(path) == {}

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "open", fail, raising=False)
    monkeypatch.setattr(listing.os, "stat", fail)
    with pytest.raises(OSError, match="Input/output"):
        storage.read_json(path)
    with pytest.raises(OSError, match="Input/output"):
        storage.stat_if_exists(path)


@pytest.mark.parametrize("name", ["a.txt", "a[1].txt", "star*.txt", "what?.txt"])
def test_an_object_is_found_again_whatever_its_name(store, name):
    root, _ = store
    write_to(f"{root}/{name}")
    (found,) = storage.find_files([f"{root}/*"])
    assert found.path == f"{root}/{name}"
    assert storage.stat_file(found.path) == found
    assert storage.find_change(found) is None
    assert storage.stat_file(f"{root}/other") == InputFile.unreadable(f"{root}/other", "No such file")


@pytest.mark.parametrize(
    "path",
    [
        *("/a", "a", "gs://b/a", " s3://b", "file:///a", "C:/a", "C:\\a"),
        *("c+.-1://x", "1c://x", "a/b://c", "://a", "a:/b", "a\n://b", ""),
    ],
)
def test_paths_are_local_by_beam_s_own_rule(path):
    assert stores.scheme_of(path) == FileSystems.get_scheme(path)
    assert storage.is_local(path) == (FileSystems.get_scheme(path) is None)


def test_beam_is_imported_for_the_first_path_in_a_store():
    """With the options that were set before; local paths do without."""
    script = f"""
import sys
from layerbeam.transforms import storage
storage.set_options(["--s3_region_name=here"])
assert storage.find_files([{__file__!r}]) and storage.unsupported_reason("/a") is None
assert "apache_beam" not in sys.modules
assert "Beam has no file system for ftp://" in storage.unsupported_reason("ftp://a")
from apache_beam.io.filesystems import FileSystems
assert FileSystems._pipeline_options.get_all_options()["s3_region_name"] == "here"
storage.set_options([])
assert FileSystems._pipeline_options.get_all_options()["s3_region_name"] is None
"""
    python(script)


def test_a_store_that_cannot_be_listed(store):
    root, plan = store
    plan.shares = {"list": 1.0}
    with pytest.raises(storage.PatternError, match="list failed, as planned"):
        storage.find_files([f"{root}/*"])


@pytest.mark.parametrize("name", ["../kept", "a/../../kept", "{root}/kept", "link/kept", "a/link/kept"])
def test_nothing_outside_of_the_folder_is_deleted(tmp_path, name):
    (tmp_path / "out/a").mkdir(parents=True)
    (tmp_path / "kept").write_bytes(b"")
    for link in ("link", "a/link"):
        (tmp_path / "out" / link).symlink_to(tmp_path)
    with pytest.raises(OSError, match="leads out of"):
        storage.delete_files(str(tmp_path / "out"), [name.format(root=tmp_path)])
    with pytest.raises(OSError, match="leads out of"):
        storage.delete_folder(str(tmp_path / "out"), name.format(root=tmp_path))
    assert (tmp_path / "kept").exists()


def test_a_folder_that_is_a_link_itself_is_emptied(tmp_path):
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "disk/a/old").write_bytes(b"")
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    storage.delete_files(str(tmp_path / "out"), ["a/old", "missing"])
    assert list((tmp_path / "disk/a").iterdir()) == []
    storage.delete_folder(str(tmp_path / "out"), "a")
    assert list((tmp_path / "disk").iterdir()) == []
