"""The stage `tokenize`: data.source into data/tokens and data/tokenizer."""

from typing import Any

from stages import params
from stages.data.prepare import Prepared, prepare
from stages.data.shards import SPLITS
from stages.tracking import console
from stages.tracking.run import stage


class Phases:
    """One progress line for each part of the work, in the order in which the parts report."""

    def __init__(self) -> None:
        self._line: console.Progress | None = None

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self._line is None or self._line.label != what:
            self.close()
            self._line = console.Progress(what, total, "bytes")
        self._line.update(done)

    def close(self) -> None:
        """End the line that is still shown."""
        if self._line is not None:
            self._line.close()
            self._line = None


def report(made: Prepared) -> dict[str, Any]:
    """The figures of reports/tokenize.json."""
    meta = made.meta
    splits: dict[str, Any] = {
        name: {"documents": split.documents, "tokens": split.tokens, "bytes": split.bytes, "bytes_per_token": split.bytes / split.tokens}
        for name, split in meta.splits.items()
    }
    return {
        **splits,
        "vocab_size": meta.vocab_size,
        "duplicates": meta.duplicates.model_dump(),
        "empty_documents": made.empty_documents,
        "ignored_files": len(made.ignored_files),
        "tokenizer_sampled_every": made.sampled_every,
        "seconds": {f"{name}": seconds for name, seconds in made.seconds.items()},
    }


def main() -> None:
    """Load the parameters, make the token files, tell what was made."""
    settings = params.load()
    with stage("tokenize", settings.model_dump(mode="json"), experiment=settings.tracking.experiment) as run:
        phases = Phases()
        try:
            made = prepare(settings.data, settings.tokenizer, on_progress=phases)
        finally:
            phases.close()
        run.report(report(made))
        show(made, settings)


def show(made: Prepared, settings: params.Params) -> None:
    """What a person should know of the result, and warnings for what they would not expect."""
    rows = [(name, made.meta.splits[name].documents, made.meta.splits[name].tokens, made.meta.splits[name].bytes) for name in SPLITS]
    console.table(
        "Tokens",
        ("split", "documents", "tokens", "bytes of text"),
        [(name, f"{documents:,}", f"{tokens:,}", f"{size:,}") for name, documents, tokens, size in rows],
    )
    for line in notes(made, settings):
        print(f"note: {line}")


def notes(made: Prepared, settings: params.Params) -> list[str]:
    """One line for each thing that was left out or differs from what was asked for."""
    found = []
    duplicates = made.meta.duplicates
    if made.ignored_files:
        shown = ", ".join(made.ignored_files[:5]) + (", ..." if len(made.ignored_files) > 5 else "")
        found.append(f"{len(made.ignored_files)} files without text were left alone: {shown}")
    if made.empty_documents:
        found.append(f"{made.empty_documents} documents without any text were left out")
    for held_out, other, count in (
        ("validation", "train", duplicates.validation_in_train),
        ("test", "train", duplicates.test_in_train),
        ("test", "validation", duplicates.test_in_validation),
    ):
        if count:
            found.append(f"{count} documents of {held_out} stand word for word in {other} too, so figures on {held_out} flatter the model")
    if settings.tokenizer.source == "train" and made.meta.vocab_size < settings.tokenizer.vocab_size:
        found.append(f"the text yields only {made.meta.vocab_size} entries, not tokenizer.vocab_size {settings.tokenizer.vocab_size}")
    if made.sampled_every > 1:
        found.append(f"the tokenizer was trained on one in {made.sampled_every} parts of the train split, taken evenly")
    return found


if __name__ == "__main__":
    main()
