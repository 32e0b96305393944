from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from container import Container, container


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with container("layerbeam:cpu", tmp_path_factory.getbasetemp()) as made:
        yield made


@pytest.fixture(scope="session")
def wheel(image: Container) -> Path:
    """The wheel in the image, in the folder that containers share."""
    done = image.run("cp", "-r", "dist", image.shared)
    assert done.returncode == 0, done.stderr
    (path,) = (image.shared / "dist").iterdir()
    return path
