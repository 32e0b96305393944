"""The command. Heavy modules are imported by the command that needs them, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerbeam.pipeline.cli.parser import escape_negative_layers, make_parser
from layerbeam.pipeline.console import command_name, echo, echo_error, echo_timed, hide_status, only_main_thread_prints
from layerbeam.pipeline.errors import BusyError, UsageError, root_cause
from layerbeam.pipeline.run.signals import interrupting_signal

if TYPE_CHECKING:
    from layerbeam.pipeline.config.job import Job
    from layerbeam.pipeline.config.schema import Config
    from layerbeam.pipeline.dataset.summary import RunSummary
    from layerbeam.pipeline.run.run import Ended

DONE, FAILED, USAGE, INCOMPLETE, BUSY = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None, *, version: str) -> int:
    """Run the command and return its exit status; `layerbeam run --help` lists them."""
    began = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        make_parser(version).print_help(sys.stderr)
        return USAGE
    verbose = "-v" in given or "--verbose" in given
    with contextlib.nullcontext() if verbose else only_main_thread_prints():
        try:
            escaped = escape_negative_layers(given) if given[:1] == ["extract-features"] else given
            options, beam_arguments = make_parser(version).parse_known_args(escaped)
            options.began = began
            quiet_logs(options.verbose)
            with hide_status(options.quiet):
                return COMMANDS[options.command](options, beam_arguments)
        except BaseException as error:
            number = interrupting_signal(error)
            if number is not None:
                echo_error((isinstance(error, KeyboardInterrupt) and str(error)) or "interrupted")
                return 128 + number
            if isinstance(error, UsageError | BusyError):
                echo_error(str(error))
                return BUSY if isinstance(error, BusyError) else USAGE
            if verbose or not isinstance(error, Exception):
                raise
            echo_error(f"failed: {root_cause(error)}")
            if options.command in ("run", "extract-features"):
                echo_error("completed blocks are kept; rerun the same command to resume (-v shows the whole error)")
            else:
                echo_error("-v shows the whole error")
            return FAILED


def _set_up_file_systems(
    options: argparse.Namespace, given: list[str], *paths: str, configured: Mapping[str, Any] | None = None
) -> list[str]:
    """Configure Beam's file systems; returns Beam's options from configuration and command line, as arguments.

    UsageError for unknown options, and for a path that the file systems cannot reach.
    """
    from layerbeam.pipeline.cli import beam_options
    from layerbeam.transforms import storage

    settings = {name: value for name, value in (configured or {}).items() if name != "runner"}
    endpoint = beam_options.job_endpoint_of(given, settings)
    arguments = beam_options.as_arguments(settings, endpoint) + given
    beam_options.check_arguments(given, options.own_options, endpoint)
    storage.set_options(arguments)
    for path in paths:
        reason = storage.unsupported_reason(path)
        if reason is not None:
            raise UsageError(f"{path}: {reason}")
    return arguments


def _set_up_stores(options: argparse.Namespace, beam_arguments: list[str], *paths: str) -> None:
    """Configure Beam's file systems if options are given or a path is in a store; Beam's import takes 0.9 s."""
    if beam_arguments or any(map(_is_in_store, paths)):
        _set_up_file_systems(options, beam_arguments, *paths)


def _is_in_store(path: str) -> bool:
    return "://" in path and not path.lower().startswith(("https://", "http://", "hf://"))


def _announce_loading() -> None:
    """Tell at once what takes seconds; not where it is loaded already."""
    if "apache_beam" not in sys.modules:
        echo_timed("loading Apache Beam and TensorFlow ...")


def _run(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = load_config(options)
    ended = _run_config(config, options, beam_arguments)
    _print_summary(options, config.output.path, speed=ended.did_work)
    return DONE if ended else INCOMPLETE


def _plan(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = load_config(options)
    job, _ = _resolve(options, config, beam_arguments)
    from layerbeam.pipeline.plan.plan import Machines, make_plan
    from layerbeam.pipeline.plan.printing import print_plan
    from layerbeam.pipeline.remote.preflight import vcpus_of

    machines = None
    if options.machines or options.vcpus:
        vcpus = options.vcpus or vcpus_of(config.beam.get("machine_type"))
        machines = Machines(options.machines or 1, vcpus)
    plan = make_plan(job, workers=options.workers, seed=options.seed, machines=machines, began=options.began)
    _print(options, plan, print_plan)
    return USAGE if plan.is_refused else INCOMPLETE if plan.problems else DONE


def _show(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _set_up_stores(options, beam_arguments, options.output)
    if options.changes is not None:
        _print_changes(options.output, None if options.changes < 0 else options.changes, as_json=options.json)
        return DONE
    summary = _print_summary(options, options.output, rows=True)
    if not options.check or summary.state == "complete":
        return DONE
    from layerbeam.pipeline.output.attempts import seems_active

    return BUSY if seems_active(options.output) else INCOMPLETE


def _verify(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    # Read when NumPy is imported. Several threads in the small products of one sequence take longer than one thread.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _announce_loading()
    _set_up_file_systems(options, beam_arguments, options.output)  # also because the run's input may be in a store
    from layerbeam.pipeline.dataset.integrity import FilesVerdict, verify_files
    from layerbeam.pipeline.verify.printing import print_files_verdict, print_verdict
    from layerbeam.pipeline.verify.verify import Verdict, verify

    verdict: Verdict | FilesVerdict
    print_result: Callable[[Any], None]
    if options.checksums:
        verdict, print_result = verify_files(options.output), print_files_verdict
    else:
        verdict = verify(options.output, sample=options.sample, seed=options.seed, trust=options.trust)
        print_result = print_verdict
    _print(options, verdict, *([] if options.quiet and verdict.result == "pass" else [print_result]))
    return {"pass": DONE, "fail": FAILED, "cannot verify": INCOMPLETE}[verdict.result]


def _report(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _set_up_stores(options, beam_arguments, options.output, *([options.to] if options.to else []))
    from layerbeam.pipeline.report.page import print_report_result, write_report

    result = write_report(
        options.output,
        words=options.word,
        texts=options.text,
        color_by=options.color_by,
        sample=options.sample,
        seed=options.seed,
        to=options.to,
        trust=options.trust,
    )
    _print(options, result, *([] if options.quiet else [print_report_result]))
    for problem in result.problems:
        echo_error(problem)
    return FAILED if result.problems else DONE


def _search(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    if options.text:
        _announce_loading()
    _set_up_stores(options, beam_arguments, options.output)
    from layerbeam.pipeline.search.search import print_search, search

    result = search(
        options.output,
        texts=options.text,
        like=options.like,
        view=options.view,
        layer=options.layer,
        count=options.count,
        metric=options.metric,
        where=options.where,
        prompt=options.prompt,
        trust=options.trust,
    )
    _print(options, result, print_search)
    return DONE


def _publish(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _refuse_arguments(beam_arguments)
    from layerbeam.pipeline.publish.publish import print_published, publish

    _print(options, publish(options.output, options.repository, public=options.public), print_published)
    return DONE


def _encoder(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.encoder.inspect_encoder import describe_encoder, print_encoder
    from layerbeam.pipeline.encoder.known_encoders import list_encoders, print_encoders

    if options.handle is None:
        if options.adapter is not None:
            raise UsageError("--adapter: give the encoder for which it was trained, too")
        if beam_arguments:
            _set_up_file_systems(options, beam_arguments)
        _print(options, list_encoders(), print_encoders)
        return DONE
    if beam_arguments or _is_in_store(options.handle) or _is_in_store(options.adapter or ""):
        _set_up_file_systems(options, beam_arguments)
    _print(options, describe_encoder(options.handle, options.adapter), print_encoder)
    return DONE


def _extract_features(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.config import load
    from layerbeam.pipeline.output.lock import only_writer
    from layerbeam.pipeline.run import extract_features

    folder = options.output_folder
    settings = extract_features.settings(
        options.input_folder,
        folder,
        layers=options.layers,
        handle=options.model,
        max_seq_length=options.max_seq_length,
        batch_size=options.batch_size,
        sentences=options.sentences,
    )
    try:
        checked = load.check(settings, source="extract-features")
        extract_features.check_folders(options.input_folder, folder)
        ended = _run_config(checked, options, beam_arguments, extra_bytes_ratio=extract_features.EXTRA_BYTES_RATIO)
    except UsageError as error:
        message = str(error)
        for setting, argument in extract_features.ARGUMENTS.items():
            message = message.replace(f"{setting}: ", f"{argument}: ")
        raise UsageError(message) from None
    own = extract_features.own_folder(folder)
    with only_writer(own):
        documents = extract_features.assemble(folder, prune_missing=options.prune_missing)
    _print_summary(options, own, speed=ended.did_work, documents=documents)
    if not (options.json or options.quiet):
        counts = ", ".join(f"{len(names):,} {what}" for what, names in documents.items() if names)
        print(f"{folder}: documents: {counts or 'none'}")
    return DONE if ended else INCOMPLETE


def _init(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.init import template

    found: dict[str, Any] = {}
    if options.input is None:
        _refuse_arguments(beam_arguments)
    else:
        _set_up_stores(options, beam_arguments, options.input)
        from layerbeam.pipeline.init.inspect_input import inspect_input

        inspected = inspect_input(options.input, template.output_path(options.config))
        found = {"settings": inspected.settings, "reads": inspected.reads}
        for note in inspected.notes:
            echo(note)
    model = None
    if options.model is None and options.prompt is not None:
        raise UsageError("--prompt: names a prompt of the model that --from gives; add --from FOLDER")
    if options.model is not None:
        from layerbeam.pipeline.config.sentence_transformers import read_model

        model = read_model(options.model, options.prompt)
        if model.is_plain:
            echo(f"{options.model}: has no modules.json: a plain encoder, whose tokens sentence-transformers averages")
    template.write(options.config, model, **found)
    following = f"{command_name()} run {shlex.quote(options.config)}"
    echo(f"{options.config}: written; it reads {found.get('reads', template.INPUT)}. Next: {following}")
    return DONE


COMMANDS = {
    "run": _run,
    "plan": _plan,
    "show": _show,
    "verify": _verify,
    "report": _report,
    "search": _search,
    "publish": _publish,
    "encoder": _encoder,
    "extract-features": _extract_features,
    "init": _init,
}


def _refuse_arguments(arguments: list[str]) -> None:
    """Raises UsageError for arguments left over: the command takes none of Beam's options."""
    if arguments:
        raise UsageError(f"{' '.join(arguments)}: unknown here (see `layerbeam --help`)")


