"""The tiny pipeline, run once for all tests of the folder; each works on its own copy."""

from pathlib import Path

import pytest

from tests.pipeline.tiny import Tiny


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The tiny pipeline after `dvc repro`; read only."""
    tiny = Tiny.create(tmp_path_factory.mktemp("tiny") / "repository")
    tiny.dvc("repro")
    tiny.commit("ran")
    return tiny


@pytest.fixture
def tiny(ran: Tiny, tmp_path: Path) -> Tiny:
    """A copy of it, to change."""
    return ran.copy(tmp_path / "repository")
