"""The command. Heavy modules are imported by the command that needs them, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from layerbeam.pipeline.cli.console import echo, echo_error
from layerbeam.pipeline.cli.parser import PATHS, escape_negative_layers, make_parser
from layerbeam.pipeline.errors import BusyError, InterruptedRunError, UsageError, root_cause
from layerbeam.pipeline.run.signals import only_main_thread_prints

if TYPE_CHECKING:
    from layerbeam.pipeline.config.job import Job
    from layerbeam.pipeline.config.schema import Config

DONE, FAILED, USAGE, INCOMPLETE, BUSY = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None, *, version: str) -> int:
    """Run the command and return its exit status; `layerbeam run --help` lists them."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbose = "-v" in given or "--verbose" in given
    with contextlib.nullcontext() if verbose else only_main_thread_prints():
        return _main(given, version, verbose)


def _main(given: list[str], version: str, verbose: bool) -> int:
    try:
        escaped = escape_negative_layers(given) if given[:1] == ["extract-features"] else given
        options, beam_arguments = make_parser(version).parse_known_args(escaped)
        quiet_logs(options.verbose)
        return COMMANDS[options.command](options, beam_arguments)
    except UsageError as error:
        echo_error(str(error))
        return USAGE
    except BusyError as error:
        echo_error(str(error))
        return BUSY
    except InterruptedRunError as error:
        return 128 + error.number
    except Exception as error:
        if verbose:
            raise
        echo_error(f"failed: {root_cause(error)}")
        if options.command in ("run", "extract-features"):
            echo_error("completed blocks are kept; rerun the same command to resume (-v shows the whole error)")
        else:
            echo_error("-v shows the whole error")
        return FAILED


def _reach(paths: Iterable[str], beam_arguments: Iterable[str]) -> None:
    """Configure Beam's file systems. Raises UsageError for a path that they cannot reach."""
    from layerbeam.transforms import storage

    storage.set_options(beam_arguments)
    for path in paths:
        reason = storage.unsupported_reason(path)
        if reason is not None:
            raise UsageError(f"{path}: {reason}")


def _reach_stores(options: argparse.Namespace, beam_arguments: list[str], *paths: str) -> None:
    """Configure Beam's file systems if options are given or a path is in a store; Beam's import takes 0.9 s."""
    if beam_arguments or any(map(_is_in_store, paths)):
        _reach(paths, _beam_arguments(options, {}, beam_arguments))


def _is_in_store(path: str) -> bool:
    return "://" in path and not path.lower().startswith(("https://", "http://", "hf://"))


