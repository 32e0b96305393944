from __future__ import annotations

import pytest

from layerbeam.pipeline.run.versions import VersionError, check_versions, versions


def test_worker_with_another_splitter():
    """Patch releases of sentencex change sentences."""
    with pytest.raises(VersionError, match=r" has sentencex 1\.0\.[0-9]+ instead of 1\.0\.0, with which the run was"):
        check_versions(versions() | {"sentencex": "1.0.0"})


def test_run_started_where_sentencex_is_not_installed():
    here = versions()
    del here["sentencex"]
    check_versions(here)
