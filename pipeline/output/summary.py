"""The content of an output folder in numbers: what `show` and the end of `run` print, and `report` starts from."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerbeam.pipeline.cli.console import count_noun
from layerbeam.pipeline.dataset.view import View
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.commits import load_commits
from layerbeam.pipeline.output.manifest import count_rows, load_manifest, shape_text
from layerbeam.pipeline.output.run_log import RunRecord, load_runs
from layerbeam.pipeline.run.speed import PERFORMANCE
from layerbeam.transforms import metrics, storage
from layerbeam.transforms.commits import Commit, Part
from layerbeam.transforms.layout import REJECTS, SUCCESS
from layerbeam.transforms.parts import read_rejects
from layerbeam.transforms.tokenize.row_index import EMPTY_WORDS, KEPT_WORDS, LOST_WORDS

# A larger share of [UNK] means that the vocabulary was made for another language.
_UNKNOWN_SHARE = 0.05
_ROWS = 5
_NAMED_FORMS = 10
_UNITS = {metrics.RECORDS: ("records", "read"), metrics.SENTENCES: ("sentences", "found")}
_OF_ATTEMPT = ("run", "state", "runner", "job", "workers", "peak_memory_bytes", *PERFORMANCE)
UNFINISHED = {
    "started": "unfinished: running, or killed",
    "interrupted": "unfinished: interrupted",
    "failed": "unfinished: failed",
    "submitted": "unfinished: submitted, not ended yet",
}


@dataclasses.dataclass(frozen=True)
class WordCounts:
    """Words of a view that were lost to max_seq_length, words that normalize to nothing, and rows of each kept form."""

    lost: int
    empty: int
    kept: Mapping[str, int] | None


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A run, finished or not. `views` and `words` are by view; `rejects` by reason, the most frequent first.

    `ids_compared_in`: `run`, or `block` if duplicate ids were counted within blocks only. `last_start`: the last
    attempt. `documents`: of `extract-features`.
    """

    path: str
    state: str
    problems: Sequence[str]
    fingerprint: str
    encoder: Mapping[str, Any]
    inputs: Mapping[str, Any]
    counts: Mapping[str, int]
    ids_compared_in: str
    rejects: Mapping[str, int]
    views: Mapping[str, Mapping[str, Any]]
    last_start: Mapping[str, Any]
    words: Mapping[str, WordCounts]
    parts: Mapping[str, Sequence[Part]]
    documents: Mapping[str, Sequence[str]] | None = None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def is_unfinished(self) -> bool:
        """Whether the last attempt is running, was killed or interrupted, or failed."""
        return self.state in UNFINISHED.values()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = dataclasses.asdict(self)
        values["words"] = {view: _without_none(counts) for view, counts in values["words"].items()}
        values["parts"] = {view: [part.path for part in parts] for view, parts in self.parts.items()}
        return _without_none(values)

    def first_rows(self, view: str) -> list[dict[str, Any]]:
        """A few rows of a view."""
        rows = View(self.path, view, self.views[view], tuple(self.parts[view])).first_rows(_ROWS)
        return list(rows.to_pylist())


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def summarize(output_path: str) -> RunSummary:
    """The summary of a run, finished or not. UsageError if the folder holds none."""
    return summarize_attempt(output_path, last_attempt(output_path), load_commits(output_path))


def last_attempt(output_path: str) -> RunRecord:
    """The record of the last attempt in an output folder. UsageError if there is none."""
    runs = load_runs(output_path)
    if not runs:
        raise UsageError(f"{output_path}: holds no layerbeam run (no _runs folder in it)")
    return runs[-1]


def summarize_attempt(output_path: str, attempt: Mapping[str, Any], commits: Sequence[Commit]) -> RunSummary:
    """The summary of an output folder whose last attempt and commits are loaded already."""
    manifest = load_manifest(output_path)
    tables = manifest["views"] if manifest is not None else {}
    if manifest is not None and manifest["fingerprint"] != attempt["fingerprint"]:
        manifest = None
    counts = metrics.total([commit.counts for commit in commits])
    if manifest is not None and metrics.DUPLICATE_IDS in manifest["counts"]:
        counts[metrics.DUPLICATE_IDS] = manifest["counts"][metrics.DUPLICATE_IDS]
    read_bytes = sum(commit.block.end_byte - commit.block.first_byte for commit in commits)
    views, parts = _views_and_parts(attempt["views"], tables, commits)
    finished = storage.exists(storage.join(output_path, SUCCESS))
    return RunSummary(
        path=output_path,
        state="complete" if finished else UNFINISHED.get(attempt["state"], attempt["state"]),
        problems=[] if manifest is None else manifest["problems"],
        fingerprint=attempt["fingerprint"],
        encoder=attempt["encoder"],
        inputs=attempt["inputs"] | {"text_bytes_done": read_bytes},
        counts=counts,
        ids_compared_in="block" if manifest is None else manifest.get("ids_compared_in", "block"),
        rejects=_count_rejects(output_path, [commit.parts[REJECTS] for commit in commits if REJECTS in commit.parts]),
        views=views,
        last_start={name: attempt[name] for name in _OF_ATTEMPT if name in attempt},
        words=_count_words(counts, attempt["identity"]["views"]),
        parts=parts,
    )


