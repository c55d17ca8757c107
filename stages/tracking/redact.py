"""Credentials never reach MLflow: what the environment calls a secret, and what stands before the @ of an address, becomes ***."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"
SHORTEST = 6  # a shorter value would blank ordinary words
_SECRET_NAME = re.compile(r"token|secret|passw|passphrase|credential|api_?key|access_?key|private|auth|_key$|_pat$", re.IGNORECASE)
_ADDRESS = re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]*://)(?P<user>[^\s/@'\"]+)@")


def secrets() -> list[str]:
    """Values of environment variables that hold a secret, and passwords in addresses there; the longest first."""
    found = {os.environ[name] for name in secret_names() if _SECRET_NAME.search(name)}
    for value in os.environ.values():
        for match in _ADDRESS.finditer(value):
            user, _, password = match["user"].partition(":")
            found |= {password or user, unquote(password or user)}
    return sorted((value for value in found if len(value) >= SHORTEST and value.lower() not in ("true", "false")), key=len, reverse=True)


def secret_names() -> list[str]:
    """The environment variables that hold a secret."""
    return sorted(name for name, value in os.environ.items() if _SECRET_NAME.search(name) or _ADDRESS.search(value))


def clean(text: str) -> str:
    """`text` without credentials."""
    return _without(secrets(), text)


def _without(hidden: list[str], text: str) -> str:
    text = _ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    for secret in hidden:
        text = text.replace(secret, HIDDEN)
    return text


def clean_file(path: Path) -> None:
    """Rewrite a text file without credentials, line by line, however large; a file without any stays as it is."""
    hidden, temporary, changed = secrets(), path.with_name(f".{path.name}.clean"), False
    with path.open("rb") as file, temporary.open("wb") as target:
        for line in file:
            cleaned = _without(hidden, line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            changed |= cleaned != line
            target.write(cleaned)
    if changed:
        temporary.replace(path)
    else:
        temporary.unlink()


def clean_values(values: Any) -> Any:
    """The same for every text in nested mappings and lists."""
    return _nested(secrets(), values)


def _nested(hidden: list[str], values: Any) -> Any:
    if isinstance(values, str):
        return _without(hidden, values)
    if isinstance(values, Mapping):
        return {name: _nested(hidden, value) for name, value in values.items()}
    return [_nested(hidden, value) for value in values] if isinstance(values, list | tuple) else values
