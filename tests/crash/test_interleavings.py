"""Two attempts of the same blocks, interleaved at every operation, cannot hurt each other. See `attempts`."""

from __future__ import annotations

import collections
import dataclasses
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import Case, MemoryStore, Turns, case_on, mismatch

from layerbeam.transforms.flow.commits import Commit
from layerbeam.transforms.parts import write as write_parts
from layerbeam.transforms.slice.slices import FileToRead

BLOCKS = 3  # of the input, see `attempts.case_on`
STORES = ("local", "gs", "s3")
SEEDS = 70  # for each store and way; 630 interleavings in all


@dataclasses.dataclass
class Race:
    """What two attempts did. `errors`: of bundles and finishes that failed, and were tried again."""

    case: Case
    turns: Turns
    problems: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    to_read: list[FileToRead] = dataclasses.field(default_factory=list)
    reported: dict[str, Commit] = dataclasses.field(default_factory=dict)
    finishes: int = 0

    def look(self) -> None:
        problem = self.case.problem()
        if problem is not None and not self.problems:
            self.problems.append(f"_SUCCESS, but {problem} after {self.turns.trace[-1]}")

    def bundle(self, *, attempt: int, processor: float) -> None:
        """Try a bundle up to four times, as an engine does. The first report of a block counts."""
        for _ in range(4):
            try:
                for report in self.case.output(attempt=attempt, processor=processor).work(self.to_read):
                    assert isinstance(report, Commit), report
                    self.reported.setdefault(report.name, report)
            except OSError as error:
                self.errors.append(str(error))
            else:
                return

    def finish(self, *, attempt: int) -> None:
        for _ in range(4):
            try:
                self.case.output(attempt=attempt).finish()
            except OSError as error:
                self.errors.append(str(error))
            else:
                self.finishes += 1
                return


def zombies(race: Race, processors: tuple[float, float]) -> dict[str, Any]:
    """A bundle is given to a second worker while the first still lives. Who completes the blocks ends the run."""

    def worker(processor: float) -> None:
        done = len(race.reported) == BLOCKS
        race.bundle(attempt=1, processor=processor)
        if not done and len(race.reported) == BLOCKS and not race.finishes:
            race.finish(attempt=1)

    return {"first": lambda: worker(processors[0]), "second": lambda: worker(processors[1])}


def late(race: Race, processors: tuple[float, float]) -> dict[str, Any]:
    """An attempt that was given up continues, while the next one works and ends."""
    to_read = race.to_read

    def newer() -> None:
        race.reported.clear()
        try:
            race.to_read = race.case.output(attempt=2).begin()
        except OSError as error:
            race.errors.append(str(error))
            return
        mine: dict[str, Commit] = {}
        race.reported = mine
        race.bundle(attempt=2, processor=processors[1])
        if len(mine) == BLOCKS:
            race.finish(attempt=2)

    def given_up() -> None:
        for _ in range(2):
            try:
                late = race.case.output(attempt=1, processor=processors[0])
                collections.deque(late.work(to_read), maxlen=0)
            except OSError as error:
                race.errors.append(str(error))

    return {"given up": given_up, "newer": newer}


def two_ends(race: Race, processors: tuple[float, float]) -> dict[str, Any]:
    """The last step is given to a second worker while the first still lives; a worker of a block is late, too."""
    race.bundle(attempt=1, processor=processors[0])
    return {
        "end": lambda: race.finish(attempt=1),
        "other end": lambda: race.finish(attempt=1),
        "worker": lambda: race.bundle(attempt=1, processor=processors[1]),
    }


WAYS = (zombies, late, two_ends)


def race_of(way: Any, store: str, seed: int, folder: Path) -> tuple[Race, str | None]:
    """Run one interleaving, and then the next run of the folder. Returns what is wrong, if anything is."""
    with case_on(store, folder) as case:
        share = (0.0, 0.03, 0.15)[seed % 3]
        to_read = case.output(attempt=1).begin()
        race = Race(case, Turns(seed, share=share, faults=20, look=lambda: None), to_read=to_read)
        attempts = way(race, (0.25, 0.25 if seed % 2 else 0.75))
        race.turns._look = race.look
        case.turns = race.turns
        race.turns.run(attempts)
        case.turns = None
        if race.problems:
            return race, race.problems[0]
        if not case.output(attempt=3).is_finished and not case.output(attempt=3).run():
            return race, "the next run does not complete the folder"
        tree = case.tree()
        if "_SUCCESS" not in tree:
            return race, "not complete"
        parts = {name for name in tree if name.startswith(("a/", "b/"))}
        commits = [Commit.from_json(json.loads(line)) for line in tree["parts.jsonl"].splitlines()]
        listed = {path for commit in commits for path in paths_of(commit) if path[:2] in ("a/", "b/")}
        strays = None if parts == listed else f"{sorted(parts ^ listed)} differ between disk and index"
        return race, mismatch(tree) or strays


def paths_of(commit: Commit) -> set[str]:
    """The paths of all parts."""
    return {part.path for part in commit.parts.values()}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("way", WAYS)
def test_attempts_cannot_hurt_each_other(tmp_path, way, store, soak):
    errors, both = 0, 0
    for seed in range(10 * SEEDS if soak else SEEDS):
        race, problem = race_of(way, store, seed, tmp_path / str(seed))
        assert problem is None, f"seed {seed}: {problem}\n" + "\n".join(race.turns.trace)
        errors += len(race.errors)
        both += len({line.split(":")[0] for line in race.turns.trace}) > 1
    assert errors > SEEDS  # the case is not trivial
    assert both == (10 * SEEDS if soak else SEEDS)


def found(way: Any, folder: Path, seeds: int) -> Iterator[str]:
    """What is wrong after interleavings of one way."""
    results = (race_of(way, "gs", seed, folder / str(seed)) for seed in range(seeds))
    return (problem for _, problem in results if problem)


def test_harness_sees_parts_that_share_a_name(tmp_path, monkeypatch):
    """As before parts had a hash in their names."""
    monkeypatch.setattr(write_parts, "part_name", lambda block, sha256: f"{block}-{'0' * 16}")
    assert any("is listed with another hash" in problem for problem in found(zombies, tmp_path, SEEDS))


def test_harness_sees_deletion_after_a_failed_upload(tmp_path, monkeypatch):
    """As when a failed upload deleted what has its name."""
    real = MemoryStore.write

    def write(self: MemoryStore, path: str, file: Any, size: int) -> None:
        is_known = path in self.objects
        real(self, path, file, size)
        if is_known and self.is_raced and path.startswith(("gs://bucket/out/a/", "gs://bucket/out/b/")):
            self.objects.pop(path, None)
            raise OSError(errno.EIO, "write failed, as planned", path)

    monkeypatch.setattr(MemoryStore, "write", write)
    assert any("is listed and missing" in problem for problem in found(zombies, tmp_path, 4 * SEEDS))
