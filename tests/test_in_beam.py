"""The programs of docs/in_beam.md print what the page says."""

from __future__ import annotations

import re

import pytest
from repository import ROOT

PAGE = (ROOT / "docs" / "in_beam.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PRINTED = {
    "EmbedText": re.findall(r"It prints, in any order:\n\n```text\n(.*?)```", PAGE, re.DOTALL)[0].splitlines(),
    "EmbedRows": ["5 Quiet. 384", "1 Loud. 384"],
    "ModelHandler": ["The river bank is steep. (8, 384)", "A bank holiday. (6, 384)"],
    "Embeddings": ["5 384", "1 384"],
}


@pytest.mark.parametrize("name", PRINTED)
def test_programs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(PROGRAMS[name], {"__name__": "page"})
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(PRINTED[name])


def test_the_yaml_is_that_of_the_example():
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown in (ROOT / "configs/beam_yaml/embed_csv.yaml").read_text()


def test_all_programs_are_run():
    assert set(PROGRAMS) == {*PRINTED, "Iceberg", "Milvus"}  # tests/engines and tests/beam_extras run these
