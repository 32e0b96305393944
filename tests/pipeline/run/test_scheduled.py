"""Scheduled runs: configs/nightly.yaml, crontab and systemd units of configs/schedule, and docs/scheduled_runs.md."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from repository import DATA, ROOT, systemd_unit
from workplace import Workplace

from layerbeam.pipeline.cli.parser import make_parser
from layerbeam.transforms import hardware
from layerbeam.transforms.write import block as write_block

SCHEDULE = ROOT / "configs" / "schedule"
GUIDE = (ROOT / "docs" / "scheduled_runs.md").read_text()
CRONTAB = (SCHEDULE / "layerbeam.cron").read_text()
HOME = "/srv/layerbeam"
SMALL = ("--set", f"encoder.handle={DATA / 'hf_uncased'}", "--set", "encoder.max_seq_length=100")


@pytest.fixture
def night(workplace: Workplace) -> Workplace:
    (workplace.folder / "configs").symlink_to(ROOT / "configs")
    return workplace


def run(night: Workplace, files: str, output: str, *more: str, status: int = 0) -> str:
    """Run nightly.yaml with the small encoder; returns standard output."""
    given = ("--input", files, "--output", output, *SMALL, *more)
    return night.driven("run", "configs/nightly.yaml", *given, status=status).err


def texts(night: Workplace, output: str) -> list[str]:
    return night.rows("sentences", output)["text"].to_pylist()


def test_growing_folder(night):
    night.write("inbox/a.txt", "the river\nits bank\n")
    run(night, "inbox/*.txt", "out/nightly")
    first = night.files("out/nightly")
    assert "nothing to do" in run(night, "inbox/*.txt", "out/nightly")
    assert night.files("out/nightly") == first

    night.write("inbox/b.txt", "the water\n")
    assert "1 text" in run(night, "inbox/*.txt", "out/nightly")
    parts = {name: digest for name, digest in first.items() if name.startswith("sentences/")}
    now = night.files("out/nightly")
    assert parts.items() < now.items()
    assert texts(night, "out/nightly") == ["the river", "its bank", "the water"]
    assert night.manifest("out/nightly")["counts"]["embedded"] == 3


def test_one_folder_per_day(night):
    days = {"2026-01-01": ["the river"], "2026-01-02": ["its bank", "the water"]}
    for day, lines in days.items():
        night.write(f"logs/{day}/a.txt", "\n".join(lines) + "\n")
    run(night, "logs/2026-01-01/*.txt", "out/nightly/dt=2026-01-01")
    first = night.files("out/nightly/dt=2026-01-01")
    run(night, "logs/2026-01-02/*.txt", "out/nightly/dt=2026-01-02")
    assert night.files("out/nightly/dt=2026-01-01") == first
    assert "no file matches" in run(night, "logs/2026-01-03/*.txt", "out/nightly/dt=2026-01-03", status=2)
    assert sorted(os.listdir("out/nightly")) == ["dt=2026-01-01", "dt=2026-01-02"]

    (snippet,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    names: dict = {}
    exec(snippet, names)
    rows = names["rows"].sort_by([("dt", "ascending"), ("line", "ascending")])
    assert rows["dt"].to_pylist() == ["2026-01-01", "2026-01-02", "2026-01-02"]
    assert rows["text"].to_pylist() == [line for lines in days.values() for line in lines]
    assert names["january"] == 3
    whole = ds.dataset(names["files"], partitioning="hive").to_table(filter=ds.field("dt") == "2026-01-02")
    assert whole["text"].to_pylist() == days["2026-01-02"]


def test_guide_lists_statuses_of_command(capsys):
    with pytest.raises(SystemExit):
        make_parser("test").parse_args(["run", "--help"])
    printed = " ".join(capsys.readouterr().out.split()).partition("Exit status:")[2]
    rows = re.findall(r"^\| ([\d, ]+) \|", GUIDE, re.MULTILINE)
    assert re.findall(r"\d+", printed) == re.findall(r"\d+", ",".join(rows)) == ["0", "1", "2", "3", "4", "130", "143"]


def commands() -> list[str]:
    """The crontab's commands as cron passes them to the shell."""
    found = []
    for line in CRONTAB.splitlines():
        if line and not line.startswith("#") and not re.match(r"\w+=", line):
            *fields, command = line.split(maxsplit=5)
            ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
            for field, (low, high) in zip(fields, ranges, strict=True):
                assert field == "*" or low <= int(field) <= high
            assert "%" not in command.replace(r"\%", "")  # the rest would be the command's standard input
            found.append(command.replace(r"\%", "%"))
    assert len(found) == 2
    return found