def _run(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = _load_config(options)
    complete = _run_config(config, options, beam_arguments, runner=options.runner)
    _print_summary(options, config.output.path)
    return DONE if complete else INCOMPLETE


def _plan(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    started = time.perf_counter()
    config = _load_config(options)
    job, _ = _resolve(options, config, beam_arguments)
    from layerbeam.pipeline.cli.render_plan import print_plan
    from layerbeam.pipeline.plan.plan import Machines, make_plan, vcpus_of

    machines = None
    if options.machines or options.vcpus or options.price_per_hour is not None:
        vcpus = options.vcpus or vcpus_of(config.beam.get("machine_type"))
        machines = Machines(options.machines or 1, vcpus, options.price_per_hour)
    plan = make_plan(job, workers=options.workers, seed=options.seed, machines=machines, started=started)
    _print(options, plan, print_plan)
    return DONE


def _show(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _reach_stores(options, beam_arguments, options.output)
    _print_summary(options, options.output, rows=True)
    return DONE


def _verify(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _reach([options.output], _beam_arguments(options, {}, beam_arguments))  # the run's input may be in a store
    if options.checksums:
        from layerbeam.pipeline.cli.render_verdict import print_files_verdict
        from layerbeam.pipeline.output.integrity import verify_files

        files_verdict = verify_files(options.output)
        _print(options, files_verdict, print_files_verdict)
        return {"pass": DONE, "fail": FAILED}[files_verdict.result]
    from layerbeam.pipeline.cli.render_verdict import print_verdict
    from layerbeam.pipeline.verify.verify import verify

    verdict = verify(options.output, sample=options.sample, seed=options.seed)
    _print(options, verdict, print_verdict)
    return {"pass": DONE, "fail": FAILED, "cannot verify": INCOMPLETE}[verdict.result]


def _report(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _reach_stores(options, beam_arguments, options.output, *([options.to] if options.to else []))
    from layerbeam.pipeline.report.page import print_report_result, write_report

    result = write_report(
        options.output,
        words=options.word,
        color_by=options.color_by,
        sample=options.sample,
        seed=options.seed,
        to=options.to,
    )
    _print(options, result, print_report_result)
    return DONE


def _encoder(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.cli.inspect_encoder import describe_encoder, print_encoder

    if beam_arguments or _is_in_store(options.handle):
        _reach([], _beam_arguments(options, {}, beam_arguments))
    _print(options, describe_encoder(options.handle), print_encoder)
    return DONE


def _extract_features(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline import extract_features
    from layerbeam.pipeline.config import load
    from layerbeam.pipeline.output.lock import only_writer

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
        complete = _run_config(
            checked, options, beam_arguments, runner=None, extra_bytes_ratio=extract_features.EXTRA_BYTES_RATIO
        )
    except UsageError as error:
        message = str(error)
        for setting, argument in extract_features.ARGUMENTS.items():
            message = message.replace(f"{setting}: ", f"{argument}: ")
        raise UsageError(message) from None
    own = extract_features.own_folder(folder)
    with only_writer(own):
        documents = extract_features.assemble(folder, prune_missing=options.prune_missing)
    _print_summary(options, own, documents=documents)
    if not options.json:
        counts = ", ".join(f"{len(names):,} {what}" for what, names in documents.items() if names)
        print(f"{folder}: documents: {counts or 'none'}")
    return DONE if complete else INCOMPLETE


def _init(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.config import template

    _refuse_arguments(beam_arguments)
    template.write(options.config)
    echo(f"{options.config}: written; it reads {template.INPUT}. Next: layerbeam run {shlex.quote(options.config)}")
    return DONE


def _completion(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    import shtab

    _refuse_arguments(beam_arguments)
    parser = make_parser("")
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            kind = PATHS.get(str(action.metavar))
            if kind is not None:
                action.complete = getattr(shtab, kind)
    with _tolerate_closed_pipe():
        print(shtab.complete(parser, options.shell))
    return DONE


COMMANDS = {
    "run": _run,
    "plan": _plan,
    "show": _show,
    "verify": _verify,
    "report": _report,
    "encoder": _encoder,
    "extract-features": _extract_features,
    "init": _init,
    "completion": _completion,
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
    documents: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print what an output folder holds."""
    from layerbeam.pipeline.cli.render_summary import print_next, print_rows, print_summary
    from layerbeam.pipeline.output.summary import summarize

    summary = dataclasses.replace(summarize(output_path), documents=documents)
    _print(options, summary, print_summary, *([print_rows] if rows else []), print_next)


def _print(options: argparse.Namespace, result: Any, *printers: Callable[[Any], None]) -> None:
    """Print a result with `printers`, or as JSON with --json (by its `to_json` unless it is a dict)."""
    with _tolerate_closed_pipe():
        if options.json:
            print(json.dumps(result if isinstance(result, dict) else result.to_json(), indent=1))
            return
        for print_result in printers:
            print_result(result)


@contextlib.contextmanager
def _tolerate_closed_pipe() -> Iterator[None]:
    """Keeps the exit status when the reader of the output stops reading (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load_config(options: argparse.Namespace) -> Config:
    import yaml

    from layerbeam.pipeline.config import load

    overrides: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: is not of the form K=V, such as encoder.max_seq_length=64")
        try:
            overrides[key] = load.parse_yaml(value)
        except load.RepeatedKeyError as error:
            raise UsageError(f"--set {item}: {error}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(f"--set {item}: the value is not YAML") from error
    if options.input:
        overrides["input.files"] = options.input
    if options.output is not None:
        overrides["output.path"] = options.output
    return load.load(options.config, overrides)


def _run_config(
    config: Config,
    options: argparse.Namespace,
    beam_arguments: list[str],
    *,
    runner: str | None,
    extra_bytes_ratio: float = 0,
) -> bool:
    """Run a configuration; True if all of its input is embedded afterwards."""
    job, arguments = _resolve(options, config, beam_arguments)
    from layerbeam.pipeline.remote.submit import RemoteRun
    from layerbeam.pipeline.run.engines import LocalRunner, choose_runner
    from layerbeam.pipeline.run.run import LocalRun, Run

    chosen = choose_runner(
        arguments,
        runner or config.beam.get("runner"),
        config.output.path,
        workers=options.workers,
        processes=options.processes,
    )
    given = {
        "job": job,
        "force": options.force,
        "prune_missing": options.prune_missing,
        "verbose": options.verbose,
        "extra_bytes_ratio": extra_bytes_ratio,
    }
    run: Run = LocalRun(local=chosen, **given) if isinstance(chosen, LocalRunner) else RemoteRun(remote=chosen, **given)
    return run.run()


def _resolve(options: argparse.Namespace, config: Config, beam_arguments: list[str]) -> tuple[Job, list[str]]:
    """The job and Beam's options. Raises UsageError for settings that do not fit, and paths out of reach."""
    from layerbeam.pipeline.config.layers import open_for

    if _is_in_store(config.encoder.handle):
        _reach([], _beam_arguments(options, config.beam, beam_arguments))
    encoder = open_for(config)
    from layerbeam.pipeline.config.job import resolve
    from layerbeam.pipeline.remote import preflight

    preflight.check_hints(config)
    arguments = _beam_arguments(options, config.beam, beam_arguments)
    _reach([*config.input.files, config.output.path], arguments)
    return resolve(config, encoder), arguments


def _beam_arguments(options: argparse.Namespace, configured: Mapping[str, Any], given: list[str]) -> list[str]:
    """Beam's options from configuration and command line, as command-line arguments. UsageError for unknown ones."""
    from layerbeam.pipeline.cli import beam_options

    settings = {name: value for name, value in configured.items() if name != "runner"}
    beam_options.check_settings(settings)
    beam_options.check_arguments(given, options.own_options)
    return beam_options.as_arguments(settings) + given


def quiet_logs(verbose: bool) -> None:
    """Hide the logs of TensorFlow and Beam unless `verbose`; layerbeam prints what a person needs."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="%(name)s: %(message)s")
