"""The command. Nothing heavy is imported before it is needed: `--help` and a wrong configuration answer at once."""

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

if TYPE_CHECKING:
    from layerbeam.pipeline.config.job import Job
    from layerbeam.pipeline.config.schema import Config

DONE, FAILED, USAGE, INCOMPLETE, BUSY = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None, *, version: str) -> int:
    """Run the command and give its exit status, which `layerbeam run --help` lists."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbose = "-v" in given or "--verbose" in given
    try:
        shielded = escape_negative_layers(given) if given[:1] == ["extract-features"] else given
        options, beam_arguments = make_parser(version).parse_known_args(shielded)
        quiet_logs(options.verbose)
        commands = {
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
        return commands[options.command](options, beam_arguments)
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
        again = "what is committed stays: the same command goes on from there (-v shows more of the error)"
        echo_error(again if options.command in ("run", "extract-features") else "-v shows more of the error")
        return FAILED


def _is_elsewhere(path: str) -> bool:
    """Whether it lies on one of Beam's file systems, or should: told without Beam, whose import takes 0.9 s."""
    return "://" in path and not path.lower().startswith(("https://", "http://", "hf://"))


def _reach(paths: Iterable[str], beam_arguments: Iterable[str]) -> None:
    """Give Beam's file systems their options. UsageError for a path that they cannot reach."""
    from layerbeam.transforms import storage

    storage.set_options(beam_arguments)
    for path in paths:
        unsupported_reason = storage.unsupported_reason(path)
        if unsupported_reason is not None:
            raise UsageError(f"{path}: {unsupported_reason}")


def _verify(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _reach([options.output], _beam_arguments(options, {}, beam_arguments))  # its input may lie elsewhere, too
    if options.checksums:
        return _verify_files(options)
    from layerbeam.pipeline.cli.render_verdict import print_verdict
    from layerbeam.pipeline.verify.verify import verify

    verdict = verify(options.output, sample=options.sample, seed=options.seed)
    _print(options, verdict, print_verdict)
    return {"pass": DONE, "fail": FAILED, "cannot verify": INCOMPLETE}[verdict.result]


def _verify_files(options: argparse.Namespace) -> int:
    from layerbeam.pipeline.cli.render_verdict import print_files_verdict
    from layerbeam.pipeline.output.integrity import verify_files

    verdict = verify_files(options.output)
    _print(options, verdict, print_files_verdict)
    return {"pass": DONE, "fail": FAILED}[verdict.result]


def _report(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    paths = [options.output, *([options.to] if options.to else [])]
    if beam_arguments or any(map(_is_elsewhere, paths)):
        _reach(paths, _beam_arguments(options, {}, beam_arguments))
    from layerbeam.pipeline.report.write import print_written, write_report

    written = write_report(
        options.output,
        words=options.word,
        color=options.color_by,
        sample=options.sample,
        seed=options.seed,
        to=options.to,
    )
    _print(options, written, print_written)
    return DONE


def _encoder(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline.cli.inspect_encoder import describe_encoder, print_encoder

    if beam_arguments or _is_elsewhere(options.handle):
        _reach([], _beam_arguments(options, {}, beam_arguments))
    what = describe_encoder(options.handle)
    _print(options, what, print_encoder)
    return DONE


def _show(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    if beam_arguments or _is_elsewhere(options.output):
        _reach([options.output], _beam_arguments(options, {}, beam_arguments))
    _print_summary(options, options.output, rows=True)
    return DONE


def _print_summary(
    options: argparse.Namespace,
    output_path: str,
    *,
    rows: bool = False,
    documents: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print what is in an output folder."""
    from layerbeam.pipeline.cli.render_summary import print_next, print_rows, print_summary
    from layerbeam.pipeline.output.summary import summarize

    summary = dataclasses.replace(summarize(output_path), documents=documents)
    _print(options, summary, print_summary, *([print_rows] if rows else []), print_next)


def _print(options: argparse.Namespace, what: Any, *printers: Callable[[Any], None]) -> None:
    """By `printers`, or with --json for a program; then a value that is no plain one has `to_json`."""
    with _reader_may_go():
        if options.json:
            print(json.dumps(what if isinstance(what, dict) else what.to_json(), indent=1))
            return
        for print_what in printers:
            print_what(what)


@contextlib.contextmanager
def _reader_may_go() -> Iterator[None]:
    """Whoever reads what is printed may go before its end (`| head`): the exit status stays."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load_config(options: argparse.Namespace) -> Config:
    import yaml

    from layerbeam.pipeline.config import schema

    overrides: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: is not of the form K=V, such as encoder.max_seq_length=64")
        try:
            overrides[key] = schema.parse_yaml(value)
        except schema.RepeatedKeyError as error:
            raise UsageError(f"--set {item}: {error}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(f"--set {item}: the value is not YAML") from error
    if options.input:
        overrides["input.files"] = options.input
    if options.output is not None:
        overrides["output.path"] = options.output
    return schema.load(options.config, overrides)


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


def _extract_features(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from layerbeam.pipeline import extract_features
    from layerbeam.pipeline.config import schema
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
        checked = schema.check(settings, source="extract-features")
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

    _no_more(beam_arguments)
    template.write(options.config)
    echo(f"{options.config}: written; it reads {template.INPUT}. Next: layerbeam run {shlex.quote(options.config)}")
    return DONE


def _completion(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    import shtab

    _no_more(beam_arguments)
    parser = make_parser("")
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            kind = PATHS.get(str(action.metavar))
            if kind is not None:
                action.complete = getattr(shtab, kind)
    with _reader_may_go():
        print(shtab.complete(parser, options.shell))
    return DONE


def _no_more(arguments: list[str]) -> None:
    """UsageError where arguments are left: this command has nothing to do with Beam."""
    if arguments:
        raise UsageError(f"{' '.join(arguments)}: unknown here (see `layerbeam --help`)")


def _run_config(
    config: Config,
    options: argparse.Namespace,
    beam_arguments: list[str],
    *,
    runner: str | None,
    extra_bytes_ratio: float = 0,
) -> bool:
    """Run a configuration here; whether all of its input is embedded."""
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
    return run()


def _resolve(options: argparse.Namespace, config: Config, beam_arguments: list[str]) -> tuple[Job, list[str]]:
    """(the job, Beam's options). UsageError for what does not fit together, and for paths out of reach."""
    from layerbeam.pipeline.config.layers import open_for

    if _is_elsewhere(config.encoder.handle):
        _reach([], _beam_arguments(options, config.beam, beam_arguments))
    encoder = open_for(config)
    from layerbeam.pipeline.config.job import resolve
    from layerbeam.pipeline.remote import preflight

    preflight.check_hints(config)
    arguments = _beam_arguments(options, config.beam, beam_arguments)
    _reach([*config.input.files, config.output.path], arguments)
    return resolve(config, encoder), arguments


def _beam_arguments(options: argparse.Namespace, configured: Mapping[str, Any], given: list[str]) -> list[str]:
    """Beam's options of configuration and command line, as its command line has them. UsageError for unknown ones."""
    from layerbeam.pipeline.cli import beam_options

    settings = {name: value for name, value in configured.items() if name != "runner"}
    beam_options.check_settings(settings)
    beam_options.check_arguments(given, options.own_options)
    return beam_options.as_arguments(settings) + given


def quiet_logs(verbose: bool) -> None:
    """Of TensorFlow and Beam, unless `verbose`: what a person needs to know is said by us."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="%(name)s: %(message)s")
