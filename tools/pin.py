"""Writes the pinned versions: `make constraints`.

constraints-hashed.txt has them with the hashes of their files, for uv, which checks these; constraints.txt without, for
pip, which cannot check the hash of a clone; constraints-tf220.txt with the last TensorFlow for TPUs.

uv resolves all extras and groups of pyproject.toml for the systems in its [tool.uv], in the newest versions. With
`--keep` the versions of constraints.txt stay. Neither uv.lock nor pylock.toml is kept: they hold the address of each
file, and so bind every clone to one package index, where a hash is the same in every index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
X86 = "sys_platform == 'linux' and platform_machine == 'x86_64'"
UV = str(Path(sys.executable).with_name("uv"))
# tensorflow-tpu has no later version, and wheels for x86-64 only. libtpu after 0.0.14: see docs/worker_image.md.
FOR_TPU = ["tensorflow==2.20.*", f"tensorflow-tpu==2.20.*; {X86}", f"libtpu==0.0.14; {X86}"]


def main(*options: str) -> None:
    kept = []
    if "--keep" in options:
        kept = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hashed = lock(folder, kept=kept)
        with_tpu = lock(folder, added=FOR_TPU)
    write("constraints-hashed.txt", hashed)
    write("constraints.txt", without_hashes(hashed))
    write("constraints-tf220.txt", without_hashes(with_tpu))


def write(name: str, pins: str) -> None:
    (ROOT / name).write_text(f"# Written by `make constraints`: see tools/pin.py.\n{pins}")


def lock(folder: Path, *, kept: Sequence[str] = (), added: Sequence[str] = ()) -> str:
    """What uv exports of a lock with these constraints and dependencies. An earlier lock in the folder is kept to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    given = project["project"]
    tables: dict[str, dict[str, Any]] = {
        "project": {
            "name": "pinned",
            "version": "0",
            "requires-python": given["requires-python"],
            "dependencies": [*given["dependencies"], *added],
        },
        "project.optional-dependencies": given["optional-dependencies"],
        "dependency-groups": project["dependency-groups"],
        "tool.uv": project["tool"]["uv"] | {"constraint-dependencies": [*kept]},
    }
    lines = []
    for table, values in tables.items():  # strings and lists of strings are written alike in JSON and TOML
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    (folder / "pyproject.toml").write_text("\n".join(lines))
    uv(folder, "lock")
    everything = ("--all-extras", "--all-groups", "--no-emit-project", "--no-annotate", "--no-header")
    return simplified(uv(folder, "export", "--frozen", "--no-emit-index-url", *everything))


def uv(folder: Path, *arguments: str) -> str:
    command = [UV, "--quiet", "--project", str(folder), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def simplified(exported: str) -> str:
    """With markers only where a package has two versions: a constraint says nothing about what is not installed.

    >>> print(simplified("a==1 ; x == 'y'\\nb==1 ; python_full_version < '3.12' and ((s) or (t))\\nb==2 ; u"))
    a==1
    b==1 ; python_full_version < '3.12'
    b==2 ; u
    """
    pins = re.compile(r"^([\w.-]+)(\S+)( ; [^\\\n]*[^\\\n ])?", re.MULTILINE)
    number = Counter(match[1] for match in pins.finditer(exported))

    def simple(match: re.Match[str]) -> str:
        marker = re.sub(r" and \(.*\)$", "", match[3] or "") if number[match[1]] > 1 else ""
        return f"{match[1]}{match[2]}{marker}"

    return pins.sub(simple, exported)


def without_hashes(pins: str) -> str:
    return re.sub(r" \\$|^ .*\n", "", pins, flags=re.MULTILINE)


if __name__ == "__main__":
    main(*sys.argv[1:])
