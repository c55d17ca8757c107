"""DVC stage `report`: one page about the experiment, plots as images, and a whole row in MLflow whatever came from the cache. `python -m stages.report`."""

from pathlib import Path
from typing import Any

from stages.params import load
from stages.tracking import processes, results
from stages.tracking.console import table
from stages.tracking.run import Run, stage

STAGES = ("tokenize", "train", "profile", "evaluate", "quantize")
PLOTS, SUMMARY, SAMPLES = Path("plots"), Path("summary"), Path("evaluation/samples.md")
# What a stage writes besides its report: curves by step with the prefix of their metrics' names, and files worth keeping with the run.
CURVES: dict[str, tuple[tuple[Path, str], ...]] = {"train": ((PLOTS / "train.csv", "train."), (PLOTS / "validation.csv", "train.validation_"))}
FILES: dict[str, tuple[Path, ...]] = {"profile": (Path("profile/trace.json.gz"),), "evaluate": (SAMPLES,)}


def main() -> None:
    params = load()
    with stage("report", params.model_dump(mode="json"), experiment=params.tracking.experiment, closing=True) as run:
        from stages.tracking import figures, summary

        reports = {name: results.read(name) for name in STAGES}
        fill(run, reports)
        SUMMARY.mkdir(exist_ok=True)
        figures.draw(PLOTS, SUMMARY)
        page = summary.markdown(run.title, run.key, reports, SAMPLES.read_text("utf-8") if SAMPLES.is_file() else "", summary.settings(run.params))
        (SUMMARY / "summary.md").write_text(page, "utf-8")
        publish(run, page)
        run.report({"key": run.key, **overhead(reports, run.command_began)}, beside=summary.headline(reports))
        table("", ("stage", "figure", "value"), summary.rows(reports))
        table("Where the time went", ("stage", "whole", "its own work", "starting, importing", "tracking"), summary.times(reports))
        print(f"{summary.verdict(reports)}\nSummary: {SUMMARY / 'summary.md'}; every experiment: make ui")


def fill(run: Run, reports: dict[str, dict[str, Any]]) -> None:
    """Give the run the figures, curves and files of the stages that DVC took from its cache."""
    for name, report in reports.items():
        curves = [(path, prefix) for path, prefix in CURVES.get(name, ()) if path.is_file()]
        run.fill(name, report, curves, [path for path in FILES.get(name, ()) if path.is_file()])


def publish(run: Run, page: str) -> None:
    """The page at the head of the run's own, the images and the plots' data beside it."""
    run.note(page)
    run.artifact(SUMMARY)
    if PLOTS.is_dir():
        run.artifact(PLOTS)


def overhead(reports: dict[str, dict[str, Any]], began: float) -> dict[str, float]:
    """Seconds of all stages together, and how many of them were not their own work, as each measured them when it ran.

    `dvc_seconds` are those of the present command, which began at `began`, that passed outside of the stages it has run.
    """
    from stages.tracking.summary import spent

    parts = {name: found for name, report in reports.items() if (found := spent(report))}
    fresh = [whole for name, (whole, *_) in parts.items() if results.path(name).stat().st_mtime >= began]
    passed = processes.started() - began
    return {
        "stages_seconds": sum(whole for whole, *_ in parts.values()),
        "overhead_seconds": sum(start + tracking for *_, start, tracking in parts.values()),
        **({"dvc_seconds": passed - sum(fresh)} if fresh and passed > sum(fresh) else {}),
    }


if __name__ == "__main__":
    main()
