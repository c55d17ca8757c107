"""Datasets of the Hugging Face hub, streamed; without network from its cache, else refused at once with what to do."""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stages.params import Data

REACH_SECONDS = 1.2


def splits(data: Data) -> list[tuple[str, Callable[[], Iterator[bytes]]]]:
    """Name and reader of each split of the dataset that data.source names; ValueError when it cannot be had."""
    name, _, config = data.source.removeprefix("hub:").partition("@")
    place = _place(name, data.revision)
    from datasets import load_dataset, logging

    logging.disable_progress_bar()
    revision = {} if place != name else {"revision": data.revision}
    try:
        found = load_dataset(place, config or None, streaming=True, **revision)
    except (OSError, ValueError, RuntimeError) as error:
        hint = "" if isinstance(error, OSError) else "; a configuration is named by hub:<org>/<name>@<config>"
        raise ValueError(f"data.source {data.source} cannot be read: {error}{hint}") from None
    return [(split, partial(_documents, dataset, split, data)) for split, dataset in found.items()]


def _documents(dataset: Any, split: str, data: Data) -> Iterator[bytes]:
    from stages.data.readers import no_field, utf8

    columns = dataset.column_names
    if columns is not None and data.text_field in columns:
        dataset = dataset.select_columns([data.text_field])
    for index, record in enumerate(dataset):
        place = f"{data.source}: {split}, row {index}"
        if data.text_field not in record:
            raise ValueError(no_field(place, data.text_field, list(record)))
        yield utf8(record[data.text_field], place, data, data.text_field)


def _place(name: str, revision: str | None) -> str:
    """What to hand to `datasets`: the name where the hub can be reached, else the folder in the hub's cache.

    Asked before `datasets` is imported, which alone takes seconds.
    """
    offline = is_offline()
    if offline is None:
        return name
    cached = snapshot(name, revision, "dataset")
    if cached is not None:
        return str(cached)
    if _prepared(name):
        return name  # `datasets` finds what an earlier load_dataset left
    raise ValueError(
        f"data.source hub:{name} is not in the hub's cache and {offline}; where there is network run "
        f"`hf download --repo-type dataset {name}{f' --revision {revision}' if revision else ''}` and bring its cache here (HF_HOME), "
        "or put the text under inputs/text/ and set data.source to it"
    )


def is_offline() -> str | None:
    """Why the hub cannot be asked, or None when it can: told within REACH_SECONDS."""
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    answered = threading.Event()
    # In a thread of its own, because looking a name up obeys no timeout.
    threading.Thread(target=_ask, args=(ENDPOINT, answered), daemon=True).start()
    return None if answered.wait(REACH_SECONDS) else f"{ENDPOINT} does not answer within {REACH_SECONDS} seconds"


def _ask(endpoint: str, answered: threading.Event) -> None:
    """Set `answered` when a server, or the proxy before it, says anything at all."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        urlopen(Request(endpoint, method="HEAD"), timeout=REACH_SECONDS).close()
    except HTTPError:
        pass
    except (OSError, ValueError, HTTPException):
        return
    answered.set()


def snapshot(name: str, revision: str | None, kind: Literal["dataset", "model"]) -> Path | None:
    """The folder of `name` in the hub's cache, if it was downloaded there."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
    found = folder / "snapshots" / commit if commit else None
    return found if found is not None and found.is_dir() else None


def _prepared(name: str) -> bool:
    """Whether an earlier load_dataset left the dataset in the cache of `datasets`."""
    from huggingface_hub.constants import HF_HOME

    folder = Path(os.environ.get("HF_DATASETS_CACHE", Path(HF_HOME) / "datasets"))
    wanted = name.replace("/", "___").lower().replace("-", "").replace("_", "")
    found = folder.iterdir() if folder.is_dir() else iter(())
    return any(path.is_dir() and path.name.lower().replace("-", "").replace("_", "") == wanted for path in found)