def _print_summary(
    options: argparse.Namespace,
    output_path: str,
    *,
    rows: bool = False,
    speed: bool = True,
    documents: Mapping[str, Sequence[str]] | None = None,
) -> RunSummary:
    """Print what an output folder holds, or only its problems. `speed`: also how fast its last run was."""
    from layerbeam.pipeline.dataset.summary import summarize
    from layerbeam.pipeline.show.summary import print_next, print_rows, print_summary

    summary = dataclasses.replace(summarize(output_path), documents=documents)
    if options.quiet:
        _print(options, summary, _print_problems)
    else:
        shown: list[Callable[[Any], None]] = [
            functools.partial(print_summary, speed=speed),
            *([print_rows] if rows else []),
            print_next,
        ]
        _print(options, summary, *shown)
    return summary


def _print_problems(summary: RunSummary) -> None:
    for problem in summary.first_problems:
        echo_error(f"{summary.path}: {problem}")


def _print_changes(output_path: str, since: int | None, *, as_json: bool) -> None:
    """Print what changed in the rows since the end of a run."""
    from layerbeam.pipeline.dataset.summary import last_attempt
    from layerbeam.pipeline.output.changes import Changes
    from layerbeam.pipeline.show.changes import print_changes, print_changes_json

    last_attempt(output_path)  # OutputError if the folder has no run
    changes = Changes(output_path, since)
    with _tolerate_closed_pipe():
        (print_changes_json if as_json else print_changes)(changes)


