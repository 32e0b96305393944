"""The image's list of parts."""

from __future__ import annotations

import json
import re

from repository import ROOT


def test_image_lists_what_is_installed(image):
    parts = json.loads((image.root / "opt/layerbeam/sbom.cdx.json").read_text())
    assert parts["bomFormat"] == "CycloneDX"
    listed = {(re.sub("[-_.]+", "-", part["name"]).lower(), part["version"]) for part in parts["components"]}
    done = image.run("pip", "list", "--format=json")
    installed = {(re.sub("[-_.]+", "-", one["name"]).lower(), one["version"]) for one in json.loads(done.stdout)}
    assert listed == installed


def test_it_is_written_by_the_version_of_the_audit():
    (version,) = re.findall(r"^cyclonedx-bom==(.*)$", (ROOT / ".ci/audit-requirements.txt").read_text(), re.MULTILINE)
    assert f" cyclonedx-bom=={version} " in (ROOT / "Dockerfile").read_text()
