"""DVC stage `train`: the network of params.yaml, trained on the tokens; its best and its last weights. `python -m stages.train`."""

import math
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stages.params import load
from stages.tracking.console import Progress, duration, figure, number, size, table
from stages.tracking.curves import Curve
from stages.tracking.events import Events
from stages.tracking.run import Run, stage

if TYPE_CHECKING:
    from stages.memory.measure import MemoryWatch
    from stages.training.setup import Setup
    from stages.training.step import Fit, Step

TOKENIZER = Path("data/tokenizer")
BEST, LAST = Path("models/model"), Path("models/last")
CURVE, VALIDATION_CURVE = Path("plots/train.csv"), Path("plots/validation.csv")
TENSORBOARD = Path("tensorboard/train")


def main() -> None:
    params = load()
    with stage("train", params.model_dump(mode="json"), experiment=params.tracking.experiment) as run:
        from stages.data.shards import read_meta
        from stages.memory.measure import MemoryWatch
        from stages.models import device
        from stages.training import setup

        meta = read_meta()
        if not TOKENIZER.is_dir():
            raise ValueError(f"{TOKENIZER} is missing, and the weights are kept together with it; run `dvc repro tokenize`")
        with MemoryWatch(device.resolve(params.device)) as watch:
            ready = setup.prepare(params, meta)
            with Training(run, ready, watch) as training:
                done = training.run()
            peaks = {"device_peak_bytes": watch.peak_bytes(), "allocator_peak_bytes": watch.allocator_peak_bytes()}
        report = {**training.summary.report(done, len(ready.train)), **ready.facts(), **peaks}
        run.report(report)
        show(report, watch.note)


class Training:
    """A run of `fit` with all that it knows nothing of: curves, validation, the weights kept, the line that a person sees."""

    def __init__(self, run: Run, setup: "Setup", watch: "MemoryWatch") -> None:
        from stages.training.summary import Summary

        self._run, self._setup, self._watch = run, setup, watch
        self._curve = Curve(CURVE, ("step", "tokens", "loss", "learning_rate", "grad_norm", "tokens_per_second", "memory_bytes", "accumulation_steps"))
        self._validations = Curve(VALIDATION_CURVE, ("step", "tokens", "loss"))
        self._events = Events(TENSORBOARD)
        self._progress = Progress("train", setup.length.amount, setup.length.unit)
        self.summary = Summary()
        self._step: Step | None = None  # the last one taken
        self._late = setup.device.type != "cpu"  # read a step while the device works on the next
        self._unread: Step | None = None
        self._tokens, self._seconds = 0, 0.0  # since the last point of the curves
        self._figures: dict[str, float] = {}

    def run(self) -> "Fit":
        """Train, validate and keep the weights; NonFiniteError leaves the best ones as they are and writes no last ones."""
        from stages.training.step import NonFiniteError

        try:
            done = self._setup.fit(self.on_step)
            self._finish()
        except NonFiniteError as error:
            self._run.point(error.step, {error.figure: math.nan, "skipped_steps": error.skipped_steps})
            best = f"those of the best validation, after step {self.summary.best_step}, stay in {BEST}" if self.summary.best_step else "none had been kept yet"
            print(f"train: stopped at step {error.step}; of the weights, {best}")
            raise
        return done

    def on_step(self, step: "Step") -> None:
        """What happens after every step."""
        self._step = step
        self.summary.time(step)
        due, self._unread = (self._unread, step) if self._late else (step, None)
        if due is not None:
            self._read(due)
        if step.index % self._setup.params.train.validation_interval == 0:
            self._validate(step)

    def _read(self, step: "Step", always: bool = False) -> None:
        self._tokens += step.tokens
        self._seconds += step.seconds
        if always or step.index == 1 or step.index % self._setup.params.train.log_interval == 0:
            self._point(step)
        if self.summary.validated_step:
            self._figures["validation_loss"] = self.summary.validation_loss
        self._progress.update(step.progress * self._setup.length.amount, step=step.index, **self._figures)

    def _point(self, step: "Step") -> None:
        """One point of every training curve; waits for the device."""
        self.summary.loss(step)
        values = {
            "loss": self.summary.last_loss,
            "learning_rate": step.learning_rate,
            "grad_norm": step.grad_norm,
            "tokens_per_second": self._tokens / self._seconds,
        }
        memory_bytes = self._watch.current_bytes()
        if memory_bytes is not None:
            values["memory_bytes"] = memory_bytes
        values["accumulation_steps"] = step.accumulation_steps
        self._curve.row(step=step.index, tokens=step.total_tokens, **values)
        self._run.point(step.index, values)
        self._events.scalars(step.index, {f"train/{name}": value for name, value in values.items()})
        self._figures = {name: values[name] for name in ("loss", "tokens_per_second", "memory_bytes") if name in values}
        self._tokens, self._seconds = 0, 0.0

    def _validate(self, step: "Step") -> None:
        """Measure the validation loss, keep the weights when it is the best so far."""
        from stages.training.guard import ADVICE
        from stages.training.step import NonFiniteError

        step.check()
        began = perf_counter()
        loss = self._setup.validate()
        self.summary.validation_seconds += perf_counter() - began
        self._validations.row(step=step.index, tokens=step.total_tokens, loss=loss)
        self._run.point(step.index, {"validation_loss": loss})
        self._events.scalars(step.index, {"validation/loss": loss})
        if not math.isfinite(loss):
            raise NonFiniteError(step.index, "validation_loss", f"the validation loss after step {step.index} is {loss}; {ADVICE}")
        self._setup.adapt(loss)
        if self.summary.validation(step, loss):
            self._save(BEST)

    def _save(self, folder: Path) -> None:
        from stages.models.storage import save

        began = perf_counter()
        save(self._setup.model, folder, TOKENIZER)
        self.summary.saving_seconds += perf_counter() - began

    def _finish(self) -> None:
        """The end is always read and validated."""
        assert self._step is not None, "the blocks of every split hold something to predict"
        if self._unread is not None:
            self._read(self._unread)
        if self._seconds:
            self._point(self._step)
        if self.summary.validated_step != self._step.index:
            self._validate(self._step)
        self._save(LAST)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for part in (self._progress, self._curve, self._validations, self._events):
            part.close()


