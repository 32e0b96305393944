"""tools/install.py: uv with pip's settings, or pip."""

from __future__ import annotations

import os
import re
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


def install(clone: Path, *arguments: str, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/install.py", "env", *(arguments or ("--no-deps", "six"))]
    env = {"PATH": os.defpath, "HOME": str(clone), **variables}
    done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


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


@pytest.mark.parametrize(
    ("wheels", "file"), [({}, "constraints-hashed.txt"), ({"PIP_NO_INDEX": "1"}, "constraints.txt")]
)
def test_uv_checks_hashes_unless_it_installs_from_a_folder(clone, wheels, file):
    executable(clone / ".venv-uv/bin/uv", UV_THAT_PRINTS)
    done = install(clone, "--constraint", "constraints.txt", "six", **wheels)
    assert done.stdout.splitlines()[0] == f"pip install --quiet --python env/bin/python --constraint {file} six"


def test_pip_does_not_install_a_file_of_another_hash(clone):
    executable(clone / ".venv-uv/bin/uv", "#!/bin/sh\necho '  cause: Hash mismatch for `six==1.17.0`' >&2\nexit 1\n")
    assert "pip tries" not in install(clone, status=1).stderr


def test_pip_is_renewed_for_groups(clone):
    executable(clone / ".venv-uv/bin/uv", "#!/bin/sh\nexit 2\n")
    executable(clone / "env/bin/python", '#!/bin/sh\necho "$@" >&2\n')
    assert install(clone, "--group", "dev").stderr.splitlines()[1:] == [
        "-m ensurepip",
        "-m pip install --quiet pip>=25.1",
        "-m pip install --quiet --group dev",
    ]


def test_pins_are_the_same_with_and_without_hashes():
    hashed, pins = ((ROOT / name).read_text() for name in ("constraints-hashed.txt", "constraints.txt"))
    blocks = re.findall(r"^(\S+==.*?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", hashed, re.MULTILINE)
    assert [pin for pin, _ in blocks] == [line for line in pins.splitlines() if not line.startswith("#")]
    assert len(blocks) == hashed.count("==") - hashed.count(" == ")


def test_pins_name_no_package_index():
    assert [name for name in ROOT.glob("constraints*.txt") if "://" in name.read_text()] == []
