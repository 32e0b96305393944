"""A launch of the Flex Template, with Beam's real client against the stand-in of tests/support/google_cloud.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from repository import DATA

from layerbeam.pipeline.cli import flex_template

pytest.importorskip("google_cloud", reason="the extra gcp is not installed")

JOB_OBJECT = "gs://tmp/staging/template_launches/2026-01-02_02_30_00-1/job_object"
# No registry listens at this address, so the image is not inspected.
IMAGE = "localhost:1/layerbeam:0.1.0-cpu"


def launch(google: Any, **parameters: str) -> int:
    """As Google's launcher starts it; the last option makes Beam's client use the stand-in."""
    options = {
        "runner": "DataflowRunner",
        "project": "proj",
        "region": "us-central1",
        "job_name": "layerbeam-20260101",
        "temp_location": "gs://tmp/temp",
        "staging_location": "gs://tmp/staging",
        "template_location": JOB_OBJECT,
        "labels": '{"goog-dataflow-provided-template-type": "flex"}',
        "max_num_workers": "20",
        "dataflow_endpoint": google.url,
    }
    return flex_template.main([f"--{name}={value}" for name, value in (parameters | options).items()])


@pytest.fixture
def config(google) -> str:
    google.put("gs://in/corpus/a.txt", b"the river\nits bank\n")
    google.upload(DATA / "hf_uncased", "gs://in/encoder")
    settings = {
        "input": {"files": ["gs://in/elsewhere/*.txt"]},
        "encoder": {"handle": "gs://in/encoder", "max_seq_length": 64},
        "views": {"lines": {"level": "text", "layers": [-1]}},
        "output": {"path": "gs://out/elsewhere"},
        "beam": {"machine_type": "n2-standard-8"},
    }
    google.put("gs://in/configs/c.yaml", yaml.safe_dump(settings).encode())
    return "gs://in/configs/c.yaml"


def test_launch_writes_job_file_and_submits_nothing(google, config, capsys):
    parameters = {"input": "gs://in/corpus/*.txt", "output": "gs://out/v", "set": "encoder.max_seq_length=32"}
    assert launch(google, config=config, sdk_container_image=IMAGE, **parameters) == 0
    assert google.jobs == []
    job = json.loads(google.get(JOB_OBJECT))
    assert job["name"] == "layerbeam-20260101"
    assert job["labels"]["goog-dataflow-provided-template-type"] == "flex"
    (pool,) = job["environment"]["workerPools"]
    assert pool["machineType"] == "n2-standard-8"
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 20
    assert [image["containerImage"] for image in pool["sdkHarnessContainerImages"]] == [IMAGE]
    # The settings of this launch, for a run that has not started.
    (log,) = [data for name, data in google.tree("gs://out/v").items() if name.startswith("_runs/")]
    assert json.loads(log)["state"] == "submitted"
    assert google.tree("gs://out/v").keys() & {"_SUCCESS", "manifest.json"} == set()
    assert google.tree("gs://out/elsewhere") == {}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"input": "gs://in/nothing/*.txt"}, "layerbeam: input.files: no file matches gs://in/nothing/*.txt\n"),
        ({"set": "encoder.max_seq_lenght=32"}, "did you mean `max_seq_length`?"),
        ({"sdk_container_image": ""}, "layerbeam: beam.sdk_container_image: is missing"),
    ],
)
def test_invalid_launch_writes_no_job_file(google, config, capsys, parameters, message):
    given = {"input": "gs://in/corpus/*.txt", "output": "gs://out/v", "sdk_container_image": IMAGE} | parameters
    assert launch(google, config=config, **given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not [name for name in google.tree("gs://tmp/staging") if name.endswith("job_object")]
    assert google.jobs == []
