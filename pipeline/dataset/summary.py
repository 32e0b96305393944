"""The content of an output folder in numbers: what `show` and the end of `run` print, and `report` starts from."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from layerbeam.pipeline.console import count_noun, size_text
from layerbeam.pipeline.dataset.index import Index
from layerbeam.pipeline.dataset.view import shape_text
from layerbeam.pipeline.errors import NoRunError, OutputError
from layerbeam.pipeline.output.catalog import Totals, open_catalog
from layerbeam.pipeline.output.manifest import Manifest, invalid_entries, load_manifest
from layerbeam.pipeline.output.rejects import count_rejects, frequent_remedies
from layerbeam.pipeline.output.run_log import MeasuredRecord, RunRecord, ShownRecord, last_run
from layerbeam.transforms import storage
from layerbeam.transforms.encoders import vocabulary_note
from layerbeam.transforms.flow import layout, metrics
from layerbeam.transforms.flow.commits import Part
from layerbeam.transforms.views.number_types import COARSE

# A larger share of [UNK] can mean that the vocabulary was made for another language.
_UNKNOWN_SHARE = 0.01
_NAMED_FORMS = 10
_OF_ATTEMPT = ("run", "state", "runner", "job", "workers", "peak_memory_bytes", "pruned", "model_notes")
_OF_SPEED = (
    "startup_seconds",
    "seconds",
    "seconds_to_first_block",
    "tokens_per_second",
    "padding_share",
    "stage_shares",
    "counts",
)
_MOST_PROBLEMS = 20
UNFINISHED = {
    "started": "unfinished: running, or killed",
    "interrupted": "unfinished: interrupted",
    "failed": "unfinished: failed",
    "submitted": "unfinished: submitted, not ended yet",
    "cancelled": "unfinished: cancelled",
    "lost": "unfinished: lost, nobody knows how its job ended",
    "superseded": "unfinished: left to a newer run",
}


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A run, finished or not. `views` and `words` are by view; `rejects` by reason, the most frequent first.

    `made_with`: texts, by what encoded them. `words`: `lost` to max_seq_length, `empty` after they are normalized,
    and rows of each form in keep_words (`kept`). `ids_compared_in`: `run`, or `block` if duplicate ids were counted
    within blocks only. `last_start`: the last attempt. `remedies`: settings against frequent rejects. `sums_bytes`:
    of the sums of words that later runs need, by view. `documents`: of `extract-features`.
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
    words: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Sequence[Part]]
    remedies: Sequence[str]
    sums_bytes: Mapping[str, int]
    made_with: Mapping[str, int]
    pair_field: str | None = None
    unit: str = "record"
    documents: Mapping[str, Sequence[str]] | None = None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @property
    def is_unfinished(self) -> bool:
        """Whether the last attempt is running, was killed or interrupted, or failed."""
        return self.state in UNFINISHED.values()

    @property
    def first_problems(self) -> list[str]:
        """The problems; of very many the first ones, and how many more there are."""
        more = len(self.problems) - _MOST_PROBLEMS
        if more <= 1:
            return list(self.problems)
        return [*self.problems[:_MOST_PROBLEMS], f"{more:,} more problems are listed in {self.path}/{layout.MANIFEST}"]

    @property
    def encoder_text(self) -> str:
        """`12 layers of 768, engine native, lower-casing (tokenizer_config.json)`."""
        encoder = self.encoder
        casing = "lower-casing" if encoder["do_lower_case"] else "cased"
        return f"{shape_text(encoder)}, engine {encoder['engine']}, {casing} ({encoder['casing_from']})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(`input`, `3 files, 4.2 kB`), then (`records`, `142 read = 136 embedded + ...`), and sentences or chunks."""
        lines, counts = [("input", input_text(self.inputs))], self.counts
        for read, unit, how in (metrics.RECORDS, "records", "read"), (metrics.SENTENCES, f"{self.unit}s", "found"):
            if read in counts or read == metrics.RECORDS:
                ends = zip(metrics.BALANCES[read], ("embedded", "blank", "filtered", "rejected"), strict=True)
                ended = " + ".join(f"{counts.get(name, 0):,} {end}" for name, end in ends)
                lines.append((unit, f"{counts.get(read, 0):,} {how} = {ended}"))
        return lines

    @property
    def notes(self) -> list[str]:
        """What a reader of the vectors should know: duplicate ids, truncated texts, unknown tokens, missing words."""
        lines, counts = [], self.counts
        duplicates = counts.get(metrics.DUPLICATE_IDS, 0)
        if duplicates:
            within = "" if self.ids_compared_in == "run" else " (compared within blocks only)"
            lines.append(f"{count_noun(duplicates, 'record')} with the id of an earlier one{within}")
        single = counts.get(metrics.WITHOUT_PAIR, 0)
        if single:
            lines.append(f"{count_noun(single, 'record')} without `{self.pair_field}`: embedded as single texts")
        made_with = [f"{count_noun(number, 'text')} by {name}" for name, number in self.made_with.items() if number]
        if len(made_with) > 1:
            lines.append(f"{', '.join(made_with)}: between these, equal texts differ by rounding")
        truncated, dropped = counts.get(metrics.TRUNCATED_TEXTS, 0), counts.get(metrics.DROPPED_TOKENS, 0)
        tokens = counts.get(metrics.TOKENS, 0)
        small = vocabulary_note(self.encoder)
        if truncated:
            texts = f"{count_noun(truncated, 'text')} {'was' if truncated == 1 else 'were'}"
            share = dropped / (dropped + tokens)
            lines.append(f"{texts} longer than max_seq_length: {dropped:,} tokens ({share:.1%}) have no vector")
        if small is not None:
            lines.append(small)
        lines += self.last_start.get("model_notes", ())
        for view in self.views:
            empty = counts.get(f"{metrics.EMPTY_TEXTS}:{view}", 0)
            lines += [f"{view}: {count_noun(empty, 'text')} without tokens: zeros"] if empty else []
            zeros = counts.get(f"{metrics.ZERO_VECTORS}:{view}", 0) - empty
            lines += [f"{view}: {count_noun(zeros, 'row')} of zeros, although there are tokens"] if zeros > 0 else []
        lines += coarse_columns(counts)
        return lines + token_notes(counts, self.words)

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(dataclasses.replace(self, parts={}))
        values["parts"] = {view: [part.path for part in parts] for view, parts in self.parts.items()}
        return {name: value for name, value in values.items() if value is not None}


