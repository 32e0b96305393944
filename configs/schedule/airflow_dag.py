"""Every night the texts of the day before, on Dataflow: for Airflow's DAG folder. The guide is docs/dataflow.md.

Needs Airflow 3 with the providers google and apache-beam, and the connection google_cloud_default with a service
account that may launch Dataflow jobs and read the bucket.
"""

from datetime import datetime, timedelta

from airflow.providers.google.cloud.operators.dataflow import DataflowStartFlexTemplateOperator
from airflow.providers.google.cloud.sensors.gcs import GCSObjectExistenceSensor
from airflow.sdk import DAG, CronDataIntervalTimetable

PROJECT = "my-project"
REGION = "us-central1"
BUCKET = "my-bucket"
IMAGE = "us-central1-docker.pkg.dev/my-project/layerbeam/layerbeam:0.1.0-cpu"

with DAG(
    "layerbeam",
    # An interval, so that {{ ds }} is the day that has ended; a plain cron string gives Airflow 3 the day of the start.
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    # A job that is started again goes on where the one before stopped: what is committed is not encoded twice.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
):
    embed = DataflowStartFlexTemplateOperator(
        task_id="embed",
        project_id=PROJECT,
        location=REGION,
        deferrable=True,  # the triggerer waits for the job's end; no worker is held
        body={
            "launchParameter": {
                "containerSpecGcsPath": f"gs://{BUCKET}/templates/layerbeam-cpu.json",
                "jobName": "layerbeam-{{ ds_nodash }}",  # the operator appends a suffix: each try has a name of its own
                "parameters": {
                    "config": f"gs://{BUCKET}/configs/dataflow-cpu.yaml",
                    "input": f"gs://{BUCKET}/logs/{{{{ ds }}}}/*.txt",
                    "output": f"gs://{BUCKET}/nightly/dt={{{{ ds }}}}",
                    "sdk_container_image": IMAGE,
                },
                "environment": {
                    "serviceAccountEmail": f"layerbeam@{PROJECT}.iam.gserviceaccount.com",
                    "tempLocation": f"gs://{BUCKET}/temp",
                    "stagingLocation": f"gs://{BUCKET}/staging",
                    "maxWorkers": 20,
                    "additionalUserLabels": {"day": "{{ ds }}"},
                },
            }
        },
    )
    # A job may end well and the run be incomplete: files were skipped, or more than max_reject_rate
    # rejected. A retry does not fix that.
    complete = GCSObjectExistenceSensor(
        task_id="complete",
        bucket=BUCKET,
        object="nightly/dt={{ ds }}/_SUCCESS",
        timeout=60,
        poke_interval=20,
        retries=0,
    )
    embed >> complete
