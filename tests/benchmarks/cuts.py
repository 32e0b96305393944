"""Where blocks of a large file end, what an edit costs, the time and memory of finding it out, and the same for files
of equal or short lines.

    python tests/benchmarks/cuts.py [--megabytes 100] [--edits 60]

Lines of random words, the default limits of a block, and no longest text. Tokens are estimated as they are when blocks
are cut: 2 and a quarter of the bytes of each line. One process reads; the time of a run is as many tokens at 20,000
tokens/s.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from layerbeam.transforms import storage
from layerbeam.transforms.flow.blocks import Slice
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.settings import LINES, BlockLimits
from layerbeam.transforms.slice.slices import FileToRead, cut_file, number_slices, scan_range

TOKENS_PER_SECOND = 20_000


def write_lines(path: Path, megabytes: int) -> list[bytes]:
    drawn = random.Random(0)
    words = ["".join(drawn.choices("etaoinshrdlu", k=drawn.randrange(1, 11))) for _ in range(20_000)]
    lines, size = list[bytes](), 0
    while size < megabytes << 20:
        lines.append((" ".join(drawn.choices(words, k=1 + int(drawn.expovariate(1 / 25)))) + "\n").encode())
        size += len(lines[-1])
    path.write_bytes(b"".join(lines))
    return lines


def slices_of(path: Path, limits: BlockLimits) -> list[Slice]:
    (file,) = storage.find_files([str(path)])
    scans = (scan_range(*one, limits) for one in cut_file(FileToRead(file), limits.text_bytes))
    return [slice_ for slice_ in number_slices(scans, limits) if isinstance(slice_, Slice)]


def hashes_of(path: Path, limits: BlockLimits) -> dict[str, int]:
    """{SHA-256: estimated tokens} of each block."""
    (file,) = storage.find_files([str(path)])
    found = INPUT_FORMATS["text"].cut(Slice(file, 0, file.size, 0), limits, LINES)
    return {own.sha256: 2 * own.num_lines + own.num_bytes // 4 for own, _ in found}


def print_speeds(folder: Path, megabytes: int) -> None:
    """The speed of finding the blocks, by content. Lines are candidates for the end of a block, or none is."""
    log = [b"2026-11-27 12:00:01 INFO service %d started\n" % number for number in range(1 << 16)]
    log.sort(key=zlib.crc32)
    contents = {
        "blank lines": [b"\n"],
        "lines of one byte": [b"%d\n" % digit for digit in range(10)],
        "numbers": [b"%d\n" % number for number in range(1000)],
        "equal lines, no candidates": log[-1:],
        "equal lines, all candidates": log[:1],
        "candidates, then none": log[:1] * 2000 + log[-1:] * 2000,
        "lines of 30 MB": [b"x" * (30 << 20) + b"\n"],
    }
    for name, lines in contents.items():
        path = folder / "content.txt"
        repeated = b"".join(lines)
        path.write_bytes(b"the bank\n" + repeated * max((megabytes << 20) // len(repeated), 1))
        start = time.process_time()
        slices = slices_of(path, BlockLimits())
        speed = path.stat().st_size / 1e6 / (time.process_time() - start)
        print(f"{name}: {speed:,.0f} MB/s on one core, {len(slices):,} blocks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--edits", type=int, default=60)
    given = parser.parse_args()
    limits = BlockLimits(max_seq_length=1 << 30)
    with tempfile.TemporaryDirectory() as folder:
        path, edited = Path(folder, "a.txt"), Path(folder, "edited.txt")
        lines = write_lines(path, given.megabytes)
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        slices = slices_of(path, limits)
        seconds = time.perf_counter() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        num_lines = np.diff([slice_.first_line for slice_ in slices])
        shares = (2 * num_lines + np.array([slice_.size for slice_ in slices[:-1]]) / 4) / limits.edit_tokens
        tokens = 2 * len(lines) + path.stat().st_size // 4
        share = 100 * seconds * TOKENS_PER_SECOND / tokens
        print(f"{path.stat().st_size >> 20} MB, {len(lines):,} lines, {len(slices):,} blocks")
        print(f"cut in {seconds:.1f} s, {share:.2f} % of a run's time; {grown} MB more memory")
        mean, low, high, most = shares.mean(), *np.percentile(shares, [5, 95]), shares.max()
        print(f"shares of a full block: mean {mean:.2f}, 5 % {low:.2f}, 95 % {high:.2f}, largest {most:.2f}")
        known, drawn, costs = hashes_of(path, limits), random.Random(1), list[int]()
        few = lines[: max(len(lines) // 20, 1)]
        for number in range(given.edits):
            place = drawn.randrange(len(few))
            kept = [few[: place + 1], few[:place], few[:place]][number % 3]  # inserted, changed, deleted
            new = [b"a new line\n"] * (number % 3 < 2)
            rest = few[place + 1 :]
            edited.write_bytes(b"".join([*kept, *new, *rest]))
            blocks = list(hashes_of(edited, limits).items())[:-1]  # the last one ends where the rest was left out
            costs.append(sum(tokens for sha256, tokens in blocks if sha256 not in known))
        mean, largest = np.mean(costs), max(costs)
        print(f"tokens of the blocks that an edit changes: mean {mean:,.0f}, largest {largest:,} ({given.edits} edits)")
        print_speeds(Path(folder), given.megabytes)


if __name__ == "__main__":
    main()