def start(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """As cron does, except for the folder."""
    settings = dict(line.split("=", 1) for line in CRONTAB.splitlines() if re.match(r"\w+=", line))
    command = command.replace(HOME, str(folder))
    shell = [settings["SHELL"], "-c", command]
    return subprocess.run(shell, cwd="/", env=settings, capture_output=True, text=True, check=False)


def install(folder: Path, script: str) -> None:
    """A `layerbeam` in this folder."""
    path = folder / ".venv" / "bin" / "layerbeam"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_crontab_lines_work(night):
    small = shlex.join(SMALL)
    run_here = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m layerbeam"
    install(night.folder, f'{run_here} "$@" {small}')
    yesterday = subprocess.run(["date", "-u", "-d", "yesterday", "+%F"], capture_output=True, text=True, check=True)
    day = yesterday.stdout.strip()
    night.write("inbox/a.txt", "the river\n")
    night.write(f"logs/{day}/a.txt", "the water\n")
    for command in commands():
        done = start(night.folder, command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert texts(night, "out/nightly") == ["the river"]
    assert texts(night, f"out/nightly/dt={day}") == ["the water"]
    assert (night.folder / "nightly.log").read_text().count(": complete\n") == 2


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
@pytest.mark.parametrize(("status", "mail"), [(0, ""), (1, "printed\n"), (2, "printed\n"), (3, "printed\n"), (4, "")])
def test_cron_mails_failures_only(night, status, mail):
    install(night.folder, f"echo printed; exit {status}")
    for command in commands():
        done = start(night.folder, f"rm -f {HOME}/nightly.log; {command}")
        assert (done.stdout, done.stderr) == (mail, "")


def test_service_matches_command():
    service = systemd_unit(SCHEDULE / "layerbeam.service")["Service"]
    assert service["Type"] == "oneshot"
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == f"{service['WorkingDirectory']}/.venv/bin/layerbeam"
    options, unknown = make_parser("test").parse_known_args(arguments)
    assert (options.command, options.config, unknown) == ("run", "configs/nightly.yaml", [])
    assert (options.input, options.output) == (["inbox/*.txt"], "out/nightly")
    assert service["SuccessExitStatus"].split() == ["4", "143"]
    assert service["RestartPreventExitStatus"].split() == ["2", "3"]
    assert systemd_unit(SCHEDULE / "layerbeam.service")["Unit"]["OnFailure"] == "layerbeam-failed.service"
    assert systemd_unit(SCHEDULE / "layerbeam.timer")["Install"]["WantedBy"] == "timers.target"


def test_alternative_command_of_service(night):
    (line,) = re.findall(r"^#ExecStart=(.*)$", (SCHEDULE / "layerbeam.service").read_text(), re.MULTILINE)
    assert not re.search(r"(?<!%)%(?!%)", line.replace("%%", ""))
    install(night.folder, 'printf "%s\\n" "$@"')
    day = subprocess.run(["date", "-u", "-d", "yesterday", "+%F"], capture_output=True, text=True, check=True)
    words = shlex.split(line.replace("%%", "%").replace("$$", "$"))
    done = subprocess.run(words, cwd=night.folder, capture_output=True, text=True, check=True)
    given = ["--input", f"logs/{day.stdout.strip()}/*.txt", "--output", f"out/nightly/dt={day.stdout.strip()}"]
    assert done.stdout.splitlines() == ["run", "configs/nightly.yaml", *given]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_units(tmp_path):
    paths = []
    for path in sorted(SCHEDULE.glob("layerbeam*.*")):
        if path.suffix in (".service", ".timer"):
            text = path.read_text().replace(f"{HOME}/.venv/bin/layerbeam", "/bin/true").replace(HOME, str(tmp_path))
            paths.append(tmp_path / path.name)
            paths[-1].write_text(text)
    assert len(paths) == 3
    # The trailing colon adds systemd's own units.
    where = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(["systemd-analyze", "verify", *paths], env=where, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_which_program_and_processor_encoded_what(workplace, monkeypatch):
    workplace.finished(
        {"a.txt": "the bank\nthe river\n", "b.txt": "a bank\n"}, views={"t": {"level": "text", "layers": [-1]}}
    )
    made_with = hardware.made_with()
    assert re.fullmatch(r"tensorflow 2\.\d+\.\d+ on \w+", made_with)
    assert workplace.manifest()["made_with"] == {made_with: 3}
    monkeypatch.setattr(write_block, "made_with", lambda: "tensorflow 2.99.0 on another")
    workplace.write("corpus/c.txt", "the bank\n")
    os.rename("corpus/b.txt", "corpus/d.txt")  # copied
    workplace.drive()
    assert workplace.manifest()["made_with"] == {made_with: 3, "tensorflow 2.99.0 on another": 1}
    shown = f"3 texts by {made_with}, 1 text by tensorflow 2.99.0 on another: between these, equal texts differ by"
    assert shown in workplace.show().out
