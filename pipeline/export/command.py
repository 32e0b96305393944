"""`layerbeam export`."""

from __future__ import annotations

import argparse
from typing import Any

from layerbeam.pipeline.commands.arguments import (
    STORE_OPTIONS,
    add_json,
    add_number,
    add_outputs,
    add_verbose,
    one_or_all,
)
from layerbeam.pipeline.commands.file_systems import set_up_stores
from layerbeam.pipeline.commands.results import DONE, print_result
from layerbeam.pipeline.errors import UsageError

HELP = "write a view of a finished run into few large files, for other programs"
_FILE_BYTES = 512 << 20


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Write the rows of a view, in their order, into a few large Parquet files with row groups that readers can "
        "skip, or its vectors as arrays. The files get their place when all are whole."
    )
    command.epilog = f"Exit status: 0 done; 1 failed; 2 wrong usage, such as no finished run. {STORE_OPTIONS}"
    add_outputs(command)
    command.add_argument("--to", metavar="FOLDER", required=True, help="a folder on this machine, new or empty")
    command.add_argument("--view", metavar="NAME", help="the view; may be left out if there is one")
    command.add_argument(
        "--format",
        choices=("parquet", "npy", "safetensors"),
        default="parquet",
        help="parquet: all columns; npy, safetensors: the vectors as arrays; default: parquet",
    )
    add_number(command, "--files", "so many files (of npy for each column); default: one for each 512 MiB of the view")
    command.add_argument("--codes", action="store_true", help="vectors of dtype int8 as codes and scales, not float32")
    command.add_argument("--overwrite", action="store_true", help="replace what an earlier export wrote into FOLDER")
    add_json(command)
    add_verbose(command)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    set_up_stores(options, beam_arguments, *options.output)
    from layerbeam.pipeline.dataset.reader import open_run
    from layerbeam.pipeline.dataset.view import UnknownNameError
    from layerbeam.transforms import storage

    if not storage.is_local(options.to):
        raise UsageError(f"--to {options.to}: is in a store; name a folder on this machine, and copy it there")
    run = open_run(one_or_all(options.output))
    if options.view is None and len(run) > 1:
        raise UsageError(f"--view is missing: {run.path} has {', '.join(run)}")
    try:
        view = run.view(options.view or run.views[0])
        files = max(min(options.files or -(-view.entry["bytes"] // _FILE_BYTES), len(view)), 1)
        settings = {"codes": options.codes, "overwrite": options.overwrite}
        index = view.export(options.to, format=options.format, shards=files, **settings)
    except (UnknownNameError, FileExistsError) as error:
        raise UsageError(str(error).replace("overwrite an export", "give --overwrite to replace an export")) from error
    print_result(options, {"index": str(index), "view": view.name, "rows": len(view), "files": files}, _print_exported)
    return DONE


def _print_exported(done: dict[str, Any]) -> None:
    print(f"{done['view']}: {done['rows']:,} rows in {done['files']:,} files, listed in {done['index']}")
