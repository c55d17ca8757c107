"""The report as a person gets it: one page, images, a whole row, and plain words where something is missing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.tracking import store
from tests.tracking.made import Family
from tests.tracking.test_figures import FILES

ROOT = Path(__file__).parent.parent
MAIN = "from stages.report import main\nmain()\n"
SECONDS = {"start": 1.0, "tracking": 0.5, "total": 10.0}
REPORTS = {
    "tokenize": {"train": {"tokens": 1000}, "vocab_size": 512, "seconds": SECONDS},
    "train": {"last_loss": 2.5, "tokens": 160, "loss": 0.1, "seconds": SECONDS},
    "profile": {"mfu": 0.5, "seconds": SECONDS},
    "evaluate": {"loss": 0.7, "bits_per_byte": 1.5, "bz2_bits_per_byte": 1.8, "seconds": SECONDS},
    "quantize": {"best": "int8", "int8": {"size_ratio": 0.3}, "seconds": SECONDS},
}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    """A project whose stages all came from the cache, after `report`."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy2(ROOT / name, folder / name)
    texts = {f"reports/{name}.json": json.dumps(report) for name, report in REPORTS.items()}
    texts |= {f"plots/{name}.csv": text for name, text in FILES.items()} | {"evaluation/samples.md": "# Once\n\nupon a time", "profile/trace.json.gz": "x"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    made = Family(folder)
    assert made.run(MAIN) == 0, made.printed()
    yield made
    made.close()


def test_the_page_the_images_and_the_key(family: Family) -> None:
    page = (family.folder / "summary/summary.md").read_text("utf-8")
    key = json.loads((family.folder / "reports/report.json").read_text("utf-8"))["key"]
    assert "**1.500 bits per byte**" in page
    assert "upon a time" in page
    assert key in page
    assert json.loads((family.folder / "reports/report.json").read_text("utf-8"))["evaluate"] == {"loss": 0.7, "bits_per_byte": 1.5}
    assert {path.name for path in (family.folder / "summary").iterdir()} == {
        "summary.md",
        "loss.png",
        "training.png",
        "loss_by_position.png",
        "phases.png",
        "quantization.png",
    }


def test_the_row_is_whole_and_closed(family: Family) -> None:
    (run,) = family.deliver()
    report = json.loads((family.folder / "reports/report.json").read_text("utf-8"))
    assert run.info.status == "FINISHED"
    assert run.data.tags["key"] == report["key"]
    assert {name: value for name, value in run.data.tags.items() if name.startswith("stage.")} == {
        **{f"stage.{name}": "CACHED" for name in REPORTS},
        "stage.report": "FINISHED",
    }
    assert run.data.metrics["evaluate.bits_per_byte"] == 1.5
    assert run.data.metrics["train.final_loss"] == 0.1
    assert run.data.metrics["train.tokens"] == 160
    assert not [name for name in run.data.metrics if name.startswith("report.evaluate")]
    assert [step for step, _ in family.history(run, "train.loss")] == list(range(1, 50))
    assert family.history(run, "train.validation_loss") == [(20, 0.5), (40, 0.4)]
    assert run.data.metrics["report.stages_seconds"] == 50
    assert run.data.metrics["report.overhead_seconds"] == 7.5
    assert run.data.params["train.learning_rate"] == "0.002"
    artifacts = family.artifacts(run)
    assert artifacts.keys() >= {
        "summary/loss.png",
        "summary/summary.md",
        "plots/train.csv",
        "profile/trace.json.gz",
        "evaluation/samples.md",
        "logs/report.log",
    }
    assert run.data.tags["mlflow.note.content"] == artifacts["summary/summary.md"]


def test_what_a_person_reads(family: Family) -> None:
    printed = family.printed()
    assert "test bits per byte" in printed
    assert "Where the time went" in printed
    assert "Traceback" not in printed


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    shutil.copy2(ROOT / "params.yaml", tmp_path / "params.yaml")
    family = Family(tmp_path)
    try:
        store.prepare(family.home)
        assert family.run(MAIN) == 1
        assert "report: reports/tokenize.json is missing; run `dvc repro tokenize`" in family.printed()
        assert "Traceback" not in family.printed()
        (run,) = family.deliver()
        assert run.info.status == "FAILED"
    finally:
        family.close()
