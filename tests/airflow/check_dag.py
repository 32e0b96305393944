"""Runs configs/schedule/airflow_dag.py with real Airflow and its Google provider: `make test-airflow`.

Airflow imports the DAG, renders it for a day and runs it with its own database. A server on a loopback address stands
in for Google: it accepts the launch (REST), reports the job's state (gRPC, requested by the triggerer) and whether
_SUCCESS exists (Cloud Storage).
"""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DAG_FILE = ROOT / "configs" / "schedule" / "airflow_dag.py"
METADATA = ROOT / "configs" / "dataflow" / "metadata.json"
JOB = {"id": "2026-01-02_02_30_00-1", "projectId": "my-project", "location": "us-central1"}
LAUNCH = "/v1b3/projects/my-project/locations/us-central1/flexTemplates:launch"
SUCCESS = "/storage/v1/b/my-bucket/o/nightly%2Fdt%3D2026-01-01%2F_SUCCESS"


class Google(http.server.ThreadingHTTPServer):
    """`state`: how the job ends; `complete`: whether the run wrote its marker; `calls`: (method, path, body)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.state, self.complete = "JOB_STATE_DONE", True
        self.calls: list[tuple[str, str, Any]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def launches(self) -> list[Any]:
        return [body for method, path, body in self.calls if (method, path) == ("POST", LAUNCH)]


class Answer(http.server.BaseHTTPRequestHandler):
    server: Google

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(body, {"job": JOB} if self._path() == LAUNCH else None)

    def do_GET(self) -> None:
        job = JOB | {"currentState": self.server.state, "type": "JOB_TYPE_BATCH"}
        objects = {SUCCESS: {"name": "_SUCCESS", "bucket": "my-bucket"} if self.server.complete else None}
        job_path = f"/v1b3/projects/my-project/locations/us-central1/jobs/{JOB['id']}"
        self._answer(None, (objects | {job_path: job}).get(self._path()))

    def _path(self) -> str:
        return self.path.split("?")[0]

    def _answer(self, body: Any, answer: Any) -> None:
        self.server.calls.append((self.command, self._path(), body))
        encoded = json.dumps(answer or {}).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def google() -> Iterator[Google]:
    """The stand-in for Google in Airflow's hooks and in Cloud Storage's client."""
    import grpc
    from airflow.providers.google.cloud.hooks.dataflow import AsyncDataflowHook, DataflowHook
    from google.api_core.client_options import ClientOptions
    from google.cloud import dataflow_v1beta3 as dataflow
    from google.cloud.dataflow_v1beta3.services.jobs_v1_beta3.transports import JobsV1Beta3GrpcAsyncIOTransport

    server = Google()

    def get_job(request: Any, _: Any) -> Any:
        assert (request.project_id, request.job_id) == (JOB["projectId"], JOB["id"])
        return dataflow.Job(id=request.job_id, current_state=dataflow.JobState[server.state])

    jobs = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        get_job, dataflow.GetJobRequest.deserialize, lambda job: dataflow.Job.serialize(job)
    )
    jobs.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("google.dataflow.v1beta3.JobsV1Beta3", {"GetJob": handler})]
    )
    jobs_port = jobs.add_insecure_port("127.0.0.1:0")
    jobs.start()

    async def initialize_client(self: Any, client: Any) -> Any:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{jobs_port}")
        return client(transport=JobsV1Beta3GrpcAsyncIOTransport(channel=channel))

    DataflowHook.get_client_options = lambda self, *_: ClientOptions(api_endpoint=server.address)
    AsyncDataflowHook.initialize_client = initialize_client
    os.environ["STORAGE_EMULATOR_HOST"] = server.address
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    jobs.stop(None)


def load() -> Any:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(DAG_FILE))
    assert bag.import_errors == {}, bag.import_errors
    assert bag.captured_warnings == {}, bag.captured_warnings
    assert list(bag.dags) == ["layerbeam"]
    return bag.dags["layerbeam"]


def check_schedule() -> None:
    """The run after midnight embeds the day before, and there are retries."""
    from airflow.timetables.base import TimeRestriction

    dag = load()
    timetable = dag.timetable
    from airflow.serialization.encoders import coerce_to_core_timetable

    restriction = TimeRestriction(earliest=dag.start_date, latest=None, catchup=True)
    first = coerce_to_core_timetable(timetable).next_dagrun_info(
        last_automated_data_interval=None, restriction=restriction
    )
    assert str(first.logical_date) == "2026-01-01 02:30:00+00:00", first
    assert str(first.run_after) == "2026-01-02 02:30:00+00:00", first
    assert (dag.get_task("embed").retries, dag.get_task("complete").retries) == (2, 0)
    assert (dag.catchup, dag.max_active_runs) == (False, 1)


def run_day() -> Any:
    """Airflow's own run of the DAG for the first of January, without retries; returns the states of its tasks."""
    dag = load()
    dag.get_task("embed").retries = 0
    dag.get_task("complete").timeout = 1
    dag.get_task("complete").poke_interval = 0.1
    run = dag.test(logical_date=datetime(2026, 1, 1, 2, 30, tzinfo=UTC))
    return {instance.task_id: str(instance.state) for instance in run.get_task_instances()}


