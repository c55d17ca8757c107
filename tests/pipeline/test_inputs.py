"""An input that changes reruns its stage, also where a copy has kept its name, size and time."""

import os
from pathlib import Path

import pytest

from tests.pipeline.tiny import Tiny


def replace(path: Path, text: str) -> None:
    """Put a file of the same size and time in the place of another, as `rsync --times` and `unzip` do."""
    before, new = path.stat(), path.with_name("new")
    new.write_text(text, "utf-8")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.slow
def test_one_edited_merge_reruns_tokenize_and_nothing_else_does(tiny: Tiny) -> None:
    merges = tiny.folder / "inputs/tokenizer/mine/tokenizer.json"
    merges.parent.mkdir()
    merges.write_text('{"merges": ["a b", "c d"]}', "utf-8")
    assert "Running stage 'tokenize'" in tiny.dvc("repro", "tokenize")
    assert "Running stage" not in tiny.dvc("repro", "tokenize")
    replace(merges, '{"merges": ["a b", "d c"]}')
    assert "Running stage 'tokenize'" in tiny.dvc("repro", "tokenize")
