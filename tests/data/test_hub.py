"""Hub datasets: from a folder in the hub's cache layout without network, and a cold cache refused in two seconds with what to do."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMMIT = "0123456789012345678901234567890123456789"

# In a process of its own, because the hub's libraries read their settings once, when they are imported.
PROGRAM = """
import json, sys, time
from stages.data.sources import open_source
from tests.data.made import data
for request in json.loads(sys.argv[1]):
    began = time.monotonic()
    try:
        source = open_source(data(**request))
        result = {unit.name: [document.decode() for document in unit.documents()] for unit in source.units}
    except ValueError as error:
        result = str(error)
    print(json.dumps({"result": result, "seconds": time.monotonic() - began, "imported": "datasets" in sys.modules}))
"""


def read(home: Path, *requests: dict, offline="1", endpoint="http://127.0.0.1:9", datasets_cache=None, hub_cache=None):
    """What each request finds, all in one process."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline, "HF_ENDPOINT": endpoint}
    for name in ("HTTPS_PROXY", "https_proxy", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        environment.pop(name, None)
    if datasets_cache:
        environment["HF_DATASETS_CACHE"] = datasets_cache
    if hub_cache:
        environment["HF_HUB_CACHE"] = hub_cache
    arguments = [sys.executable, "-c", PROGRAM, json.dumps([{"source": "hub:acme/poems", **request} for request in requests])]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=True, timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"result"')]
    assert len(answers) == len(requests)
    return answers


@pytest.fixture
def cached(tmp_path):
    """A hub cache with one dataset of two splits."""
    folder = tmp_path / "hub" / "datasets--acme--poems"
    files = folder / "snapshots" / COMMIT / "data"
    files.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for split in ("train", "test"):
        pq.write_table(pa.table({"text": [f"{split} {i}\r\n" for i in range(3)], "other": [1, 2, 3]}), files / f"{split}-00000-of-00001.parquet")
    return tmp_path


def test_a_cached_dataset_is_read_without_network(cached):
    whole = {split: [f"{split} {i}\r\n" for i in range(3)] for split in ("train", "test")}
    plain, pinned, other_pin, no_field, no_text, no_config = (
        answer["result"]
        for answer in read(
            cached, {}, {"revision": COMMIT}, {"revision": "f" * 40}, {"text_field": "body"}, {"text_field": "other"}, {"source": "hub:acme/poems@french"}
        )
    )
    assert plain == pinned == whole
    assert "is not in the hub's cache" in other_pin
    assert "no field 'body'; there are 'text', 'other'" in no_field
    assert "the field 'other' is int, not text" in no_text
    assert no_config.startswith("data.source hub:acme/poems@french cannot be read")
    assert "french" in no_config and "default" in no_config
    assert read(cached, {}, offline="0")[0]["result"] == whole


def test_a_cache_that_may_not_be_written_is_named_in_one_line(cached):
    (answer,) = read(cached, {}, datasets_cache="/dev/null/cache")
    assert answer["result"] == "data.source hub:acme/poems cannot be read: [Errno 20] Not a directory: '/dev/null/cache'"


def test_a_home_that_may_not_be_written_is_named_or_not_needed(cached):
    home = Path("/dev/null/home")
    (cold,) = read(home, {})
    assert "is not in the hub's cache and HF_HUB_OFFLINE is set" in cold["result"]
    (warm,) = read(home, {}, hub_cache=str(cached / "hub"))
    assert warm["result"] == f"data.source hub:acme/poems cannot be read: [Errno 20] Not a directory: '{home}'"
    (elsewhere,) = read(home, {}, hub_cache=str(cached / "hub"), datasets_cache=str(cached / "datasets"))
    assert elsewhere["result"]["test"] == [f"test {i}\r\n" for i in range(3)]


@pytest.fixture
def silent():
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("offline", "endpoint", "why"),
    [
        ("1", "http://127.0.0.1:9", "HF_HUB_OFFLINE is set"),
        ("0", "http://127.0.0.1:9", "http://127.0.0.1:9 does not answer"),
        ("0", "http://no.such.host.invalid", "http://no.such.host.invalid does not answer"),
        ("0", None, " does not answer within 1.2 seconds"),
    ],
)
def test_a_cold_cache_fails_within_two_seconds_and_says_what_to_do(offline, endpoint, why, silent, tmp_path):
    (got,) = read(tmp_path, {"revision": COMMIT}, offline=offline, endpoint=endpoint or silent)
    assert got["seconds"] < 2
    assert not got["imported"]
    assert "data.source hub:acme/poems is not in the hub's cache and " in got["result"] and why in got["result"]
    assert f"hf download --repo-type dataset acme/poems --revision {COMMIT}" in got["result"] and "inputs/text/" in got["result"]


def test_what_load_dataset_left_in_its_own_cache_is_found(cached):
    prepare = (
        f"import datasets; datasets.load_dataset({str(cached / 'hub/datasets--acme--poems/snapshots' / COMMIT)!r}, cache_dir={str(cached / 'datasets')!r})"
    )
    subprocess.run([sys.executable, "-c", prepare], check=True, capture_output=True, timeout=120)
    (made,) = [path for path in (cached / "datasets").iterdir() if path.is_dir()]
    made.rename(cached / "datasets" / "acme___verses")
    for file in (cached / "datasets").rglob(f"{COMMIT}-*.arrow"):
        file.rename(file.with_name(file.name.replace(COMMIT, "verses")))
    assert read(cached, {"source": "hub:acme/verses"})[0]["result"]["test"] == [f"test {i}\r\n" for i in range(3)]
