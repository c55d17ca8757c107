"""Stores are slow to create: one is made, the tests get copies."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages.tracking import store
from tests.tracking.made import Family


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite file with MLflow's tables and nothing in them."""
    home = tmp_path_factory.mktemp("store") / ".underbudget"
    store.prepare(home)
    return home / "mlflow.db"


@pytest.fixture
def home(empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder .underbudget with such a store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    made = tmp_path / ".underbudget"
    made.mkdir()
    shutil.copy2(empty_store, made / "mlflow.db")
    return made


@pytest.fixture
def make_family(home: Path) -> Iterator[Callable[..., Family]]:
    """A function that makes a family in the folder of `home`; its arguments are environment variables."""
    made: list[Family] = []

    def make(**environment: str) -> Family:
        made.append(Family(home.parent, **environment))
        return made[-1]

    yield make
    for family in made:
        family.close()


@pytest.fixture
def family(make_family: Callable[..., Family]) -> Family:
    return make_family()
