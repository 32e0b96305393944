"""Parses a Dockerfile and runs it without Docker, as far as possible.

A virtual environment stands in for an image of Python, a folder for the root of the file system. Steps run with WORKDIR
as the current folder and the environment's commands first on PATH. Other images are not available: their stages, and
copies from them, are skipped with a message.

    python tests/image/dockerfile.py FOLDER [ARG=VALUE ...]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Step:
    """One instruction of a stage, with its continuation lines joined."""

    instruction: str
    value: str


@dataclasses.dataclass(frozen=True)
class Stage:
    """`base`: the image after FROM; `name`: after AS."""

    base: str
    name: str | None
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True)
class Dockerfile:
    """`arguments`: those before the first FROM."""

    arguments: dict[str, str]
    stages: tuple[Stage, ...]

    @classmethod
    def read(cls, text: str) -> Dockerfile:
        """Parse the text. Its syntax is checked by hadolint (`make lint`)."""
        lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        steps = [Step(*line.split(None, 1)) for line in lines.replace("\\\n", "").splitlines() if line.strip()]
        starts = [number for number, step in enumerate(steps) if step.instruction == "FROM"]
        stages = []
        for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
            base, name = re.fullmatch(r"(\S+)(?: AS (\S+))?", steps[start].value).groups()
            stages.append(Stage(base, name, tuple(steps[start + 1 : end])))
        return cls(dict(step.value.split("=", 1) for step in steps[: starts[0]]), tuple(stages))

    def stage(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.name == name), None)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand ${NAME}, ${NAME:-default} and ${NAME:+alternative} as Docker does. Raises KeyError for an undeclared name.

    >>> expand("${A}/${B:-b}/${A:+c}", {"A": "a", "B": ""})
    'a/b/c'
    """

    def value(match: re.Match[str]) -> str:
        name, sign, word = match.groups()
        given = variables[name]
        return {None: given, "-": given or word, "+": given and word}[sign]

    return re.sub(r"\$\{(\w+)(?::([-+])([^}]*))?\}", value, text)


def copied(step: Step, variables: Mapping[str, str]) -> tuple[str | None, list[str], str]:
    """The parts of a COPY: the stage that it copies from, the sources, the destination."""
    words = shlex.split(expand(step.value, variables))
    stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
    return stage, words[:-1], words[-1]


def is_sent(path: str, ignored: str) -> bool:
    """Whether a file of the repository is in Docker's build context by this .dockerignore: the last match decides."""
    parts = Path(path).parts
    names = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    sent = True
    for line in ignored.splitlines():
        pattern = line.strip().removeprefix("!")
        if not pattern or pattern.startswith("#"):
            continue
        regex = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if any(re.fullmatch(regex, name) for name in names):
            sent = line.strip().startswith("!")
    return sent


def copy(sources: list[Path], destination: Path, *, into: bool) -> None:
    """Copy like COPY: the content of a folder; a file into a folder if `into`."""
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, destination, dirs_exist_ok=True)
        else:
            target = destination / source.name if into else destination
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@dataclasses.dataclass
class Build:
    """`folder`: where stages are built, each with a `python` and a `root`."""

    dockerfile: Dockerfile
    context: Path
    folder: Path
    given: Mapping[str, str]

    def __post_init__(self) -> None:
        self.globals = self.dockerfile.arguments | self.given

    def run_stage(self, stage: Stage, folder: Path) -> tuple[Path, dict[str, str], str]:
        """Run a stage; returns its folder, its declared variables and the final WORKDIR below its root."""
        base = expand(stage.base, self.globals)
        below = self.dockerfile.stage(base)
        if below is not None:
            folder, variables, workdir = self.run_stage(below, folder)
        else:
            assert base == f"python:{sys.version_info.major}.{sys.version_info.minor}-slim", base
            venv.create(folder / "python", clear=True, with_pip=True)
            (folder / "root").mkdir(parents=True)
            variables, workdir = {}, "/"
        for step in stage.steps:
            print(f"{stage.name or 'image'}: {step.instruction} {step.value}", flush=True)
            if step.instruction == "ARG":
                name, _, default = step.value.partition("=")
                variables[name] = self.globals.get(name, default)
            elif step.instruction == "ENV":
                name, _, value = step.value.partition("=")
                variables[name] = expand(value, variables)
            elif step.instruction == "WORKDIR":
                workdir = expand(step.value, variables)
                self._inside(folder, "/", workdir).mkdir(parents=True, exist_ok=True)
            elif step.instruction == "COPY":
                self._copy(step, folder, variables, workdir)
            elif step.instruction == "RUN":
                self._run(step.value, folder, variables, workdir)
        return folder, variables, workdir

    def _copy(self, step: Step, folder: Path, variables: Mapping[str, str], workdir: str) -> None:
        origin, names, destination = copied(step, variables)
        if origin is None:
            ignored = (self.context / ".dockerignore").read_text()
            sources = [self._sent(name, ignored) for name in names]
        else:
            stage = self.dockerfile.stage(origin)
            if not expand(stage.base, self.globals).startswith("python:"):
                print(f"  skipped: {expand(stage.base, self.globals)} is not available", flush=True)
                return
            other = self.folder / origin
            if not other.exists():
                self.run_stage(stage, other)
            sources = [self._inside(other, "/", name) for name in names]
        into = destination.endswith("/") or len(sources) > 1
        copy(sources, self._inside(folder, workdir, destination), into=into)

    def _sent(self, name: str, ignored: str) -> Path:
        """The part of a file or folder that is in the build context. Raises an error if that is nothing."""
        path = self.context / name
        if path.is_file():
            assert is_sent(name, ignored), f"{name}: .dockerignore excludes it"
            return path
        files = [file.relative_to(self.context) for file in path.rglob("*") if file.is_file()]
        sent = [file for file in files if is_sent(str(file), ignored)]
        assert sent, f"{name}: is not there, or .dockerignore excludes it"
        for file in sent:
            copy([self.context / file], self.folder / "context" / file, into=False)
        return self.folder / "context" / name

    def _run(self, command: str, folder: Path, variables: Mapping[str, str], workdir: str) -> None:
        # pip keeps its settings for package sources; the developer's Python settings are removed.
        machine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = f"{folder / 'python' / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        where = self._inside(folder, "/", workdir)
        subprocess.run(["sh", "-c", command], cwd=where, env=machine | dict(variables) | {"PATH": path}, check=True)

    @staticmethod
    def _inside(folder: Path, workdir: str, path: str) -> Path:
        return folder / "root" / os.path.normpath(os.path.join(workdir, path)).lstrip("/")


def main() -> None:
    folder, given = Path(sys.argv[1]).resolve(), {"PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}"}
    given |= dict(item.split("=", 1) for item in sys.argv[2:])
    shutil.rmtree(folder, ignore_errors=True)
    dockerfile = Dockerfile.read((ROOT / "Dockerfile").read_text())
    build = Build(dockerfile, ROOT, folder, given)
    _, variables, _ = build.run_stage(dockerfile.stages[-1], folder / "image")
    (folder / "variables.json").write_text(json.dumps(variables, indent=1))


if __name__ == "__main__":
    main()
