"""A version of Beam without a private part that runs need."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from repository import DATA, ROOT

from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.run import beam_parts
from layerbeam.pipeline.run.engines import local_runner

# A Beam without its local runner.
WITHOUT = """
import sys
sys.modules["apache_beam.runners.portability.fn_api_runner.fn_runner"] = None
"""
LIBRARY = f"""
import apache_beam as beam
import layerbeam
layerbeam.EmbedText(encoder={str(DATA / "hf_uncased")!r}, views={{"v": {{"level": "text", "layers": [-1]}}}})
layerbeam.EmbedRows, layerbeam.ModelHandler, layerbeam.Embeddings, layerbeam.open_run
print(len(layerbeam.encode(["A river bank."], encoder={str(DATA / "hf_uncased")!r})))
"""
COMMAND = "from layerbeam.__main__ import main; sys.argv[1:] = ['run', 'c.yaml']; sys.exit(main())"


def python_without_runner(code: str, folder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_run_is_refused_by_name(workplace):
    workplace.configure()
    done = python_without_runner(COMMAND, workplace.folder)
    assert done.returncode == 2
    assert re.fullmatch(
        r"layerbeam: apache-beam [\d.]+ lacks a private part that runs need \(.*fn_runner.*\); this layerbeam is "
        r"tested with 2\.70 to 2\.\d+: pip install 'apache-beam>=2\.70,<2\.\d+'\. EmbedText, .* do not need it",
        done.stderr.splitlines()[-1],
    )


def test_the_library_does_not_need_it(tmp_path):
    done = python_without_runner(LIBRARY, tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_an_argument_that_beam_no_longer_takes(monkeypatch):
    monkeypatch.setattr(beam_parts, "EmbeddedPythonGrpcEnvironment", lambda: None)
    with pytest.raises(UsageError, match=r"lacks a private part .*data_buffer_time_limit_ms"):
        local_runner([])


def test_the_named_versions_are_those_of_the_pins():
    (pin,) = re.findall(r"^apache-beam==(\d+)\.(\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert tuple(map(int, pin)) == beam_parts.NEWEST
    bounds = re.findall(r"\"apache-beam(?:\[\w+\])?>=(\d+)\.(\d+),", (ROOT / "pyproject.toml").read_text())
    assert {tuple(map(int, bound)) for bound in bounds} == {beam_parts.OLDEST}
