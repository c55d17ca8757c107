"""A training of a tiny model on random tokens, ready to be profiled."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.profiling.made import tiny_params, write_tokens


@pytest.fixture
def make_setup(tmp_path) -> Callable[..., Any]:
    """A function that prepares a training as the stages do; its arguments change sections of params.yaml."""
    from stages.training.setup import prepare

    def make(**changes: dict[str, Any]) -> Any:
        meta = write_tokens(tmp_path / "tokens")
        return prepare(tiny_params(**changes), meta, tmp_path / "tokens")

    return make
