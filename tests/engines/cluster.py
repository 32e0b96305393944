"""A cluster on this machine with two workers and a job server: Flink, Spark, or Beam's job service with a worker pool.

    python tests/engines/cluster.py flink [--heap-mb 1024] [--apart]

starts one, prints the options for `layerbeam run`, and waits for Ctrl-C. `make test-flink` and `make test-spark` fetch
the jars. `--apart` gives each of its processes a host of its own (hosts.py).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

from hosts import Hosts  # noqa: E402
from ports import free_port, is_open  # noqa: E402 - pytest's pythonpath is missing when this is started by hand

ENGINE_FILES = ROOT / ".engines"
# Below the engine's folder. Job servers upload all jars of their class path with each job, except those whose path
# contains this. The cluster has them on its own class path.
JARS = "gradle/wrapper"
ENGINES = ("flink", "spark", "pool", "prism")
START_SECONDS = 90
# The packages that Flink's and Spark's own start scripts open for Java 17.
OPENS = [
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
]
JAVA = [
    "java",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # these JVMs do little and exit soon
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS),
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
]
# Runs a command in its own process group, which ends when the parent ends, however that happens: the pipe on standard
# input closes then, also after SIGKILL. Child processes belong to the group.
WITH_PARENT = 'exec 3<&0; (read -r _ <&3; kill -KILL 0) & exec "$@" </dev/null 3<&-'


class ClusterError(Exception):
    """The cluster did not start; the message says why and what to do."""


@dataclasses.dataclass
class Cluster:
    """`options`: for `layerbeam run`. `nodes`: the processes by name; names of workers begin with `worker`.

    `heap_mb`: of the JVM of each of Flink's TaskManagers. `hosts`: one for each node; None: all are on this machine.
    `metrics`: the URL for Prometheus of each of Flink's nodes.
    """

    engine: str
    folder: Path
    workers: int
    environment: dict[str, str]
    heap_mb: int = 384
    hosts: Hosts | None = None
    options: list[str] = dataclasses.field(default_factory=list)
    metrics: dict[str, str] = dataclasses.field(default_factory=dict)
    nodes: dict[str, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)
    commands: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def own(self) -> Path:
        """A folder that each host has for itself."""
        return self.folder / "own"

    def address(self, name: str) -> str:
        """Of a node, for the others."""
        return "localhost" if self.hosts is None else self.hosts.addresses[name]

    def start(self, name: str, command: list[str]) -> None:
        """Start a node; its output goes to a file named after it."""
        self.commands[name] = command
        if self.hosts is not None:
            command = self.hosts.command(name, command)
        with open(self.folder / f"{name}.log", "ab") as log:
            self.nodes[name] = subprocess.Popen(
                ["sh", "-c", WITH_PARENT, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        assert node.stdin is not None
        node.stdin.close()
        node.wait()

    def replace_dead_workers(self) -> None:
        """As Kubernetes or Yarn do for TaskManagers. Spark's workers do it themselves for their executors."""
        for name in [name for name in self.nodes if name.startswith("worker")]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.nodes[name].wait(timeout=1)
                self.stop(name)
                self.start(name, self.commands[name])

    def wait(self, what: str, is_ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until it is ready. Raises ClusterError if a node has ended, or after so many seconds."""
        until = time.monotonic() + seconds
        while not is_ready():
            ended = [name for name, node in self.nodes.items() if node.poll() is not None]
            if ended:
                raise ClusterError(f"{self.engine}: {', '.join(ended)} ended while {what} was awaited\n{self.logs()}")
            if time.monotonic() > until:
                raise ClusterError(f"{self.engine}: no {what} after {seconds:.0f} s\n{self.logs()}")
            time.sleep(0.1)

    def logs(self, lines: int = 10) -> str:
        """The last errors and the end of each log."""
        found = []
        for log in sorted(self.folder.glob("*.log")):
            logged = [line[:300] for line in log.read_text(errors="replace").splitlines()]
            errors = [line for line in logged[:-lines] if "ERROR" in line or "Exception" in line or "Error:" in line]
            found += [f"--- {log}", *errors[-lines:], *logged[-lines:]]
        return "\n".join(found)


def get_json(url: str) -> dict:
    """The JSON that a web interface returns; empty while it is not up."""
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read())
    return {}


@contextlib.contextmanager
def cluster(
    engine: str,
    folder: Path,
    *,
    workers: int = 2,
    environment: Mapping[str, str] | None = None,
    heap_mb: int = 384,
    apart: bool = False,
) -> Iterator[Cluster]:
    """A running cluster with all files below `folder`. It ends with the block, and whenever this process ends.

    `workers`: 2 of one core each, or 1 of two cores. `environment`: additional variables for all its processes, workers
    included. `apart`: each node of Flink or Spark is on a host of its own, and workers are started by Beam's `boot`.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    made = Cluster(engine, folder, workers, {**os.environ, "PATH": path, **(environment or {})}, heap_mb)
    made.own.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if apart:
            nodes = ["jobmanager", "master", "job_server", *(f"worker{number + 1}" for number in range(workers))]
            made.hosts = Hosts(nodes, made.own)
            stack.enter_context(made.hosts.up())
        try:
            {"flink": _start_flink, "spark": _start_spark, "pool": _start_pool, "prism": _start_prism}[engine](made)
            yield made
        finally:
            for name in reversed(list(made.nodes)):
                made.stop(name)


def _java_of(engine: str) -> list[str]:
    """The command that runs a class with the engine's jars."""
    if shutil.which("java") is None:
        raise ClusterError(
            f"{engine} needs Java 17, and no java is on PATH (Debian: apt-get install openjdk-17-jre-headless)"
        )
    jars = ENGINE_FILES / engine / JARS
    if not jars.is_dir():
        raise ClusterError(f"{engine}: {jars} is missing: make test-{engine} fetches it")
    return [*JAVA, "-cp", f"{jars}/*"]


def _boot(made: Cluster) -> str:
    """A script that starts one worker; its output goes to a file named after its parent process."""
    boot = made.folder / "boot"
    command = shlex.join([sys.executable, str(Path(__file__).with_name("start_worker.py"))])
    lines = ["#!/bin/sh", f"exec >>{shlex.quote(str(made.folder))}/sdk-$PPID.log 2>&1"]
    if made.hosts is not None:
        command = f"{ENGINE_FILES}/boot/container --semi_persist_dir={made.own}"
        lines += _own_python(made.own)
    boot.write_text("\n".join([*lines, f'exec {command} "$@"\n']))
    boot.chmod(0o755)
    return str(boot)


def _own_python(folder: Path) -> list[str]:
    """Lines that make `python` an environment of this host, with this one's packages: `boot` installs into it."""
    python, packages = folder / "python", sysconfig.get_path("purelib")
    return [
        f"test -d {python} || {sys.executable} -m venv --without-pip {python}",
        f"echo 'import site; site.addsitedir(\"{packages}\")' >$(echo {python}/lib/python*/site-packages)/base.pth",
        # By default `boot` creates an environment that sees the packages of the base Python only.
        f"export PATH={python}/bin:$PATH RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1",
    ]


def _start_job_server(made: Cluster, command: list[str]) -> int:
    """Returns the job server's port."""
    host, port = made.address("job_server"), free_port()
    # With 0 files would be wanted at localhost, whatever the host.
    ports = [f"--job-host={host}", f"--job-port={port}", f"--artifact-port={free_port()}", "--expansion-port=-1"]
    made.start("job_server", [*command, *ports, f"--artifacts-dir={made.folder / 'artifacts'}"])
    made.wait("job server", lambda: is_open(port, host))
    return port


def _worker_options(made: Cluster, job_port: int) -> list[str]:
    """Each TaskManager or executor starts its workers as processes."""
    return [
        f"--runner={made.engine.capitalize()}Runner",
        f"--job_endpoint={made.address('job_server')}:{job_port}",
        "--environment_type=PROCESS",
        f"--environment_config={json.dumps({'command': _boot(made)})}",
    ]


def _start_flink(made: Cluster) -> None:
    java, rest, manager = _java_of("flink"), free_port(), made.address("jobmanager")
    settings = {
        "jobmanager.rpc.address": manager,
        "jobmanager.rpc.port": free_port(),
        "jobmanager.bind-host": "0.0.0.0" if made.hosts is not None else "localhost",  # Flink looks for it at both
        "rest.address": manager,
        "rest.bind-address": manager,
        "rest.port": rest,
        "rest.bind-port": rest,
        "taskmanager.numberOfTaskSlots": 2 // made.workers,
        # Flink's own script calculates these.
        "taskmanager.cpu.cores": 2 // made.workers,
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "64m",
        "taskmanager.memory.task.heap.size": f"{made.heap_mb - 128}m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.network.min": "96m",
        "taskmanager.memory.network.max": "96m",
        "taskmanager.memory.managed.size": "64m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "128m",
        "taskmanager.memory.jvm-overhead.max": "128m",
        "io.tmp.dirs": str(made.folder / "flink"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 3,
        "restart-strategy.fixed-delay.delay": "2 s",
        # Flink notices a missing TaskManager after two failed heartbeats. Until then it assigns tasks to it: the
        # attempts above must last longer.
        "heartbeat.interval": 1000,
        "heartbeat.timeout": 10000,
        # The jars of the job are those of the cluster.
        "classloader.resolve-order": "parent-first",
        "classloader.check-leaked-classloader": "false",
        "metrics.reporter.prom.factory.class": "org.apache.flink.metrics.prometheus.PrometheusReporterFactory",
    }
    conf = made.folder / "conf"
    conf.mkdir()
    (made.folder / "flink").mkdir()
    (conf / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))

    def start(name: str, heap_mb: int, entry_point: str, *options: str) -> None:
        metrics = free_port()
        made.metrics[name] = f"http://{made.address(name)}:{metrics}/metrics"
        settings = [f"-D{option}" for option in (f"metrics.reporter.prom.port={metrics}", *options)]
        command = [*java, f"-Xmx{heap_mb}m", f"org.apache.flink.runtime.{entry_point}", "--configDir", str(conf)]
        made.start(name, [*command, *settings])

    start("jobmanager", 400, "entrypoint.StandaloneSessionClusterEntrypoint")
    for name in (f"worker{number + 1}" for number in range(made.workers)):
        of_host = (f"taskmanager.{key}={made.address(name)}" for key in ("host", "bind-host"))
        start(name, made.heap_mb, "taskexecutor.TaskManagerRunner", *of_host)
    made.wait("TaskManagers", lambda: get_json(f"http://{manager}:{rest}/overview").get("slots-total") == 2)
    driver = "org.apache.beam.runners.flink.FlinkJobServerDriver"
    port = _start_job_server(made, [*java, "-Xmx400m", driver, f"--flink-master={manager}:{rest}"])
    made.options += [*_worker_options(made, port), "--parallelism=2"]


def _start_spark(made: Cluster) -> None:
    java, port, web, host = _java_of("spark"), free_port(), free_port(), made.address("master")
    home = made.folder / "home"  # executors get their class path from here
    (home / "conf").mkdir(parents=True)
    (home / "RELEASE").touch()
    (home / "jars").symlink_to(ENGINE_FILES / "spark" / JARS)
    made.environment |= {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.12"}
    made.environment["SPARK_LOCAL_DIRS"] = str(made.folder / "local")
    deploy = "org.apache.spark.deploy"
    master = [*java, "-Xmx300m", f"{deploy}.master.Master"]
    master += ["--host", host, "--port", str(port), "--webui-port", str(web)]
    made.start("master", [*_local_ip(made, "master"), *master])
    made.wait("Spark master", lambda: is_open(port, host))
    worker = [*java, "-Xmx200m", f"{deploy}.worker.Worker", "--webui-port", "0", "--cores", str(2 // made.workers)]
    worker += ["--memory", "600m", "--work-dir", str(made.folder / "work"), f"spark://{host}:{port}"]
    for name in (f"worker{number + 1}" for number in range(made.workers)):
        made.start(name, [*_local_ip(made, name), *worker, "--host", made.address(name)])
    made.wait("Spark workers", lambda: get_json(f"http://{host}:{web}/json/").get("aliveworkers") == made.workers)
    settings = {
        "spark.executor.memory": "512m",
        "spark.driver.host": made.address("job_server"),
        "spark.driver.bindAddress": made.address("job_server"),
        "spark.ui.enabled": "false",
        "spark.task.maxFailures": "3",
    }
    driver = [*_local_ip(made, "job_server"), *java, "-Xmx500m"]
    driver += [f"-D{name}={value}" for name, value in settings.items()]
    driver += ["org.apache.beam.runners.spark.SparkJobServerDriver", f"--spark-master-url=spark://{host}:{port}"]
    made.options += _worker_options(made, _start_job_server(made, driver))


def _local_ip(made: Cluster, name: str) -> list[str]:
    """What begins the command of one of Spark's nodes: the address that it listens at."""
    return ["env", f"SPARK_LOCAL_IP={made.address(name).replace('localhost', '127.0.0.1')}"]


def _start_pool(made: Cluster) -> None:
    """Beam's own job service, which uses one worker, with a worker pool: the sidecar of Flink or Spark."""
    pool, job = free_port(), free_port()
    beam = "apache_beam.runners"
    made.start("pool", [sys.executable, "-m", f"{beam}.worker.worker_pool_main", f"--service_port={pool}"])
    made.start("job_server", [sys.executable, "-m", f"{beam}.portability.local_job_service_main", f"--port={job}"])
    made.wait("worker pool", lambda: is_open(pool))
    made.wait("job service", lambda: is_open(job))
    made.options += [
        "--runner=PortableRunner",
        f"--job_endpoint=localhost:{job}",
        "--environment_type=EXTERNAL",
        f"--environment_config=localhost:{pool}",
    ]


def _start_prism(made: Cluster) -> None:
    """Starts nothing: the run starts Prism, whose workers are threads of the run's own process."""
    prism = ENGINE_FILES / "prism" / "prism"
    if not prism.is_file():
        raise ClusterError(f"prism: {prism} is missing: make test-prism builds it")
    made.options += ["--runner=PrismRunner", f"--prism_location={prism}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--heap-mb", type=int, default=384)
    parser.add_argument("--apart", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"layerbeam-{given.engine}-"))
    try:
        with cluster(given.engine, folder, heap_mb=given.heap_mb, apart=given.apart) as made:
            print(f"{given.engine}: running; logs: {folder}\n")
            print("layerbeam run CONFIG --input /absolute/GLOB --output /absolute/PATH \\")
            print(" \\\n".join(f"  {shlex.quote(option)}" for option in made.options))
            print("\nCtrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                made.wait("end", lambda: False, math.inf)
        shutil.rmtree(folder)
    except ClusterError as error:
        sys.exit(f"{error}\n(all logs: {folder})")


if __name__ == "__main__":
    main()