def last_attempt(output_path: str) -> RunRecord:
    """The record of the last attempt in an output folder. NoRunError without one, OutputError for a damaged one."""
    attempt = last_run(output_path)
    if attempt is None:
        raise NoRunError(
            f"{output_path}: holds no layerbeam run (no record in _runs and no manifest.json that can be read); give "
            "the folder that was the run's output.path, or run its configuration again"
        )
    type_ = MeasuredRecord if attempt.get("counts") else ShownRecord
    invalid = invalid_entries(type_, {**attempt, "inputs": attempt["inputs"] or None})
    if invalid:
        raise OutputError(
            f"{output_path}: {layout.run_path(attempt['run'])} is damaged: it has no {', '.join(sorted(invalid))} of "
            "the right type; run the configuration again, or delete this file"
        )
    return attempt


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks of a run that are intact, in the order of their rows, and what they hold.

    `text_bytes`: bytes that the blocks were read from; `inputs`: the size of each input file; `rejects`: by reason.
    """

    index: Index
    totals: Totals
    text_bytes: int
    inputs: Mapping[str, int]
    rejects: Mapping[str, int]


def load_blocks(output_path: str) -> Blocks:
    """The blocks of an output folder in any state. A line of each is in memory."""
    catalog, totals = open_catalog(output_path), Totals()
    index = Index(output_path, list(totals.count(catalog.lines())))
    rejects = count_rejects(output_path, catalog.paths_of_parts(layout.REJECTS))
    return Blocks(index, totals, catalog.text_bytes(), catalog.input_sizes(), rejects)


def summarize(output_path: str, blocks: Blocks | None = None) -> RunSummary:
    """The summary of a run, finished or not, whose blocks may be known already. NoRunError if there is none."""
    attempt: Mapping[str, Any] = last_attempt(output_path)
    blocks = load_blocks(output_path) if blocks is None else blocks
    manifest = load_manifest(output_path)
    if manifest is not None and manifest["fingerprint"] != attempt["fingerprint"]:
        manifest = None
    counts = dict(sorted(blocks.totals.counts.items()))
    if manifest is not None and metrics.DUPLICATE_IDS in manifest["counts"]:
        counts[metrics.DUPLICATE_IDS] = manifest["counts"][metrics.DUPLICATE_IDS]
    rejects = blocks.rejects
    nothing = {"rows": 0, "bytes": 0, "parts": 0}
    views = {name: {**view, **nothing, **blocks.totals.views.get(name, {})} for name, view in attempt["views"].items()}
    sums = {name: blocks.totals.views[f"{layout.WORD_SUMS}/{name}"]["bytes"] for name in views}
    finished = storage.exists(storage.join(output_path, layout.SUCCESS))
    return RunSummary(
        path=output_path,
        state="complete" if finished else UNFINISHED.get(attempt["state"], attempt["state"]),
        problems=[] if manifest is None else manifest["problems"],
        fingerprint=attempt["fingerprint"],
        encoder=attempt["encoder"],
        inputs={**(attempt["inputs"] or _inputs(blocks, manifest)), "text_bytes_done": blocks.text_bytes},
        counts=counts,
        ids_compared_in="block" if manifest is None else manifest.get("ids_compared_in", "block"),
        rejects=rejects,
        views=views,
        last_start={name: attempt[name] for name in (*_OF_ATTEMPT, *_OF_SPEED) if name in attempt},
        words=count_words(counts, attempt["identity"]["views"]),
        parts={name: blocks.index.parts(name) for name in views},
        sums_bytes={name: size for name, size in sums.items() if size},
        made_with=dict(sorted(blocks.totals.made_with.items())),
        pair_field=attempt["identity"]["input"]["pair_field"],
        unit=attempt["identity"]["input"]["unit"],
        remedies=frequent_remedies(rejects, counts.get(metrics.RECORDS, 0), attempt["identity"]["input"]["text_field"]),
    )


def join_summaries(summaries: Sequence[RunSummary], problems: Sequence[str]) -> RunSummary:
    """The summary of runs of equal settings together, without what the last attempts did; `problems`: in addition."""
    first = summaries[0]
    left = [summary for summary in summaries if summary.state != "complete"]
    states = sorted((summary.state for summary in left), key=lambda state: state not in UNFINISHED.values())
    rejects = Counter(metrics.total(summary.rejects for summary in summaries))
    return dataclasses.replace(
        first,
        state=states[0] if states else "incomplete" if problems else "complete",
        problems=[
            *problems,
            *(f"{one.path}: {problem}" for one in left for problem in (one.problems or [one.state])),
        ],
        inputs=_join_inputs([summary.inputs for summary in summaries]),
        counts=metrics.total(summary.counts for summary in summaries),
        ids_compared_in="run" if all(summary.ids_compared_in == "run" for summary in summaries) else "block",
        rejects=dict(rejects.most_common()),
        views=join_views([summary.views for summary in summaries]),
        last_start={"model_notes": first.last_start.get("model_notes", ())},
        remedies=list(dict.fromkeys(remedy for summary in summaries for remedy in summary.remedies)),
        sums_bytes=metrics.total(summary.sums_bytes for summary in summaries),
        made_with=metrics.total(summary.made_with for summary in summaries),
    )


def join_views(views: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The descriptions of equal views in several runs as one, with the sums of rows, bytes and parts."""
    sizes = ("rows", "bytes", "parts")
    return {
        name: view | {size: sum(of_run[name][size] for of_run in views) for size in sizes}
        for name, view in views[0].items()
    }