def _views_and_parts(
    described: Mapping[str, Mapping[str, Any]], tables: Mapping[str, Mapping[str, Any]], commits: Sequence[Commit]
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Sequence[Part]]]:
    """Each view with its number of rows, bytes and parts; and its parts. Word types are one table, made at the end."""
    views: dict[str, Mapping[str, Any]] = {}
    parts: dict[str, Sequence[Part]] = {}
    for name, view in described.items():
        if view["level"] == "word_type":
            table = {key: tables.get(name, {}).get(key, 0) for key in ("rows", "bytes", "parts", "path")}
            # No hash, so that its size is not checked: a run killed at its end leaves a table newer than the manifest.
            parts[name] = [Part(table["path"], table["rows"], table["bytes"], "")] if table["path"] else []
            views[name] = {**view, **table}
        else:
            parts[name] = [commit.parts[name] for commit in commits if name in commit.parts]
            views[name] = {**view, **count_rows(parts[name])}
    return views, parts


def _count_rejects(output_path: str, parts: Iterable[Part]) -> dict[str, int]:
    """{reason: number of rejected records}, the most frequent first."""
    reasons: Counter[str] = Counter()
    for part in parts:
        for reject in read_rejects(storage.join(output_path, part.path)):
            reasons[reject.kind if reject else "(damaged record)"] += 1
    return dict(reasons.most_common())


def _count_words(counts: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, WordCounts]:
    """The counts of each view of words, or with keep_words."""
    return {
        name: WordCounts(
            lost=counts.get(f"{LOST_WORDS}:{name}", 0),
            empty=counts.get(f"{EMPTY_WORDS}:{name}", 0),
            kept={form: counts.get(f"{KEPT_WORDS}:{name}:{form}", 0) for form in view["keep_words"] or ()} or None,
        )
        for name, view in settings.items()
        if view["level"] in ("word", "word_type") or view["keep_words"]
    }


def encoder_text(encoder: Mapping[str, Any]) -> str:
    """`12 layers of 768, engine native, lower-casing (tokenizer_config.json)`."""
    casing = "lower-casing" if encoder["do_lower_case"] else "cased"
    return f"{shape_text(encoder)}, engine {encoder['engine']}, {casing} ({encoder['casing_from']})"


def balances(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """(`records` or `sentences`, `142 read = 136 embedded + ...`)."""
    lines = []
    for read, (unit, how) in _UNITS.items():
        if read in counts or read == metrics.RECORDS:
            ends = zip(metrics.BALANCES[read], ("embedded", "blank", "filtered", "rejected"), strict=True)
            ended = " + ".join(f"{counts.get(name, 0):,} {end}" for name, end in ends)
            lines.append((unit, f"{counts.get(read, 0):,} {how} = {ended}"))
    return lines


def notes(summary: RunSummary) -> list[str]:
    """What a reader of the vectors should know: duplicate ids, truncated texts, unknown tokens, missing words."""
    lines, counts = [], summary.counts
    duplicates = counts.get(metrics.DUPLICATE_IDS, 0)
    if duplicates:
        within = "" if summary.ids_compared_in == "run" else " (compared within blocks only)"
        lines.append(f"{count_noun(duplicates, 'record')} with the id of an earlier one{within}")
    truncated, dropped = counts.get(metrics.TRUNCATED_TEXTS, 0), counts.get(metrics.DROPPED_TOKENS, 0)
    tokens, unknown = counts.get(metrics.TOKENS, 0), counts.get(metrics.UNKNOWN_TOKENS, 0)
    if truncated:
        texts = f"{count_noun(truncated, 'text')} {'was' if truncated == 1 else 'were'}"
        share = dropped / (dropped + tokens)
        lines.append(f"{texts} longer than max_seq_length: {dropped:,} tokens ({share:.1%}) have no vector")
    if tokens:
        line = f"{unknown / tokens:.2%} of the tokens are [UNK]"
        if unknown / tokens > _UNKNOWN_SHARE:
            line += ": the vocabulary does not know this language or script; use an encoder that was trained on it"
        lines.append(line)
    return lines + [f"{view}: {note}" for view, words in summary.words.items() for note in _word_notes(words)]


def _word_notes(words: WordCounts) -> list[str]:
    """What a view of words does not have rows for."""
    lines = []
    if words.lost:
        lines.append(f"{count_noun(words.lost, 'word')} lost to max_seq_length")
    if words.empty:
        lines.append(
            f"{count_noun(words.empty, 'word')} that {'normalizes' if words.empty == 1 else 'normalize'} to nothing"
        )
    absent = [form for form, count in (words.kept or {}).items() if not count]
    if absent:
        more = f" and {len(absent) - _NAMED_FORMS:,} more" if len(absent) > _NAMED_FORMS else ""
        lines.append(f"keep_words with no matches: {', '.join(absent[:_NAMED_FORMS])}{more}")
    return lines
