"""`layerbeam plan`."""

from __future__ import annotations

import argparse

from layerbeam.pipeline.commands.arguments import STORE_OPTIONS, add_json, add_number, add_seed, add_verbose
from layerbeam.pipeline.commands.results import DONE, INCOMPLETE, USAGE, print_result
from layerbeam.pipeline.run.command import SHOWS, add_config, load_config, resolve

HELP = "estimate from a sample what a run will read, write and take"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Read a sample of the input and estimate what a run will write and take. Writes nothing."
    command.epilog = f"Exit status: the one with which a run would end, as far as the sample shows. {STORE_OPTIONS}"
    add_config(command)
    add_number(command, "--workers", "the number that the run will have; default: one per core")
    add_number(command, "--machines", "on Dataflow: estimate the hours there")
    add_number(command, "--vcpus", "of each machine; default: read from beam.machine_type, else 1")
    add_seed(command)
    add_json(command)
    add_verbose(command, SHOWS)


def execute(options: argparse.Namespace, beam_arguments: list[str]) -> int:
    config = load_config(options)
    job, _ = resolve(options, config, beam_arguments)
    from layerbeam.pipeline.plan.plan import Machines, make_plan
    from layerbeam.pipeline.plan.printing import print_plan
    from layerbeam.pipeline.remote.preflight import vcpus_of

    machines = None
    if options.machines or options.vcpus:
        vcpus = options.vcpus or vcpus_of(config.beam.get("machine_type"))
        machines = Machines(options.machines or 1, vcpus)
    plan = make_plan(job, workers=options.workers, seed=options.seed, machines=machines, began=options.began)
    print_result(options, plan, print_plan)
    return USAGE if plan.is_refused else INCOMPLETE if plan.problems else DONE
