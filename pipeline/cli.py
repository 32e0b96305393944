"""The command. Nothing heavy is imported before it is needed: `--help` and a wrong configuration answer at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.errors import BusyError, InterruptedRunError, UsageError, cause, complain, did_you_mean, say

if TYPE_CHECKING:
    from pipeline.config import Config

DONE, FAILED, USAGE, INCOMPLETE, BUSY = 0, 1, 2, 3, 4
SHELLS = ("bash", "zsh", "fish")
OWN_OPTIONS = (
    "--input",
    "--output",
    "--set",
    "--workers",
    "--processes",
    "--runner",
    "--force",
    "--remove-gone",
    "--json",
    "--verbose",
)


# What a shell completes after arguments of these names.
_PATHS = {
    "CONFIG": "FILE",
    "FILE": "FILE",
    "OUT": "DIRECTORY",
    "PATH": "DIRECTORY",
    "HANDLE": "DIRECTORY",
    "INPUT_FOLDER": "DIRECTORY",
    "OUTPUT_FOLDER": "DIRECTORY",
    "BERT_MODEL_DIR": "DIRECTORY",
}
_OPTIONS_OF_STORES = "Options of Beam's file systems may follow, for example --s3_region_name=..."


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)$", message)
        if wrong is not None:
            commands = re.findall(r"[\w-]+", wrong[2])
            hint = did_you_mean(wrong[1], commands) or f"; there are {', '.join(commands)}"
            raise UsageError(f"{wrong[1]}: no such command{hint}")
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def make_parser(version: str) -> argparse.ArgumentParser:
    """The command line, with all that `--help` says of it."""
    parser = _Parser(prog="layerbeam", description="The vectors inside BERT, for whole corpora.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"layerbeam {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="run a configuration; started again, it goes on where it stopped",
        description="Run a configuration. Started again, it goes on where it stopped.",
        epilog="Any of Beam's own options may follow, for example --temp_location=... "
        "Exit status: 0 done; 1 failed; 2 wrong configuration or usage; 3 ended, but files were left out or too many "
        "records rejected; 4 another run is at work in the folder; 130, 143 interrupted.",
        allow_abbrev=False,
    )
    _add_config(run)
    run.add_argument(
        "--workers", metavar="N", type=_positive, help="blocks in hand at once; default: one for each core"
    )
    _add_processes(run)
    run.add_argument(
        "--runner", metavar="NAME", help="local, DataflowRunner, FlinkRunner, SparkRunner, PrismRunner, PortableRunner"
    )
    run.add_argument("--force", action="store_true", help="start although the disk looks too small")
    run.add_argument("--remove-gone", action="store_true", help="delete the rows of input files that are gone")
    run.add_argument("--json", action="store_true", help="the closing summary as JSON")
    run.add_argument("-v", "--verbose", action="store_true", help="what TensorFlow and Beam log, and tracebacks")

    plan = commands.add_parser(
        "plan",
        help="what a run will read, write, take and cost, from a sample, before it starts",
        description="Read a sample of the input and say what a run will write, take and cost. Nothing is written.",
        epilog=_OPTIONS_OF_STORES,
        allow_abbrev=False,
    )
    _add_config(plan)
    plan.add_argument("--workers", metavar="N", type=_positive, help="as the run will have; default: one for each core")
    plan.add_argument("--machines", metavar="N", type=_positive, help="of Dataflow: say the hours there, too")
    plan.add_argument(
        "--vcpus",
        metavar="N",
        type=_positive,
        help="of each machine; default: as beam.machine_type says, else 1",
    )
    plan.add_argument("--price-per-hour", metavar="P", type=_price, help="of a machine: say the cost, too")
    plan.add_argument(
        "--seed", metavar="S", type=_natural, default=0, help="another seed draws another sample; default: 0"
    )
    plan.add_argument("--json", action="store_true", help="as JSON")
    plan.add_argument("-v", "--verbose", action="store_true", help="what TensorFlow and Beam log, and tracebacks")

    show = commands.add_parser(
        "show", help="what is in an output folder, of a finished run or an unfinished one", epilog=_OPTIONS_OF_STORES
    )
    show.add_argument("output", metavar="OUT", help="the output folder")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.add_argument("-v", "--verbose", action="store_true", help="tracebacks")

    verify = commands.add_parser(
        "verify",
        help="compare rows of a finished run with the plain computation",
        description="Draw texts of a finished run, compute each anew, alone, by another path, and compare all views.",
        epilog="Exit status: 0 all agree; 1 a difference, or rows missing or doubled; 3 some of the input is gone or "
        "has changed, and cannot be verified. " + _OPTIONS_OF_STORES,
    )
    verify.add_argument("output", metavar="OUT", help="the output folder")
    verify.add_argument("--sample", metavar="N", type=_positive, default=100, help="texts to draw; default: 100")
    verify.add_argument(
        "--seed", metavar="S", type=_natural, default=0, help="another seed draws other texts; default: 0"
    )
    verify.add_argument(
        "--files",
        action="store_true",
        help="instead: every byte of every file against its recorded SHA-256, without encoder and input; the next run "
        "makes anew what differs",
    )
    verify.add_argument("--json", action="store_true", help="as JSON")
    verify.add_argument("-v", "--verbose", action="store_true", help="what TensorFlow logs, and tracebacks")

    report = commands.add_parser(
        "report",
        help="a page that shows a run: lengths, rejects, layers, projections, words over the layers, neighbours",
        description="Write one HTML page that shows a run, finished or not, with everything it needs in it.",
        epilog=_OPTIONS_OF_STORES,
    )
    report.add_argument("output", metavar="OUT", help="the output folder")
    report.add_argument(
        "--word", metavar="W", action="append", default=[], help="show it in every layer; may be given again"
    )
    report.add_argument(
        "--color", metavar="FIELD", help="colour texts by this column, such as a kept field; default: file"
    )
    report.add_argument(
        "--sample", metavar="N", type=_positive, default=20_000, help="rows to draw of each view; default: 20,000"
    )
    report.add_argument("--seed", metavar="S", type=_natural, default=0, help="another seed draws others; default: 0")
    report.add_argument("--to", metavar="FILE", help="instead of OUT/report.html")
    report.add_argument("--json", action="store_true", help="the page's figures as JSON")
    report.add_argument("-v", "--verbose", action="store_true", help="tracebacks")

    encoder = commands.add_parser(
        "encoder", help="what an encoder is: source, layers, casing, GELU, fingerprint", epilog=_OPTIONS_OF_STORES
    )
    encoder.add_argument("handle", metavar="HANDLE", help="as encoder.handle in a configuration")
    encoder.add_argument("--json", action="store_true", help="as JSON")
    encoder.add_argument("-v", "--verbose", action="store_true", help="what TensorFlow logs, and tracebacks")

    extract = commands.add_parser(
        "extract-features",
        help="a folder of documents to JSON Lines, as google-research's extract_features.py writes them",
        description="Write <name>.jsonl for each document in a folder and below it, a line of JSON for each of its "
        "lines, as google-research's extract_features.py does. Started again, it does what is new.",
        epilog="Exit statuses as of `layerbeam run`.",
        allow_abbrev=False,
    )
    extract.add_argument("input_folder", metavar="INPUT_FOLDER", help="documents of plain text, also .gz, .bz2, .zst")
    extract.add_argument("output_folder", metavar="OUTPUT_FOLDER", help="made where there is none")
    extract.add_argument(
        "layers",
        metavar="LAYERS",
        type=_layers,
        help="such as -1,-2,-3,-4; -1 is the last block, 0 the first (as there, not as in `run`)",
    )
    extract.add_argument("model", metavar="BERT_MODEL_DIR", help="as encoder.handle in a configuration")
    extract.add_argument(
        "max_seq_length", metavar="MAX_SEQUENCE_LENGTH", type=_positive, help="tokens, [CLS] and [SEP] included"
    )
    extract.add_argument(
        "batch_size", metavar="BATCH_SIZE", type=_positive, help="texts of full length in one batch; shorter: more"
    )
    extract.add_argument("--sentences", action="store_true", help="a line of JSON for each sentence")
    extract.add_argument("--workers", metavar="N", type=_positive, help="blocks in hand at once; default: one per core")
    _add_processes(extract)
    extract.add_argument("--force", action="store_true", help="start although the disk looks too small")
    extract.add_argument(
        "--remove-gone", action="store_true", help="delete what was written of documents that are gone"
    )
    extract.add_argument("--json", action="store_true", help="the closing summary as JSON")
    extract.add_argument("-v", "--verbose", action="store_true", help="what TensorFlow and Beam log, and tracebacks")

    init = commands.add_parser(
        "init",
        help="write a configuration to begin with, every setting explained in it",
        description="Write a configuration to begin with, every setting explained in it. Nothing is written over.",
    )
    init.add_argument(
        "config", metavar="FILE", nargs="?", default="layerbeam.yaml", help="default: layerbeam.yaml, in this folder"
    )
    init.add_argument("-v", "--verbose", action="store_true", help="tracebacks")

    completion = commands.add_parser(
        "completion",
        help="print what completes this command in a shell",
        description="Print a script that completes commands, options and paths in a shell.",
        epilog='For this session: eval "$(layerbeam completion bash)", the same in zsh; layerbeam completion fish | '
        "source. For every session put that line into ~/.bashrc, ~/.zshrc (after compinit) or "
        "~/.config/fish/config.fish.",
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    completion.add_argument("-v", "--verbose", action="store_true", help="tracebacks")
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="CONFIG", help="a YAML file")
    command.add_argument("--input", metavar="GLOB", action="append", help="instead of input.files; may be given again")
    command.add_argument("--output", metavar="PATH", help="instead of output.path")
    command.add_argument(
        "--set", metavar="K=V", action="append", default=[], help="any setting: encoder.max_seq_length=64"
    )


def _add_processes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--processes",
        metavar="N",
        type=_positive,
        help="worker processes that share the workers, each with an encoder of its own; default: threads in this one",
    )


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


def _positive(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no price such as 0.38")
    return price


def _layers(text: str) -> list[int]:
    text = text.strip()
    if not re.fullmatch(r"-?\d+(\s*,\s*-?\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of layers such as -1,-2,-3,-4")
    return [int(layer) for layer in text.split(",")]


def _shield_layers(arguments: list[str]) -> list[str]:
    """`-1,-2` looks like an option to argparse, ` -1,-2` does not."""
    return [f" {argument}" if re.match(r"-\d", argument) else argument for argument in arguments]


def main(arguments: Sequence[str] | None = None, *, version: str) -> int:
    """Run the command and give its exit status, which `layerbeam run --help` lists."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbose = "-v" in given or "--verbose" in given
    try:
        shielded = _shield_layers(given) if given[:1] == ["extract-features"] else given
        options, beam_arguments = make_parser(version).parse_known_args(shielded)
        quiet_logs(options.verbose)
        commands = {
            "run": _run,
            "plan": _plan,
            "show": _show,
            "verify": _verify,
            "report": _write_report,
            "encoder": _encoder,
            "extract-features": _extract_features,
            "init": _init,
            "completion": _completion,
        }
        return commands[options.command](options, beam_arguments)
    except UsageError as error:
        complain(str(error))
        return USAGE
    except BusyError as error:
        complain(str(error))
        return BUSY
    except InterruptedRunError as error:
        return 128 + error.number
    except Exception as error:
        if verbose:
            raise
        complain(f"failed: {cause(error)}")
        again = "what is committed stays: the same command goes on from there (-v shows more of the error)"
        complain(again if options.command in ("run", "extract-features") else "-v shows more of the error")
        return FAILED


