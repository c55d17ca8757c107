"""Credentials never reach MLflow: what the environment calls a secret, and what stands before the @ of an address, becomes ***."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

HIDDEN = "***"
SHORTEST = 6  # a shorter value would blank ordinary words
_SECRET_NAME = re.compile(r"token|secret|passw|passphrase|credential|api_?key|access_?key|private|auth|_key$|_pat$", re.IGNORECASE)
_ADDRESS = re.compile(r"(?P<scheme>[a-zA-Z][\w+.-]*://)(?P<user>[^\s/@'\"]+)@")


def secrets() -> list[str]:
    """Values of environment variables that hold a secret, and passwords in addresses there; the longest first."""
    found = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    for value in os.environ.values():
        for match in _ADDRESS.finditer(value):
            user, _, password = match["user"].partition(":")
            found |= {password or user, unquote(password or user)}
    return sorted((value for value in found if len(value) >= SHORTEST and value.lower() not in ("true", "false")), key=len, reverse=True)


def clean(text: str) -> str:
    """`text` without credentials."""
    text = _ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", text)
    for secret in secrets():
        text = text.replace(secret, HIDDEN)
    return text


def clean_values(values: Any) -> Any:
    """The same for every text in nested mappings and lists."""
    if isinstance(values, str):
        return clean(values)
    if isinstance(values, Mapping):
        return {name: clean_values(value) for name, value in values.items()}
    return [clean_values(value) for value in values] if isinstance(values, list | tuple) else values
