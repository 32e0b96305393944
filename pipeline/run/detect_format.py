"""The format of a run's input files, found from their names and the first bytes of some of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from layerbeam.pipeline.config.job import Job, with_format
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.output.access import has_no_rows
from layerbeam.pipeline.output.run_log import last_run
from layerbeam.pipeline.output.work import PendingWork
from layerbeam.transforms.flow.commits import InputFile, printable
from layerbeam.transforms.input import INPUT_FORMATS
from layerbeam.transforms.input.content import contradiction, format_by_content, format_by_name, read_head

# Files that are opened before the run begins. Every file is checked when it is read.
_SAMPLE = 16


def find_format(job: Job, found: Sequence[InputFile]) -> Job:
    """The job with the format of its input, if the configuration leaves it open.

    It is that of the rows in the folder, else the one that all names agree on, else that of the contents. The contents
    also decide if none of the files looked at is what the names say. UsageError if files have different formats.
    """
    if job.records.format != "auto":
        return job
    files = [file for file in found if not file.problem]
    examples = formats_by_name(files)
    before = last_run(job.output.path)
    if before is not None and not has_no_rows(job.output.path):
        format_ = before["identity"]["input"]["format"]
        other = next((named for named in examples if named != format_), None)
        # JSON Lines and Parquet are recognized when a file is read, whatever its name.
        if other is not None and format_ not in ("jsonl", "parquet"):
            raise UsageError(
                f"input.files: {printable(examples[other])} is {INPUT_FORMATS[other].title} by its name, and the rows "
                f"in {job.output.path} are of {INPUT_FORMATS[format_].title}; leave it out, give a new folder, or set "
                f"input.format: {format_}"
            )
        return with_format(job, format_)
    contents = {path: format_by_content(head) for path, head in _heads(files)}
    if not examples or (
        len(examples) == 1 and None not in contents.values() and not examples.keys() & contents.values()
    ):
        by_content = {content or "text": path for path, content in reversed(contents.items())}
        examples = by_content or examples
    if len(examples) > 1:
        what = several_formats(examples)
        raise UsageError(f"input.files: {what}; give globs of one format, or set input.format")
    (format_,) = examples or ["text"]
    return with_format(job, format_)  # type: ignore[arg-type] # one of INPUT_FORMATS


def formats_by_name(files: Sequence[InputFile]) -> dict[str, str]:
    """{a format that names of files say: the first of these files}."""
    examples: dict[str, str] = {}
    for file in files:
        named = format_by_name(file.path)
        if named is not None:
            examples.setdefault(named, file.path)
    return examples


def several_formats(examples: Mapping[str, str]) -> str:
    """What is wrong with files of several formats, each with an example."""
    shown = ", ".join(
        f"{printable(path)} is {INPUT_FORMATS[format_].title}" for format_, path in sorted(examples.items())
    )
    return f"a run reads files of one format, and {shown}"


def refuse_other_format(job: Job, work: PendingWork) -> None:
    """UsageError if nothing is embedded yet and every file that was looked at holds another format."""
    if work.texts_done:
        return
    problems = [(path, contradiction(head, job.records)) for path, head in _heads([left.file for left in work.to_read])]
    if not problems or not all(problem for _, problem in problems):
        return
    path, problem = problems[0]
    others = f" (and so do the {len(problems) - 1} others that were looked at)" if len(problems) > 1 else ""
    raise UsageError(f"input.files: {printable(path)} {problem}{others}")


def _heads(files: Sequence[InputFile]) -> Iterator[tuple[str, bytes]]:
    """The first bytes of some files, spread over all of them, without empty ones and those that cannot be read."""
    for file in files[:: -(-len(files) // _SAMPLE) or 1]:
        with contextlib.suppress(OSError):
            head = read_head(file.path)
            if head:
                yield file.path, head
