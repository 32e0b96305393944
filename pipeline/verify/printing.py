"""The results of `layerbeam verify`, printed."""

from __future__ import annotations

from layerbeam.pipeline.console import count_noun, plain_console, size_text
from layerbeam.pipeline.dataset.integrity import FilesVerdict
from layerbeam.pipeline.verify.verify import Verdict
from layerbeam.transforms.parts import PART_FORMATS

# Places of failures that are printed for each column.
_PLACES = 5


def print_verdict(verdict: Verdict) -> None:
    """Print the comparison of rows and vectors."""
    console = plain_console(soft_wrap=True)
    rows = [
        (
            column.view,
            column.column,
            column.dtype,
            f"{column.rows:,}",
            f"{column.max_difference:.2g}" if column.rows else "-",
            f"{column.min_cosine:.9f}" if column.rows else "-",
            "FAIL" if column.failures else "pass" if column.rows else "",
        )
        for column in verdict.columns
    ]
    texts = f"{verdict.sampled:,} of {count_noun(verdict.texts, 'text')} (seed {verdict.seed})"
    console.print(f"{verdict.path}: {texts} against {verdict.compared_with}")
    names = ("view", "column", "type")
    console.print_table((*names, "rows", "largest diff.", "smallest cosine", ""), rows, left=(*names, ""))
    for view in verdict.hash_only:
        console.print(f"{view}: one row per word over the whole corpus; its hash was compared, not its vectors")
    allowed = {(column.dtype, PART_FORMATS[column.format].rounding > 0): column.tolerance for column in verdict.columns}
    for (dtype, is_text), tolerance in sorted(allowed.items()):
        console.print(f"allowed   {tolerance} in {dtype}{', six decimals' if is_text else ''}")
    for column in verdict.columns:
        if column.mean_float32_cosine is not None:
            console.print(
                f"float32   {column.view}, {column.column}: cosine with products in float32 at least "
                f"{column.min_float32_cosine:.4f}, on average {column.mean_float32_cosine:.4f}"
            )
        for failure in column.failures[:_PLACES]:
            console.print(f"FAIL      {column.view}, {column.column}: {failure}")
        if len(column.failures) > _PLACES:
            console.print(f"          and {len(column.failures) - _PLACES:,} more texts")
    for coarse in verdict.coarse:
        console.print(f"int8      {coarse}")
    for problem in verdict.problems:
        console.print(f"FAIL      {problem}")
    for file, reason in verdict.unverifiable.items():
        console.print(f"cannot verify {file}: {reason}")
    console.print({"fail": "FAIL", "pass": "pass"}.get(verdict.result, verdict.result))


def print_files_verdict(verdict: FilesVerdict) -> None:
    """Print the comparison of bytes."""
    console = plain_console(soft_wrap=True)
    files = f"{count_noun(verdict.files, 'file')}, {size_text(verdict.bytes)}"
    console.print(f"{verdict.path}: {files}, each byte against the SHA-256 that was recorded when it was written")
    for problem in verdict.problems:
        console.print(f"FAIL      {problem}")
    if verdict.damaged:
        what = count_noun(len(verdict.damaged), "file")
        console.print(
            f"          the next run will rewrite {what}"
            if verdict.noted
            else f"          the folder cannot be written: delete {what}, and the next run will rewrite them"
        )
    console.print({"fail": "FAIL"}.get(verdict.result, verdict.result))
