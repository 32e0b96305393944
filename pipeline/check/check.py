"""`layerbeam check OUT`: whether an encoder, here or behind another engine, makes the vectors of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from layerbeam.pipeline.check.diagnosis import (
    QUERY_PROMPT,
    Array,
    Candidate,
    Difference,
    Match,
    best_match,
    find_differences,
    nearest,
)
from layerbeam.pipeline.check.engines import ask_server, call_function
from layerbeam.pipeline.console import count_noun, plain_console
from layerbeam.pipeline.dataset.reader import Run, open_run
from layerbeam.pipeline.dataset.view import UnknownNameError
from layerbeam.pipeline.errors import UsageError
from layerbeam.transforms.views.columns import unit

# The kind of difference that changes no cosine.
_HARMLESS = "scale"
_NAMED = 4  # columns in a line


@dataclasses.dataclass(frozen=True)
class CheckedColumn:
    """A vector column of a view: how the vectors that were made now differ from the run's.

    `largest`, `cosine`: see `Match`, of the vectors as the run has them.
    """

    view: str
    column: str
    largest: float
    cosine: float
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        return {difference.kind for difference in self.differences} <= {_HARMLESS}

    def to_json(self) -> dict[str, Any]:
        differences = [{"kind": kind, "text": text} for kind, text in self.differences]
        return {**vars(self), "differences": differences, "equal": self.is_equal}


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """`made_by`: what made the vectors now. `notes`: what limits the diagnosis."""

    path: str
    made_by: str
    texts: int
    columns: list[CheckedColumn]
    notes: list[str]

    @property
    def is_equal(self) -> bool:
        return all(column.is_equal for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "columns": [column.to_json() for column in self.columns], "equal": self.is_equal}


def check(
    output_path: str,
    *,
    view: str | None,
    layer: str | None,
    python: str | None,
    url: str | None,
    model: str | None,
    as_query: bool,
    trust: bool,
) -> CheckResult:
    """The canary texts of a run, encoded now, against the vectors in its manifest. `trust`: as for `Run.job`.

    UsageError if there are none, or the encoder or engine gives no vectors.
    """
    run = open_run(output_path, allow_incomplete=True)
    found = run.canaries()
    if found is None:
        raise UsageError(
            f"{output_path}: its {_lacks(run)}; `layerbeam verify {output_path}` compares rows with the encoder here"
        )
    texts, stored = found
    target = _target(run, stored, view, layer, alone=bool(python or url))
    if python is None and url is None:
        return _check_encoder(run, texts, stored, target, trust)
    ((name, column),) = target
    encoder = run.manifest["settings"]["encoder"]
    made = call_function(python, texts) if python else ask_server(url or "", model or encoder["handle"], texts)
    expected, notes = stored[name, column], list[str]()
    match = best_match(made, [Candidate(expected), *_reordered(made, expected)])
    differences = find_differences(made, match, encoder["compute_dtype"])
    has_own = as_query and encoder["query_prompt"] not in (None, encoder["prompt"] or "")
    if has_own or not {difference.kind for difference in differences} <= {_HARMLESS, "order", "truncated"}:
        match = _diagnose(run, (name, column), texts, made, expected, notes, trust=trust)
        differences = find_differences(made, match, encoder["compute_dtype"])
    if has_own:
        differences = _as_queries(differences)
    checked = _checked(name, column, differences, match, Match.of(made, Candidate(expected)))
    return CheckResult(output_path, python or url or "", len(texts), [checked], notes)


def _lacks(run: Run) -> str:
    has_view = any(view.level == "text" and not view.has_vector_lists for view in map(run.view, run))
    if not has_view:
        return "views have no vector for each text (level: text), and only such vectors are compared"
    return (
        "manifest has no canary texts: an earlier layerbeam wrote it, or no text was encoded; the next run into the "
        "folder that encodes something adds them"
    )


def _target(
    run: Run, stored: dict[tuple[str, str], Array], view: str | None, layer: str | None, *, alone: bool
) -> list[tuple[str, str]]:
    """The columns to compare. UsageError for a name that the run does not have, and if one alone is not named."""
    known = list(dict.fromkeys(name for name, _ in stored))
    if view is not None and view not in known:
        raise UsageError(f"--view {view}: has no canary texts; views that have them: {', '.join(known)}")
    names = known if view is None else [view]
    if alone and len(names) > 1:
        raise UsageError(f"--view is missing: {run.path} has several views of texts: {', '.join(names)}")
    if layer is None and not alone:
        return [key for key in stored if key[0] in names]
    try:
        of_name = int(layer) if layer is not None and layer.isdecimal() else layer
        return [(name, run.view(name).vector_column(of_name)) for name in names]
    except (ValueError, UnknownNameError) as error:
        raise UsageError(f"--layer: {error}") from error


def _check_encoder(
    run: Run, texts: list[str], stored: dict[tuple[str, str], Array], target: list[tuple[str, str]], trust: bool
) -> CheckResult:
    """The vectors that the encoder of the run makes here, in all columns."""
    from layerbeam.pipeline.dataset.canaries import canary_views, encode_canaries  # they import Beam and TensorFlow
    from layerbeam.transforms.encode.forward import Forward

    job = run.job(trust=trust, changed=True)
    job = dataclasses.replace(job, views=canary_views(job.views))
    job.load_tensorflow(1)
    encoded, vectors = encode_canaries(job, Forward(job.load_encoder()), texts)
    if len(encoded) < len(texts):
        raise UsageError(
            f"{run.path}: the encoder here has no vectors for {count_noun(len(texts) - len(encoded), 'text')}"
        )
    columns = []
    for name, column in target:
        made, expected = vectors[name][column], stored[name, column]
        match = Match.of(made, Candidate(expected))
        differences = find_differences(made, match, job.config.encoder.compute_dtype)
        columns.append(_checked(name, column, differences, match, match))
    changed = job.run_identity["fingerprint"] != run.manifest["fingerprint"]
    notes = ["the encoder's files or the versions have changed since the run; `layerbeam verify` says what"]
    return CheckResult(run.path, f"{job.encoder.handle}, here", len(texts), columns, notes if changed else [])


def _diagnose(
    run: Run, key: tuple[str, str], texts: list[str], made: Array, expected: Array, notes: list[str], *, trust: bool
) -> Match:
    """The best match among the run's vectors and all mistakes that its encoder can make here. `notes` is added to."""
    from layerbeam.pipeline.check.variants import encode_variants  # it imports Beam and TensorFlow
    from layerbeam.pipeline.dataset.canaries import canary_views
    from layerbeam.transforms.encoders import EncoderError

    best = best_match(made, [Candidate(expected), *_reordered(made, expected)])
    try:
        job = run.job(trust=trust, changed=True)
        (view,) = (view for view in canary_views(job.views) if view.name == key[0])
        for candidates in encode_variants(job, view, key[1], texts):
            own = candidates[0]
            if not own.differences and find_differences(own.vectors, Match.of(own.vectors, Candidate(expected)), ""):
                notes.append(f"the encoder here does not make the run's vectors either: `layerbeam check {run.path}`")
            best = nearest([best, best_match(made, candidates)])
            if best.is_equal:
                break
    except (UsageError, EncoderError) as error:
        notes.append(f"compared with the manifest only; to say more this needs the encoder of the run: {error}")
    return best


