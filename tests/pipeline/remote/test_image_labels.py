"""Labels of a container image, from a registry on a loopback address that behaves as Docker's and Google's do."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from importlib import metadata

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

from layerbeam.pipeline.config import load
from layerbeam.pipeline.errors import UsageError
from layerbeam.pipeline.remote import preflight
from layerbeam.pipeline.remote.image_labels import read_labels
from layerbeam.pipeline.run.engines import RemoteRunner
from layerbeam.pipeline.run.versions import minor, versions

INDEX = "application/vnd.oci.image.index.v1+json"


class Registry(http.server.ThreadingHTTPServer):
    """`images`: {path: what is served there}; with `token` only to who brings it. `seen`: (path, authorization)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.images: dict[str, object] = {}
        self.token: str | None = None
        self.seen: list[tuple[str, str | None]] = []

    @property
    def host(self) -> str:
        return f"localhost:{self.server_address[1]}"

    def add(self, name: str, labels: dict[str, str], *, architectures: tuple[str, ...] = ()) -> str:
        """An image of one processor, or an index of several, of which only amd64's has the labels."""
        config = {"config": {"Labels": {f"org.layerbeam.{key}": value for key, value in labels.items()} | {"x": "y"}}}
        self.images[f"/store/{name}"] = config
        self.images[f"/v2/{name}/blobs/sha256:c"] = f"http://{self.host}/store/{name}"  # a redirect
        manifest = {"schemaVersion": 2, "config": {"digest": "sha256:c"}, "layers": []}
        if architectures:
            entries = [{"digest": f"sha256:{a}", "platform": {"architecture": a}} for a in architectures]
            self.images[f"/v2/{name}/manifests/1.0"] = {"mediaType": INDEX, "manifests": entries}
            self.images[f"/v2/{name}/manifests/sha256:amd64"] = manifest
        else:
            self.images[f"/v2/{name}/manifests/1.0"] = manifest
        return f"{self.host}/{name}:1.0"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Registry

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        given = self.headers.get("Authorization")
        self.server.seen.append((path, given))
        if path == "/token":
            assert query == "service=registry&scope=repository%3Ap%2Fr%3Apull", query
            return self._send(200, {"token": self.server.token})
        if path.startswith("/v2/") and self.server.token and given != f"Bearer {self.server.token}":
            realm = f'Bearer realm="http://{self.server.host}/token",service="registry",scope="repository:p/r:pull"'
            return self._send(401, {}, ("WWW-Authenticate", realm))
        found = self.server.images.get(path)
        if isinstance(found, str):
            return self._send(307, {}, ("Location", found))
        return self._send(200 if found else 404, found or {})

    def _send(self, status: int, body: object, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        data = json.dumps(body).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def same() -> dict[str, str]:
    here = versions()
    return {
        "version": here["layerbeam"],
        "apache-beam": here["apache-beam"],
        "python": minor(here["python"]),
        "tensorflow": f"{minor(here['tensorflow'])}.99",
        "device": "cpu",
    }


def check(image: str, **encoder: object) -> None:
    settings = {
        "input": {"files": ["/corpus/*"]},
        "encoder": encoder,
        "views": {"v": {"level": "text", "layers": [-1]}},
        "output": {"path": "/out"},
    }
    options = PipelineOptions(["--job_endpoint=embed"])
    options.view_as(WorkerOptions).sdk_container_image = image
    options.view_as(SetupOptions).extra_packages = []
    preflight.check(load.check(settings, source="c.yaml"), RemoteRunner("SparkRunner", options, None))


@pytest.mark.parametrize("architectures", [(), ("arm64", "amd64")])
def test_labels_of_an_image(registry, architectures):
    image = registry.add("p/r/layerbeam", {"python": "3.11"}, architectures=architectures)
    assert read_labels(image) == {"python": "3.11"}


def test_a_registry_that_wants_a_token_gets_it_and_the_store_behind_it_does_not(registry):
    registry.token = "secret"
    assert read_labels(registry.add("p/r", {"device": "gpu"})) == {"device": "gpu"}
    assert registry.seen == [
        ("/v2/p/r/manifests/1.0", None),
        ("/token", None),
        ("/v2/p/r/manifests/1.0", "Bearer secret"),
        ("/v2/p/r/blobs/sha256:c", "Bearer secret"),
        ("/store/p/r", None),
    ]


def test_beams_own_image_says_it_by_its_name():
    assert read_labels("apache/beam_python3.10_sdk:2.70.0") == {"python": "3.10", "apache-beam": "2.70.0"}


def test_an_image_that_fits(registry, capsys):
    check(registry.add("p/r", same()))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"apache-beam": "2.76.0"}, f"has apache-beam 2.76.0 and not {metadata.version('apache-beam')}: build it anew"),
        ({"python": "3.9"}, "has python 3.9 and not 3.1"),
        ({"version": "0.0.1", "tensorflow": "2.20.0"}, "has tensorflow 2.20.0 and not 2.21.0, layerbeam 0.0.1 and not"),
    ],
)
def test_an_image_of_other_versions_is_refused(registry, labels, message):
    image = registry.add("p/r", same() | labels)
    with pytest.raises(UsageError) as refused:
        check(image)
    assert str(refused.value).startswith(f"beam.sdk_container_image: {image} has ")
    assert message in str(refused.value)


def test_an_image_for_another_device_is_refused(registry):
    image = registry.add("p/r", same())
    with pytest.raises(
        UsageError, match=r"was built for cpu, and encoder\.device is gpu; build it with --build-arg DEV"
    ):
        check(image, device="gpu")


@pytest.mark.parametrize("break_it", ["no image", "no labels", "no registry", "no challenge"])
def test_an_image_that_cannot_be_looked_into_is_said(registry, capsys, break_it):
    image = registry.add("p/r", {} if break_it == "no labels" else same())
    if break_it == "no image":
        registry.images.clear()
    elif break_it == "no registry":
        image = "localhost:1/p/r:1.0"
    elif break_it == "no challenge":
        registry.images["/v2/p/r/manifests/1.0"] = {"errors": []}
    check(image)
    said = capsys.readouterr().err
    assert said == "" if break_it == "no labels" else f"{image}: not looked into (" in said
