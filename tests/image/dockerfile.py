"""A Dockerfile read, and carried out without Docker as far as that goes.

In place of an image of Python stands a virtual environment, in place of the file system's root a folder. Steps run with
the WORKDIR in that folder as their current one and the environment's commands first on PATH. Other images cannot be
had: their stages, and what is copied from them, are left out and said so.

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
    """One instruction of a stage, its line continued."""

    instruction: str
    value: str


@dataclasses.dataclass(frozen=True)
class Stage:
    """`base` as it stands after FROM; `name` after AS."""

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
        """hadolint, which `make lint` runs, is the judge of syntax."""
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
    """What Docker makes of ${NAME}, ${NAME:-else} and ${NAME:+instead}. KeyError for a name that was not declared.

    >>> expand("${A}/${B:-b}/${A:+c}", {"A": "a", "B": ""})
    'a/b/c'
    """

    def value(match: re.Match[str]) -> str:
        name, sign, word = match.groups()
        given = variables[name]
        return {None: given, "-": given or word, "+": given and word}[sign]

    return re.sub(r"\$\{(\w+)(?::([-+])([^}]*))?\}", value, text)


def copied(step: Step, variables: Mapping[str, str]) -> tuple[str | None, list[str], str]:
    """Of a COPY: the stage it copies from, the sources, the destination."""
    words = shlex.split(expand(step.value, variables))
    stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
    return stage, words[:-1], words[-1]


def is_sent(path: str, ignored: str) -> bool:
    """Whether a file of the repository reaches Docker past this .dockerignore: the last pattern that fits decides."""
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
    """As COPY does: of a folder its content, a file into a folder where `into`."""
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, destination, dirs_exist_ok=True)
        else:
            target = destination / source.name if into else destination
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@dataclasses.dataclass
class Build:
    """`folder`: where stages come to lie, each with a `python` and a `root`."""

    dockerfile: Dockerfile
    context: Path
    folder: Path
    given: Mapping[str, str]

    def __post_init__(self) -> None:
        self.globals = self.dockerfile.arguments | self.given

    def carry_out(self, stage: Stage, folder: Path) -> tuple[Path, dict[str, str], str]:
        """The stage's folder, the variables declared in it, the current folder in its root at the end."""
        base = expand(stage.base, self.globals)
        below = self.dockerfile.stage(base)
        if below is not None:
            folder, variables, workdir = self.carry_out(below, folder)
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
                print(f"  left out: {expand(stage.base, self.globals)} is not here", flush=True)
                return
            other = self.folder / origin
            if not other.exists():
                self.carry_out(stage, other)
            sources = [self._inside(other, "/", name) for name in names]
        into = destination.endswith("/") or len(sources) > 1
        copy(sources, self._inside(folder, workdir, destination), into=into)

    def _sent(self, name: str, ignored: str) -> Path:
        """What is sent to Docker of a file or folder in the context, which is refused where that is nothing."""
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
        # What tells pip where packages come from stays; nothing of the developer's Python does.
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
    _, variables, _ = build.carry_out(dockerfile.stages[-1], folder / "image")
    (folder / "variables.json").write_text(json.dumps(variables, indent=1))


if __name__ == "__main__":
    main()
