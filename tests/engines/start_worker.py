"""Starts Beam's worker for an engine on this machine, as `boot`, the entry point of Beam's images, does.

It fetches no staged files: the worker uses the packages of this Python.
"""

from __future__ import annotations

import argparse
import os
import threading
import time

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc, endpoints_pb2
from google.protobuf import json_format, text_format


def _end_with_parent(parent: int) -> None:
    """End this process as soon as the engine's process ends, which may have had no time to stop its workers."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def main() -> None:
    # A worker pool passes all arguments; the PROCESS environment of job servers passes two and returns the others on
    # request.
    endpoints = ("logging_endpoint", "control_endpoint")
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    for name in endpoints:
        parser.add_argument(f"--{name}")
    given, _ = parser.parse_known_args()

    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    with grpc.insecure_channel(given.provision_endpoint) as channel:
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        info = service.GetProvisionInfo(request, metadata=[("worker_id", given.id)]).info
    for name in endpoints:
        url = getattr(given, name) or getattr(info, name).url
        variable = name.replace("endpoint", "api_service_descriptor").upper()
        os.environ[variable] = text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))
    os.environ["WORKER_ID"] = given.id
    os.environ["PIPELINE_OPTIONS"] = json_format.MessageToJson(info.pipeline_options)
    os.environ["RUNNER_CAPABILITIES"] = " ".join(info.runner_capabilities)

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main([])


if __name__ == "__main__":
    main()