def _is_elsewhere(path: str) -> bool:
    """Whether it lies on one of Beam's file systems, or should: told without Beam, whose import takes 0.9 s."""
    return "://" in path and not path.lower().startswith(("https://", "http://", "hf://"))


def _reach(paths: Iterable[str], beam_arguments: Iterable[str]) -> None:
    """Give Beam's file systems their options. UsageError for a path that they cannot reach."""
    from transforms import filesystem

    filesystem.set_options(beam_arguments)
    for path in paths:
        why_not = filesystem.why_not(path)
        if why_not is not None:
            raise UsageError(f"{path}: {why_not}")


def _verify(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    _reach([options.output], _beam_arguments({}, beam_arguments))  # its input may lie elsewhere, too
    if options.files:
        return _verify_files(options)
    from pipeline.verify import print_verdict, verify

    verdict = verify(options.output, sample=options.sample, seed=options.seed)
    with _reader_may_go():
        if options.json:
            print(json.dumps(verdict.to_json(), indent=1))
        else:
            print_verdict(verdict)
    return {"pass": DONE, "fail": FAILED, "cannot verify": INCOMPLETE}[verdict.result]


def _verify_files(options: argparse.Namespace) -> int:
    from pipeline.check_files import print_files_verdict, verify_files

    verdict = verify_files(options.output)
    with _reader_may_go():
        if options.json:
            print(json.dumps(verdict.to_json(), indent=1))
        else:
            print_files_verdict(verdict)
    return {"pass": DONE, "fail": FAILED}[verdict.result]


def _write_report(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    paths = [options.output, *([options.to] if options.to else [])]
    if beam_arguments or any(map(_is_elsewhere, paths)):
        _reach(paths, _beam_arguments({}, beam_arguments))
    from pipeline.report.write import print_written, write_report

    written = write_report(
        options.output,
        words=options.word,
        color=options.color,
        sample=options.sample,
        seed=options.seed,
        to=options.to,
    )
    with _reader_may_go():
        if options.json:
            print(json.dumps(written.to_json(), indent=1))
        else:
            print_written(written)
    return DONE


def _encoder(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from pipeline.describe import describe_encoder, print_encoder

    if beam_arguments or _is_elsewhere(options.handle):
        _reach([], _beam_arguments({}, beam_arguments))
    what = describe_encoder(options.handle)
    with _reader_may_go():
        if options.json:
            print(json.dumps(what, indent=1))
        else:
            print_encoder(what)
    return DONE


def _show(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    if beam_arguments or _is_elsewhere(options.output):
        _reach([options.output], _beam_arguments({}, beam_arguments))
    _report(options.output, as_json=options.json, rows=True)
    return DONE


def _report(output_path: str, *, as_json: bool, rows: bool = False, more: Mapping[str, Any] | None = None) -> None:
    """Print what is in an output folder."""
    from pipeline import summary

    what = summary.summarize(output_path) | dict(more or {})
    with _reader_may_go():
        if as_json:
            print(json.dumps(what, indent=1))
        else:
            summary.print_summary(what)
            if rows:
                summary.print_rows(what)


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

    from pipeline import config

    overrides: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: is not of the form K=V, such as encoder.max_seq_length=64")
        try:
            overrides[key] = config.parse_yaml(value)
        except config.RepeatedKeyError as error:
            raise UsageError(f"--set {item}: {error}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise UsageError(f"--set {item}: the value is not YAML") from error
    if options.input:
        overrides["input.files"] = options.input
    if options.output is not None:
        overrides["output.path"] = options.output
    return config.load(options.config, overrides)


def _run(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = _load_config(options)
    complete = _run_config(config, options, beam_arguments, runner=options.runner)
    _report(config.output.path, as_json=options.json)
    return DONE if complete else INCOMPLETE


def _plan(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    started = time.perf_counter()
    config = _load_config(options)
    from pipeline.fit import open_for

    arguments = _beam_arguments(config.beam, beam_arguments)
    _reach([*config.input.files, config.output.path], arguments)
    encoder = open_for(config)
    from pipeline.plan import Machines, make_plan, vcpus_of
    from pipeline.plan_text import print_plan
    from pipeline.resolve import resolve

    machines = None
    if options.machines or options.vcpus or options.price_per_hour is not None:
        vcpus = options.vcpus or vcpus_of(config.beam.get("machine_type"))
        machines = Machines(options.machines or 1, vcpus, options.price_per_hour)
    job = resolve(config, encoder)
    plan = make_plan(job, workers=options.workers, seed=options.seed, machines=machines, started=started)
    with _reader_may_go():
        if options.json:
            print(json.dumps(plan, indent=1))
        else:
            print_plan(plan)
    return DONE


def _extract_features(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from pipeline import config, extract_features
    from pipeline.lock import only_writer

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
        checked = config.check(settings, source="extract-features")
        extract_features.check_folders(options.input_folder, folder)
        complete = _run_config(
            checked, options, beam_arguments, runner=None, bytes_beside=extract_features.BYTES_BESIDE
        )
    except UsageError as error:
        message = str(error)
        for setting, argument in extract_features.ARGUMENTS.items():
            message = message.replace(f"{setting}: ", f"{argument}: ")
        raise UsageError(message) from None
    own = extract_features.own_folder(folder)
    with only_writer(own):
        documents = extract_features.assemble(folder, remove_gone=options.remove_gone)
    _report(own, as_json=options.json, more={"documents": documents})
    if not options.json:
        counts = ", ".join(f"{len(names):,} {what}" for what, names in documents.items() if names)
        print(f"{folder}: documents: {counts or 'none'}")
    return DONE if complete else INCOMPLETE


def _init(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    from pipeline import init_config

    _no_more(beam_arguments)
    init_config.write(options.config)
    say(f"{options.config}: written; it reads {init_config.INPUT}. Next: layerbeam run {shlex.quote(options.config)}")
    return DONE


def _completion(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    import shtab

    _no_more(beam_arguments)
    parser = make_parser("")
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            kind = _PATHS.get(str(action.metavar))
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
    bytes_beside: float = 0,
) -> bool:
    """Run a configuration here; whether all of its input is embedded."""
    from pipeline.fit import open_for

    if _is_elsewhere(config.encoder.handle):
        _reach([], _beam_arguments(config.beam, beam_arguments))
    encoder = open_for(config)
    from pipeline import preflight
    from pipeline.resolve import resolve
    from pipeline.run import LocalRun, Run
    from pipeline.runners import LocalRunner, choose_runner
    from pipeline.submit import RemoteRun

    preflight.check_hints(config)
    arguments = _beam_arguments(config.beam, beam_arguments)
    _reach([*config.input.files, config.output.path], arguments)
    chosen = choose_runner(
        arguments,
        runner or config.beam.get("runner"),
        config.output.path,
        workers=options.workers,
        processes=options.processes,
    )
    given = {
        "job": resolve(config, encoder),
        "force": options.force,
        "remove_gone": options.remove_gone,
        "verbose": options.verbose,
        "bytes_beside": bytes_beside,
    }
    run: Run = LocalRun(local=chosen, **given) if isinstance(chosen, LocalRunner) else RemoteRun(remote=chosen, **given)
    return run()


def _beam_arguments(configured: Mapping[str, Any], given: list[str]) -> list[str]:
    """Beam's options of configuration and command line, as its command line has them. UsageError for unknown ones."""
    from pipeline import beam_options

    settings = {name: value for name, value in configured.items() if name != "runner"}
    beam_options.check_settings(settings)
    beam_options.check_arguments(given, OWN_OPTIONS)
    return beam_options.as_arguments(settings) + given


def quiet_logs(verbose: bool) -> None:
    """Of TensorFlow and Beam, unless `verbose`: what a person needs to know is said by us."""
    logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL, format="%(name)s: %(message)s")
