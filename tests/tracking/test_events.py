"""TensorBoard's own reader finds what was written."""

import math
from pathlib import Path

from stages.tracking.events import Events


def test_scalars_come_back_without_those_that_are_not_finite(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Events(tmp_path / "train") as events:
        for step in range(1, 6):
            events.scalars(step, {"loss": 1 / step, "norm": math.nan if step == 3 else 2.0})
        events.scalars(6, {"norm": math.inf})
    found = EventAccumulator(str(tmp_path / "train"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "norm"}
    assert [event.step for event in found.Scalars("loss")] == [1, 2, 3, 4, 5]
    assert [event.step for event in found.Scalars("norm")] == [1, 2, 4, 5]
