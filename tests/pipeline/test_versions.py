from __future__ import annotations

from importlib import metadata

import pytest

from layerbeam.pipeline.versions import VersionError, check_versions, tpu_mistake, versions


def test_worker_with_another_splitter():
    """Patch releases of sentencex change sentences."""
    with pytest.raises(VersionError, match=r" has sentencex 1\.0\.[0-9]+ instead of 1\.0\.0, with which the run was"):
        check_versions(versions() | {"sentencex": "1.0.0"})


@pytest.fixture
def installed(monkeypatch) -> dict[str, str]:
    """Versions that packages pretend to have."""
    pretended: dict[str, str] = {}
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: pretended.get(name) or real(name))
    return pretended


@pytest.mark.parametrize(
    ("here", "there", "image", "constraints"),
    [("2.20", "2.21", "cpu or gpu", "constraints-tf220.txt"), ("2.21", "2.20", "tpu", "constraints.txt")],
)
def test_worker_with_another_tensorflow(installed, here, there, image, constraints):
    installed |= {"tensorflow": f"{there}.0", "tensorflow-text": f"{there}.0"}
    started = versions()
    installed |= {"tensorflow": f"{there}.9", "tensorflow-text": f"{there}.9"}
    check_versions(started)  # a patch release
    installed |= {"tensorflow": f"{here}.0", "tensorflow-text": f"{here}.1"}
    with pytest.raises(VersionError) as raised:
        check_versions(started)
    message = str(raised.value)
    assert f"tensorflow {here}.0 instead of {there}.0, tensorflow-text {here}.1 instead of {there}.0, with" in message
    assert f"an image with the same versions (the Dockerfile's DEVICE for TensorFlow {there} is {image}), or" in message
    assert message.endswith(f"start the run with theirs ({constraints} has them)")


def test_tensorflow_and_tf_text_of_different_minor_versions(installed, workplace):
    installed |= {"tensorflow": "2.20.0", "tensorflow-text": "2.21.1"}
    workplace.configure()
    err = workplace.drive(status=2).err
    assert "layerbeam: tensorflow 2.20.0 and tensorflow-text 2.21.1 are installed, and both need the same minor" in err
    assert "pip install tensorflow==2.20.* tensorflow-text==2.20.*" in err


@pytest.mark.parametrize(("version", "is_refused"), [("2.20.3", False), ("2.21.0", True)])
def test_tpu_needs_the_tensorflow_of_its_image(installed, version, is_refused):
    installed |= {"tensorflow": version, "tensorflow-text": version}
    mistake = tpu_mistake()
    assert (mistake is not None) == is_refused
    assert mistake is None or "DEVICE=tpu) has TensorFlow 2.20" in mistake
    assert mistake is None or "this program has 2.21.0: install constraints-tf220.txt" in mistake
