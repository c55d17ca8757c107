"""stages.data against `tokenizers` alone, on the same text with the same cores: `python -m benchmarks.tokenize [--check] [--quick]`.

Targets (--check exits 1 when one is missed; they hold for the full run, --quick shows the direction within a minute):
- SPEED_RATIO: reading documents from a file, splitting, encoding and writing ids reaches 0.90 of what encode_batch_fast reaches on the same
  documents already in memory, each in a process of its own, alternating, medians.
- PEAK_BYTES: preparing 1 GB of text, the tokenizer's training included, peaks at no more than 500 MB of resident memory.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stages import params
from stages.data import tokenizer
from stages.data.prepare import prepare
from stages.data.readers import documents
from stages.data.sources import open_source

SPEED_RATIO, PEAK_BYTES = 0.90, 500_000_000
ROOT = Path(__file__).parent.parent
TEXT, TRAINED = Path("inputs/text/corpus.jsonl"), Path("inputs/tokenizer/trained")
PEER_BATCH_BYTES = 16 << 20  # all at once would need a hundred times the text's size in memory


def settings(tokenizer_source: str) -> tuple[params.Data, params.Tokenizer]:
    """The default parameters, for the corpus made here."""
    defaults = params.load(ROOT / "params.yaml")
    data = {**defaults.data.model_dump(), "source": str(TEXT), "validation": 0.01, "test": 0.01}
    return params.Data.model_validate(data), defaults.tokenizer.model_copy(update={"source": tokenizer_source})


def corpus(size: int) -> Iterator[str]:
    """About `size` bytes of documents of very unequal lengths, put together from paragraphs of the packaged speeches."""
    data = params.load(ROOT / "params.yaml").data
    speeches = [document.decode() for unit in open_source(data).units for document in unit.documents()]
    paragraphs = [part for speech in speeches for part in speech.split("\n\n")]
    generator, written = random.Random(0), 0
    while written < size:
        count = int(generator.paretovariate(0.8)) if generator.random() < 0.999 else 20_000
        document = "\n\n".join(generator.choices(paragraphs, k=min(count, 20_000)))
        written += len(document.encode())
        yield document


def write_corpus(size: int) -> None:
    """The corpus as jsonl, in the working directory."""
    TEXT.parent.mkdir(parents=True, exist_ok=True)
    with TEXT.open("w", encoding="utf-8") as file:
        for document in corpus(size):
            file.write(json.dumps({"text": document}) + "\n")


def peer() -> dict[str, float]:
    """`tokenizers` alone: every document in memory, encode_batch_fast, nothing kept."""
    made = tokenizer.load(TRAINED)
    texts = [document.decode() for document in documents(TEXT, settings("gpt2")[0])]
    seconds, size, batch, waiting = 0.0, 0, list[str](), 0
    for text in [*texts, None]:
        if text is not None:
            batch.append(text)
            waiting += len(text)
        if batch and (text is None or waiting >= PEER_BATCH_BYTES):
            began = time.perf_counter()
            made.encode_batch_fast(batch, add_special_tokens=False)
            seconds += time.perf_counter() - began
            size += sum(len(one.encode()) for one in batch)
            batch, waiting = [], 0
    return {"seconds": seconds, "bytes": size}


def ours(source: str = str(TRAINED)) -> dict[str, float]:
    """The whole of prepare(): file to token files."""
    began = time.perf_counter()
    made = prepare(*settings(source))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": sum(split.bytes for split in made.meta.splits.values()), "training_seconds": made.seconds["tokenizer"]}


def trained() -> dict[str, float]:
    """prepare() with the tokenizer's training, for its memory."""
    return ours("train")


PARTS = {"peer": peer, "ours": ours, "trained": trained}


def run(part: str) -> dict[str, float]:
    """One part in a process of its own; its figures with its resident peak."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "benchmarks.tokenize", "--part", part], env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def peak_bytes() -> int:
    """This process's resident peak. On Linux ru_maxrss would not do: it survives exec, so the parent's corpus would count."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measure(rounds: int, speed_bytes: int, memory_bytes: int) -> dict[str, float]:
    """All figures, in a temporary working directory."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_corpus(speed_bytes)
        texts = ([document.decode()] for document in documents(TEXT, settings("gpt2")[0]))
        tokenizer.make(settings("train")[1], texts, TRAINED)
        rates: dict[str, list[float]] = {"peer": [], "ours": []}
        for _ in range(rounds):
            for part, found in rates.items():
                figures = run(part)
                found.append(figures["bytes"] / figures["seconds"])
        write_corpus(memory_bytes)
        memory = run("trained")
        os.chdir(ROOT)
    medians = {part: statistics.median(found) for part, found in rates.items()}
    return {
        "peer_bytes_per_second": medians["peer"],
        "bytes_per_second": medians["ours"],
        "speed_ratio": medians["ours"] / medians["peer"],
        "text_bytes": memory["bytes"],
        "peak_memory_bytes": memory["peak_bytes"],
        "seconds": memory["seconds"],
        "training_seconds": memory["training_seconds"],
    }


def main() -> int:
    """Measure, print, and with --check judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--quick", action="store_true", help="a few megabytes, within a minute")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        figures = PARTS[arguments.part]()
        print(json.dumps({**figures, "peak_bytes": peak_bytes()}))
        return 0
    figures = measure(3, 8_000_000, 16_000_000) if arguments.quick else measure(5, 100_000_000, 1_000_000_000)
    for name, figure in figures.items():
        print(f"{name:24} {figure:18,.3f}")
    print(" ".join(f"{name}={figure:.6g}" for name, figure in figures.items()))
    met = figures["speed_ratio"] >= SPEED_RATIO and figures["peak_memory_bytes"] <= PEAK_BYTES
    return int(arguments.check and not met)


if __name__ == "__main__":
    sys.exit(main())
