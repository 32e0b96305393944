"""The output of `layerbeam completion` completes the command in the real shells."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from repository import python

# Asks each shell to complete `layerbeam run --pru`, `layerbeam veri`, a file name, and a runner.
ASK = {
    "bash": """
        source {script}
        ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_layerbeam; echo "${{COMPREPLY[@]}}"; }}
        ask layerbeam run --pru; ask layerbeam veri; ask layerbeam run corp; ask layerbeam run --runner Fli
    """,
    "fish": """
        source {script}
        complete -C 'layerbeam run --pru' | cut -f 1
        complete -C 'layerbeam veri' | cut -f 1
        complete -C 'layerbeam run corp' | cut -f 1
        complete -C 'layerbeam run --runner Fli' | cut -f 1
    """,
}


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def script(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / request.param
    heavy = "assert not {'tensorflow', 'apache_beam', 'pyarrow', 'pydantic'} & set(sys.modules)"
    code = f"import sys; from layerbeam.__main__ import main; status = main(); {heavy}; sys.exit(status)"
    path.write_text(python(code, "completion", request.param))
    return path


def test_shell_completes_command(script):
    shell = script.name
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (script.parent / "corpus.yaml").touch()
    if shell == "zsh":  # its completion needs a terminal: check only that it loads and registers the command
        ask = f'autoload -U compinit; compinit -u -D; eval "$(cat {script})"; echo $_comps[layerbeam]'
        expected = "_shtab_layerbeam"
    else:
        ask, expected = ASK[shell].format(script=script), "--prune-missing\nverify\ncorpus.yaml\nFlinkRunner"
    done = subprocess.run([shell, "-c", ask], cwd=script.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
    assert done.stderr == ""


def test_script_contains_every_command(script):
    text = script.read_text()
    for word in ("extract-features", "prune-missing", "completion", "init"):
        assert word in text