def _print(options: argparse.Namespace, result: Any, *printers: Callable[[Any], None]) -> None:
    """Print a result with `printers`, or as JSON with --json (by its `to_json` unless it is a dict)."""
    with _tolerate_closed_pipe():
        if options.json:
            values = result if isinstance(result, dict) else result.to_json()
            print(json.dumps(_without_nan(values), indent=1))
            return
        for print_result in printers:
            print_result(result)


def _without_nan(value: Any) -> Any:
    """The value with null for NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@contextlib.contextmanager
def _tolerate_closed_pipe() -> Iterator[None]:
    """Keeps the exit status when the reader of the output stops reading (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def load_config(options: argparse.Namespace) -> Config:
    from layerbeam.pipeline.config import load

    overrides: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: is not of the form K=V, such as encoder.max_seq_length=64")
        overrides[key] = load.parse_yaml(value, f"--set {item}")
    given = {"input.files": options.input or None, "input.limit": options.limit, "output.path": options.output}
    shortcuts = {name: value for name, value in given.items() if value is not None}
    return load.load(options.config, overrides, shortcuts=shortcuts)


def _run_config(
    config: Config, options: argparse.Namespace, beam_arguments: list[str], *, extra_bytes_ratio: float = 0
) -> Ended:
    """Run a configuration."""
    job, arguments = _resolve(options, config, beam_arguments)
    from layerbeam.pipeline.remote.submit import RemoteRun
    from layerbeam.pipeline.run.engines import LocalRunner, choose_runner
    from layerbeam.pipeline.run.run import LocalRun, Run

    runner = options.runner or config.beam.get("runner")
    chosen = choose_runner(arguments, runner, config.output.path, workers=options.workers, processes=options.processes)
    given = {
        "job": job,
        "force": options.force,
        "prune_missing": options.prune_missing,
        "reread": options.reread,
        "verbose": options.verbose,
        "began": options.began,
        "extra_bytes_ratio": extra_bytes_ratio,
    }
    run: Run
    if isinstance(chosen, LocalRunner):
        if options.cancel_on_interrupt:
            raise UsageError("--cancel-on-interrupt applies to jobs on other runners; Ctrl-C ends a local run")
        run = LocalRun(local=chosen, **given)
    else:
        run = RemoteRun(remote=chosen, cancel_on_interrupt=options.cancel_on_interrupt, **given)
    return run.run()


def _resolve(options: argparse.Namespace, config: Config, beam_arguments: list[str]) -> tuple[Job, list[str]]:
    """The job and Beam's options. Raises UsageError for settings that do not fit, and paths out of reach."""
    _announce_loading()
    from layerbeam.pipeline.config.job import pin_inputs, resolve

    config = pin_inputs(config)
    forms = (str(view.keep_words) for view in config.views.values())
    if any(map(_is_in_store, [config.encoder.handle, config.encoder.adapter or "", *forms])):
        _set_up_file_systems(options, beam_arguments, configured=config.beam)
    job = resolve(config)
    from layerbeam.pipeline.remote import preflight  # it imports Beam

    preflight.check_hints(config)
    paths = [*config.input.files, config.output.path]
    return job, _set_up_file_systems(options, beam_arguments, *paths, configured=config.beam)


def quiet_logs(verbose: bool) -> None:
    """Hide the logs of TensorFlow and Beam unless `verbose`; layerbeam prints what a person needs."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="%(name)s: %(message)s")
