"""Credentials do not pass."""

from pathlib import Path

import pytest

from stages.tracking.redact import clean, clean_file, clean_values


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("MLFLOW_TRACKING_PASSWORD", "hunter22", "the word is hunter22."),
        ("AWS_SECRET_ACCESS_KEY", "abc/DEF+123", "key=abc/DEF+123"),
        ("HF_TOKEN", "hf_abcdefgh", '{"token": "hf_abcdefgh"}'),
        ("MLFLOW_TRACKING_URI", "http://me:p%40ssword@host:5000", "it is p@ssword or p%40ssword"),
        ("DATABASE_URL", "postgresql://me:geheimnis@db/x", "geheimnis"),
    ],
)
def test_values_of_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str) -> None:
    monkeypatch.setenv(name, value)
    cleaned = clean(text)
    assert "***" in cleaned
    assert not any(secret in cleaned for secret in ("hunter22", "abc/DEF", "hf_abc", "p@ssword", "p%40ssword", "geheimnis"))


@pytest.mark.parametrize("address", ["http://me:secret@host:5000/x", "postgresql+psycopg2://me:se-cret@host/db", "https://token@github.com/a/b"])
def test_addresses_keep_their_host_only(address: str) -> None:
    cleaned = clean(f"see {address}, please")
    scheme, _, rest = address.partition("://")
    assert cleaned == f"see {scheme}://***@{rest.rpartition('@')[2]}, please"


def test_ordinary_words_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("AUTH", "on")
    text = "false on mail@example.org http://host/a@b git@host:x"
    assert clean(text) == text


def test_a_file_is_cleaned_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "verysecret")
    path = tmp_path / "output.log"
    path.write_bytes(b"a verysecret word\r\nbad byte \xff\n")
    clean_file(path)
    assert path.read_bytes() == b"a *** word\r\nbad byte \xff\n"
    place = path.stat().st_ino
    clean_file(path)
    assert path.stat().st_ino == place
    assert list(tmp_path.iterdir()) == [path]


def test_nested_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "verysecret")
    assert clean_values({"a": ["verysecret", 1, None], "b": {"c": "x verysecret"}}) == {"a": ["***", 1, None], "b": {"c": "x ***"}}
