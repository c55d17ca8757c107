"""Scalars for `tensorboard --logdir`: an event file, written without torch or TensorFlow."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self


class Events:
    """A TensorBoard event file in `folder`; points reach the disk within `flush_seconds`."""

    def __init__(self, folder: Path | str, *, flush_seconds: float = 5.0) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # half a second: only for who writes events

        Path(folder).mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder), flush_secs=flush_seconds)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each named curve; a non-finite value is left out, as in every other chart."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        finite = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items() if math.isfinite(value)]
        if finite:
            self._writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=finite)))

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