def _join_inputs(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    files = [of_run["files"] for of_run in inputs]
    return {
        "files": None if None in files else sum(files),
        "compressed": any(of_run["compressed"] for of_run in inputs),
        **{name: sum(of_run[name] for of_run in inputs) for name in ("bytes", "text_bytes_done")},
    }


def _inputs(blocks: Blocks, manifest: Manifest | None) -> dict[str, Any]:
    """The input of a run elsewhere, whose attempt does not record it; no `files` before its end."""
    if manifest is None:
        return {"files": None, "bytes": 0, "compressed": True}
    compressed = any(map(storage.is_compressed, blocks.inputs))
    return {"files": len(blocks.inputs), "bytes": sum(blocks.inputs.values()), "compressed": compressed}


def count_words(counts: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The counts of each view of words, or with keep_words."""
    words: dict[str, dict[str, Any]] = {}
    for name, view in settings.items():
        forms = view["keep_words"] or ()
        if forms or view["level"] in ("word", "word_type"):
            words[name] = {
                "lost": counts.get(f"{metrics.LOST_WORDS}:{name}", 0),
                "empty": counts.get(f"{metrics.EMPTY_WORDS}:{name}", 0),
            }
            kinds = {"kept": metrics.KEPT_WORDS, "otherwise": metrics.OTHER_SPELLINGS, "inside": metrics.INSIDE_WORDS}
            for kind, metric in kinds.items() if forms else ():
                words[name][kind] = {form: counts.get(f"{metric}:{name}:{form}", 0) for form in forms}
    return words


def coarse_columns(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each vector column for which int8 is too coarse in most blocks."""
    found = ((name.split(":"), count) for name, count in counts.items() if name.startswith(metrics.INT8_COARSE))
    return [
        f"{view}, {column}: {COARSE}"
        for (_, view, column), count in found
        if 2 * count > counts[f"{metrics.INT8_SAMPLED}:{view}"]
    ]


def input_text(inputs: Mapping[str, Any]) -> str:
    """`3 files, 4.2 kB`."""
    if inputs["files"] is None:
        return "not known before the end"
    return f"{count_noun(inputs['files'], 'file')}, {size_text(inputs['bytes'])}"


def token_notes(counts: Mapping[str, int], words: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the tokenizer does not know, and what each view of words does not have rows for."""
    tokens, unknown = counts.get(metrics.TOKENS, 0), counts.get(metrics.UNKNOWN_TOKENS, 0)
    lines = []
    if unknown > _UNKNOWN_SHARE * tokens:
        lines.append(
            f"{unknown / tokens:.1%} of the tokens are [UNK]; is there an encoder for this language or script?"
        )
    elif unknown:
        lines.append(f"{count_noun(unknown, 'token')} {'is' if unknown == 1 else 'are'} [UNK]")
    return lines + [f"{view}: {note}" for view, of_view in words.items() for note in _word_notes(of_view)]


def _word_notes(words: Mapping[str, Any]) -> list[str]:
    """What a view of words does not have rows for."""
    lines = []
    lost, empty = words["lost"], words["empty"]
    if lost:
        lines.append(f"{count_noun(lost, 'word')} lost to max_seq_length")
    if empty:
        lines.append(f"{count_noun(empty, 'word')} that {'normalizes' if empty == 1 else 'normalize'} to nothing")
    kept = words.get("kept", {})
    absent = [form for form, count in kept.items() if not count]
    if absent:
        lines.append(f"keep_words with no matches: {_first_forms(absent)}")
    inside = {form: count for form, count in words.get("inside", {}).items() if count}
    if inside:
        recall = [f"{form} {kept[form]:,} of {kept[form] + count:,}" for form, count in inside.items()]
        lines.append(
            f"keep_words that the texts have also inside of other words, where they have no row: {_first_forms(recall)}"
        )
    otherwise = [form for form, count in words.get("otherwise", {}).items() if count]
    if otherwise:
        share = [f"{form} {words['otherwise'][form]:,} of {kept[form]:,}" for form in otherwise]
        lines.append(
            f"keep_words whose rows are spelled otherwise, which is the same to this encoder: {_first_forms(share)}"
        )
    return lines


def _first_forms(forms: Sequence[str]) -> str:
    more = f" and {len(forms) - _NAMED_FORMS:,} more" if len(forms) > _NAMED_FORMS else ""
    return f"{', '.join(forms[:_NAMED_FORMS])}{more}"
