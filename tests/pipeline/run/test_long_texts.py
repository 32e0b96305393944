"""Texts at the limit of length and beyond it, and texts that take much memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from architectures import write_encoder
from weights import in_float64, vectors

from layerbeam.pipeline.plan import plan
from layerbeam.pipeline.run import run
from layerbeam.transforms.encoders import load_weights, open_encoder
from layerbeam.transforms.reference import forward

TEXTS = {"text": {"level": "text", "pooling": "mean", "layers": [-1]}}
GIGABYTE = 1 << 30


@pytest.mark.parametrize(
    ("long_text", "tokens", "rejected"),
    [("truncate", [12, 12, 12], []), ("window", [12, 13, 502], []), ("reject", [12], [1, 2])],
)
def test_texts_at_the_limit_one_over_and_far_over(workplace, long_text, tokens, rejected):
    lines = "\n".join("river " * count for count in (10, 11, 500))
    encoder = {"max_seq_length": 12, "long_text": long_text, "window_overlap": 2}
    workplace.prepare(lines, encoder=encoder, input={"max_reject_rate": 1})
    workplace.drive()
    rows = workplace.rows()
    line_of = np.array(rows["line"].to_pylist())
    assert np.bincount(line_of).tolist() == tokens
    assert [reject["line"] for reject in workplace.rejects()] == rejected
    at_limit = vectors(rows, "layer_3")[line_of == 0]
    assert len(np.unique(at_limit, axis=0)) == 12
    if long_text == "truncate":  # all three are the same ten tokens and special tokens then
        np.testing.assert_array_equal(vectors(rows, "layer_3"), np.tile(at_limit, (3, 1)))


def long_encoder(workplace, positions: int) -> Path:
    return write_encoder(workplace.folder / "encoder", "bert", positions=positions)


def test_a_run_that_cannot_fit_is_refused_with_the_sizes(workplace, monkeypatch):
    folder = long_encoder(workplace, 2100)
    workplace.prepare("a bank\n" + "river " * 2000, encoder={"handle": str(folder)}, views=TEXTS)
    for module in (run, plan):
        monkeypatch.setattr(module, "memory_left", lambda: 730 << 20)
    message = "encoder.max_seq_length: the longest text, 2,002 tokens, takes up to "
    planned = workplace.plan(status=2)
    assert f"memory    {message.removeprefix('encoder.max_seq_length: ')}" in planned.out
    assert f"problem   {message}" in planned.out
    refused = workplace.drive(status=2)
    assert message in refused.err
    assert "lower max_seq_length (with long_text: window" in refused.err
    assert not (workplace.folder / "out" / "_commits").exists()
    workplace.drive("--force")
    assert workplace.rows("text").num_rows == 2


def test_few_threads_for_long_texts_are_announced(workplace, monkeypatch):
    folder = long_encoder(workplace, 2100)
    workplace.prepare("a bank\n" + "river " * 2000, encoder={"handle": str(folder)}, views=TEXTS)
    monkeypatch.setattr(run, "memory_left", lambda: 800 << 20)
    assert ": 2 of 4 threads encode such texts at once" in workplace.run("--workers", "4").err
    assert workplace.rows("text").num_rows == 2


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[Path]:
    """A cgroup whose processes have so much memory together."""
    own = dict(line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    is_old = "memory" in own
    top = Path("/sys/fs/cgroup/memory" if is_old else "/sys/fs/cgroup", own["memory" if is_old else ""].lstrip("/"))
    group = top / f"layerbeam-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        try:
            (group / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"memory cannot be limited: {error}")
        yield group
    finally:
        group.rmdir()


@pytest.mark.slow
def test_a_line_of_16_000_words_in_4_gigabytes(workplace):
    """Whole, its attention would take 3 GB in each of several tensors."""
    folder = long_encoder(workplace, 16_384)
    words = ["river", "bank", "the", "in", "a"]
    random = np.random.default_rng(0)
    long_line = " ".join(random.choice(words, 16_000))
    workplace.prepare(
        {"a.txt": "\n".join(["a river", long_line, *(["the bank"] * 50)]), "b.txt": long_line.replace("a ", "the ")},
        encoder={"handle": str(folder)},
        views=TEXTS,
    )
    with memory_limit(4 * GIGABYTE) as group:

        def join() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        for arguments in (("run", "c.yaml", "--workers", "2"), ("verify", "out", "--sample", "60")):
            done = subprocess.run(
                workplace.command(*arguments), cwd=workplace.folder, capture_output=True, text=True, preexec_fn=join
            )
            assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    rows = workplace.rows("text")
    assert rows.num_rows == 53
    source = open_encoder(str(folder))
    ids = [source.vocabulary.index(word) for word in ("[CLS]", *long_line.split(), "[SEP]")]
    (*_, last), _ = forward(source.architecture, in_float64(load_weights(source)), ids, [0] * len(ids))
    found = vectors(rows, "layer_3")[rows["line"].to_pylist().index(1)]
    # The rounding of a sum of 16,000 weights and of three blocks, in float32.
    np.testing.assert_allclose(found, last[1:-1].mean(axis=0), rtol=0, atol=1e-4)