def show(report: dict[str, Any], memory_note: str | None) -> None:
    """The closing summary, for a person."""
    seconds, peak = report["seconds"], report["device_peak_bytes"]
    rows = [
        (
            "read",
            f"{number(report['tokens'])} tokens",
            f"{number(report['steps'])} steps, {report['epochs']:.3g} epochs, {report['skipped_steps']} steps skipped",
        ),
        ("loss", f"{report['last_loss']:.4f}", f"of the last step, in nats per token; of the first {report['first_loss']:.4f}"),
        ("validation loss", f"{report['best_validation_loss']:.4f}", f"the best, after step {report['best_step']}; at the end {report['validation_loss']:.4f}"),
        ("speed", figure("tokens_per_second", report["tokens_per_second"]), "while training, without validation and saving"),
        ("training", duration(seconds["training"]), f"an epoch takes {duration(seconds['epoch'])}"),
        ("step", f"{seconds['step_median'] * 1e3:.0f} ms", f"in the median; nine in ten take less than {seconds['step_p90'] * 1e3:.0f} ms"),
        ("validation", duration(seconds["validation"]), f"saving took {duration(seconds['saving'])}, compiling {duration(report['compile_seconds'])}"),
        ("peak memory", "not measured" if peak is None else size(peak), memory_note or "device_peak: the most that training took from the device"),
        (
            "arithmetic",
            report["precision"],
            f"on {report['device']}; {number(report['parameters'])} parameters, AdamW {'fused' if report['fused_optimizer'] else 'plain'}",
        ),
        ("weights", str(BEST), f"of the best validation; of the last step: {LAST}"),
    ]
    table("Trained", ("figure", "value", "what it is"), rows)


if __name__ == "__main__":
    main()
