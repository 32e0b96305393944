"""`--quiet`: nothing but warnings and errors; the exit status tells the rest."""

from __future__ import annotations

import json

from repository import DATA


def test_a_run_in_a_process_of_its_own_prints_nothing(workplace):
    workplace.prepare("A river bank.\n\nA bank holiday.\n")
    done = workplace.start("run", "c.yaml", "--quiet")
    assert (done.status, done.out, done.err) == (0, "", "")
    assert (workplace.folder / "out" / "_SUCCESS").exists()


def test_all_commands_that_have_it(workplace):
    workplace.finished("A river bank.\n\nA bank holiday.\n")
    again = workplace.drive("-q")
    assert (again.out, again.err) == ("", "")
    as_json = workplace.drive("--quiet", "--json")
    assert as_json.err == ""
    assert json.loads(as_json.out)["counts"]["embedded"] == 2
    for checks in ([], ["--checksums"]):
        verified = workplace.verify("--quiet", *checks)
        assert (verified.out, verified.err) == ("", "")
    reported = workplace._call("report", "out", "--quiet", status=0)
    assert (reported.out, reported.err) == ("", "")
    reported = workplace._call("report", "out", "--quiet", "--word", "loan", status=1)
    assert reported.out == ""
    assert "loan" in reported.err
    extracted = workplace._call(
        "extract-features", "corpus", "features", "-1", str(DATA / "hf_uncased"), "32", "8", "--quiet", status=0
    )
    assert (extracted.out, extracted.err) == ("", "")
    assert (workplace.folder / "features" / "a.jsonl").exists()
    part = next((workplace.folder / "out" / "tokens").iterdir())
    part.write_bytes(part.read_bytes()[:-1])
    assert "FAIL" in workplace.verify("--quiet", "--checksums", status=1).out


def test_warnings_and_errors_are_printed(workplace):
    wrapped = "\n".join(["the river runs through the town and down to the sea, and all of the banks are"] * 40)
    workplace.prepare({"a.txt": wrapped, "b.txt": b"\xff\n" * 9}, input={"max_reject_rate": 0.01})
    done = workplace.drive("--quiet", status=3)
    assert done.out == ""
    first, *_, last = done.err.splitlines()
    assert first.startswith("input: ")
    assert last.startswith("layerbeam: out: ")
    assert "max_reject_rate" in last
    wrong = workplace.drive("--quiet", "-v", status=2)
    assert wrong.err == (
        "layerbeam: argument -v/--verbose: not allowed with argument -q/--quiet (see `layerbeam run --help`)\n"
    )
