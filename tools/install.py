"""Installs packages as `pip install` does, by uv, in a fraction of the time: python tools/install.py ENV ARGUMENT ...

ENV is a virtual environment, with or without pip. uv itself, in the version of constraints.txt, goes into .venv-uv. It
reads none of pip's settings, so those that say where packages come from are passed on. In place of constraints.txt uv
gets constraints-hashed.txt, and checks the hashes; not of a folder of wheels, some of which are built from source. If
uv fails, pip installs, but not in place of a file with another hash.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv-uv"
HASHED = {"constraints.txt": "constraints-hashed.txt"}

# pip's setting, uv's variable, and what stands between the values of this variable.
SETTINGS = [
    ("index-url", "UV_DEFAULT_INDEX", " "),
    ("extra-index-url", "UV_INDEX", " "),
    ("no-index", "UV_NO_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
    ("trusted-host", "UV_INSECURE_HOST", " "),
    ("cert", "SSL_CERT_FILE", " "),
    ("proxy", "ALL_PROXY", " "),
]


def main(environment: str, *arguments: str) -> int:
    python = os.path.join(environment, "bin", "python")
    pip = python_with_pip()
    uv = str(UV / "bin" / "uv")
    if not os.path.exists(uv):
        target = ["--target", str(UV)] if pip == sys.executable else []
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        as_root = os.environ | {"PIP_ROOT_USER_ACTION": "ignore"}  # a folder of its own is safe
        run(pip, "-m", "pip", "install", "--quiet", *target, *constraints, "uv", env=as_root)
    if os.path.exists(uv):
        env = variables(pip) | os.environ
        pinned = arguments if "UV_NO_INDEX" in env else [HASHED.get(argument, argument) for argument in arguments]
        command = [uv, "pip", "install", "--quiet", "--python", python, *pinned]
        done = run(*command, env=env, stderr=subprocess.PIPE)
        print(done.stderr, end="", file=sys.stderr)
        if done.returncode == 0 or "Hash mismatch" in done.stderr:
            return done.returncode
    print(f"uv cannot install into {environment}; pip tries", file=sys.stderr)
    run(python, "-m", "ensurepip", stdout=subprocess.DEVNULL)
    if "--group" in arguments:
        run(python, "-m", "pip", "install", "--quiet", "pip>=25.1")  # ensurepip's may be older
    return run(python, "-m", "pip", "install", "--quiet", *arguments).returncode


def run(*command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, check=False, **options)  # noqa: S603 - the Makefile's arguments


def python_with_pip() -> str:
    """This Python, or one in .venv-uv where this one has no pip, as in Debian's package python3."""
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    if not (UV / "bin" / "pip").exists():
        run(sys.executable, "-m", "venv", str(UV))
    return str(UV / "bin" / "python")


def variables(pip: str) -> dict[str, str]:
    """uv's variables for the settings in pip's files and variables."""
    listed = run(pip, "-m", "pip", "config", "list", stdout=subprocess.PIPE).stdout
    settings: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # a later one wins
        for line in listed.splitlines():
            if line.startswith(section):
                name, _, value = line.removeprefix(section).partition("=")
                settings[name] = ast.literal_eval(value)
    # As pip does: the system's certificates, and the newest version of all indexes.
    found = {"UV_SYSTEM_CERTS": "1", "UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, variable, between in SETTINGS:
        if name in settings:
            found[variable] = between.join(settings[name].split())
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
