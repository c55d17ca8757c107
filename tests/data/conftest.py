"""A working directory of its own for each test that asks for one."""

import pytest


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder with inputs/text/, as the working directory."""
    (tmp_path / "inputs" / "text").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
