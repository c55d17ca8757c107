"""manifest.json of a quantized model's folder: what it holds, whether that is still whole, and how to run it."""

import hashlib
import json
from pathlib import Path
from typing import Any

NAME = "manifest.json"
FORMAT = 1
CHUNK = 1 << 20  # bytes hashed at a time


def write(folder: Path, values: dict[str, Any]) -> None:
    """Write `values` and the size and SHA-256 of every other file in `folder` to its manifest; the same folder gives the same bytes."""
    files = {path.name: {"bytes": path.stat().st_size, "sha256": digest(path)} for path in sorted(folder.iterdir()) if path.name != NAME}
    text = json.dumps({"format": FORMAT, **values, "files": files}, indent=1, ensure_ascii=False)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`; raises ValueError when it is missing, of another format, or a file is not the one that was written."""
    try:
        values: dict[str, Any] = json.loads((folder / NAME).read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no quantized model ({NAME} is missing); run `dvc repro quantize` first") from None
    except ValueError as error:
        raise ValueError(f"{folder / NAME} is not readable as JSON ({error}); run `dvc repro --force quantize`") from None
    if values.get("format") != FORMAT:
        raise ValueError(f"{folder / NAME} has format {values.get('format')!r}, this version reads {FORMAT}; quantize the model again")
    for name, expected in values["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != expected["bytes"] or digest(path) != expected["sha256"]:
            raise ValueError(f"{path} is missing or is not the file that {NAME} lists; copy the folder again, or run `dvc repro --force quantize`")
    return values


def digest(path: Path) -> str:
    """SHA-256 of a file, in constant memory."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            sha.update(block)
    return sha.hexdigest()
