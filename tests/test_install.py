"""tools/install.py: uv with pip's settings, or pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

UV_THAT_PRINTS = """#!/bin/sh
echo "$@"
for name in UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS SSL_CERT_FILE; do printenv $name; done
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the program alone."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "install.py", tmp_path / "tools")
    return tmp_path


def install(clone: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/install.py", "env", "--no-deps", "six"]
    env = {"PATH": os.defpath, "HOME": str(clone), **variables}
    return subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=True)


def test_uv_gets_the_settings_of_pip(clone):
    executable(clone / ".venv-uv/bin/uv", UV_THAT_PRINTS)
    (clone / "pip.conf").write_text(
        "[global]\nindex-url = https://mirror/simple\ncert = /ours.pem\n"
        "[install]\nextra-index-url =\n  https://one/simple\n  https://two/simple\n"
    )
    done = install(clone, PIP_CONFIG_FILE="pip.conf", PIP_FIND_LINKS="/wheels /more", PIP_CERT="/other.pem")
    assert done.stdout.splitlines() == [
        "pip install --quiet --python env/bin/python --no-deps six",
        "https://mirror/simple",
        "https://one/simple https://two/simple",
        "/wheels,/more",
        "/other.pem",
    ]


def test_variables_of_uv_come_first(clone):
    executable(clone / ".venv-uv/bin/uv", UV_THAT_PRINTS)
    done = install(clone, PIP_INDEX_URL="https://of-pip/simple", UV_DEFAULT_INDEX="https://of-uv/simple")
    assert "https://of-uv/simple\n" in done.stdout
    assert "of-pip" not in done.stdout


def test_pip_installs_what_uv_cannot(clone):
    executable(clone / ".venv-uv/bin/uv", "#!/bin/sh\necho 'no such package' >&2\nexit 2\n")
    executable(clone / "env/bin/python", '#!/bin/sh\necho "$@" >&2\n')
    assert install(clone).stderr.splitlines() == [
        "no such package",
        "uv cannot install into env; pip tries",
        "-m ensurepip",
        "-m pip install --quiet --no-deps six",
    ]