def _as_queries(differences: list[Difference]) -> list[Difference]:
    """The differences from vectors of queries, which have a prompt of their own."""
    kinds = [difference.kind for difference in differences]
    if QUERY_PROMPT in kinds:
        return [difference for difference in differences if difference.kind != QUERY_PROMPT]
    if "prompt" in kinds or "model" in kinds:
        return differences
    return [Difference("prompt", "the prompt of documents instead of that of queries"), *differences]


def _reordered(made: Array, expected: Array) -> Iterator[Candidate]:
    """The expected vectors in the order in which they are found, if that is another one."""
    width = min(made.shape[1], expected.shape[1])
    order = np.argmax(unit(made[:, :width]) @ unit(expected[:, :width]).T, axis=1).tolist()
    if sorted(order) == list(range(len(order))) != order:
        yield Candidate(expected[order], (Difference("order", "the vectors come in another order than the texts"),))


def _checked(name: str, column: str, differences: list[Difference], best: Match, with_run: Match) -> CheckedColumn:
    differ = {difference.kind for difference in differences} - {_HARMLESS}
    shown = with_run if differ else best
    return CheckedColumn(name, column, shown.largest, shown.cosine, tuple(differences))


def print_check(result: CheckResult) -> None:
    """Print what is the matter in one line; a line for each way in which columns differ."""
    console = plain_console(soft_wrap=True)
    groups: dict[tuple[Difference, ...], list[CheckedColumn]] = {}
    for column in result.columns:
        groups.setdefault(column.differences, []).append(column)
    texts = f"{count_noun(result.texts, 'text')} by {result.made_by}"
    for differences, columns in groups.items():
        names = ", ".join(f"{column.view} {column.column}" for column in columns[:_NAMED])
        names += f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
        what = "; ".join(difference.text for difference in differences)
        verdict = f"DIFFERS: {what}" if not columns[0].is_equal else f"equal up to scale: {what}" if what else "equal"
        largest, cosine = max(column.largest for column in columns), min(column.cosine for column in columns)
        near = f"largest difference {largest:.1e} of a vector's length, smallest cosine {cosine:.6f}"
        console.print(f"{result.path}: {names}: {verdict} ({texts}: {near})")
    for note in result.notes:
        console.print(f"note      {note}")