def check_launch(body: Any) -> None:
    """Dataflow gets a valid request of its API, with parameters that the template's metadata declares and allows."""
    from google.cloud import dataflow_v1beta3 as dataflow
    from google.protobuf import json_format

    # A name that the API does not have raises an error here.
    json_format.ParseDict(body, dataflow.LaunchFlexTemplateRequest.pb(dataflow.LaunchFlexTemplateRequest()))
    launch = body["launchParameter"]
    name = launch.pop("jobName")
    assert re.fullmatch(r"layerbeam-20260101-[0-9a-f]{8}", name), name
    parameters = {
        "config": "gs://my-bucket/configs/dataflow-cpu.yaml",
        "input": "gs://my-bucket/logs/2026-01-01/*.txt",
        "output": "gs://my-bucket/nightly/dt=2026-01-01",
        "sdk_container_image": "us-central1-docker.pkg.dev/my-project/layerbeam/layerbeam:0.1.0-cpu",
    }
    assert launch == {
        "containerSpecGcsPath": "gs://my-bucket/templates/layerbeam-cpu.json",
        "parameters": parameters,
        "environment": {
            "serviceAccountEmail": "layerbeam@my-project.iam.gserviceaccount.com",
            "tempLocation": "gs://my-bucket/temp",
            "stagingLocation": "gs://my-bucket/staging",
            "maxWorkers": 20,
            "additionalUserLabels": {"day": "2026-01-01"},
        },
    }, launch
    known = {parameter["name"]: parameter for parameter in json.loads(METADATA.read_text())["parameters"]}
    assert parameters.keys() <= known.keys()
    assert {name for name, parameter in known.items() if not parameter["isOptional"]} <= parameters.keys()
    for name, value in parameters.items():
        assert all(re.fullmatch(regex, value) for regex in known[name]["regexes"]), (name, value)


def main() -> None:
    settings = {
        "AIRFLOW_HOME": tempfile.mkdtemp(prefix="airflow-"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAG_FILE.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL",
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(
            {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": "my-project"}}
        ),
        "NO_GCE_CHECK": "true",
    }
    os.environ.update(settings)
    airflow = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(airflow, check=True, stdout=subprocess.DEVNULL)
    logging.disable(logging.ERROR)
    check_schedule()
    with google() as server:
        states = run_day()
        assert states == {"embed": "success", "complete": "success"}, states
        (body,) = server.launches()
        check_launch(body)

        server.complete = False
        states = run_day()
        assert states == {"embed": "success", "complete": "failed"}, states

        server.state = "JOB_STATE_FAILED"
        states = run_day()
        assert states == {"embed": "failed", "complete": "upstream_failed"}, states
        names = [body["launchParameter"]["jobName"] for body in server.launches()[1:]]
        assert len(set(names)) == 2, names
    print("the DAG works under Airflow")


if __name__ == "__main__":
    main()
