"""The one training loop: accumulate, clip, step, in textbook order; it knows nothing of files, DVC or MLflow."""

import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.profiler import record_function

from stages.data.batches import Batch
from stages.models.heads import summed_loss
from stages.training.accumulation import Groups
from stages.training.dropout import seed_generators
from stages.training.guard import Guard
from stages.training.length import Length
from stages.training.optimizer import clip, global_norm, set_learning_rate, trained
from stages.training.precision import Precision
from stages.training.schedule import Schedule
from stages.training.step import Fit, OnStep, Step

CPU = torch.device("cpu")


def fit(
    model: nn.Module,
    batches: Iterator[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    length: Length,
    learning_rate: Schedule,
    accumulation: int | Callable[[], int] = 1,
    loss_chunk: int = 512,
    clip_norm: float | None = None,
    precision: Precision | None = None,
    scaler: torch.amp.GradScaler | None = None,
    max_skipped_steps: int = 20,
    device: torch.device = CPU,
    seed: int = 0,
    on_step: OnStep = lambda step: None,
) -> Fit:
    """Train `model`, already on `device`, until `length` is reached, the batches end or `on_step` raises Stop.

    A step's loss is the sum of the cross entropy over the predicted tokens of all its micro-batches / their number, so how it is cut into
    micro-batches does not change the gradient. `learning_rate` maps progress (0 to 1), taken at the middle of the step, to a rate. A loss or gradient
    that is not finite raises NonFiniteError with the number of the first such step, whose update never reaches the weights; on the CPU in that
    step, elsewhere when somebody reads a loss, at the latest after guard.CHECK_INTERVAL steps. `precision` None: fp32; `scaler` None: none.
    """
    model.train()
    precision = precision or Precision("fp32", device.type)
    scaler = scaler or torch.amp.GradScaler(device.type, enabled=False)
    guard = Guard(optimizer, device, scaled=scaler.is_enabled(), max_skipped_steps=max_skipped_steps)
    groups, parameters, done = Groups(batches, accumulation), trained(optimizer), Fit()
    began = ended = time.perf_counter()
    while (before := length.progress(done)) < 1 and not done.stopped:
        with record_function("data_wait"):
            group = groups.next()
        if not group:
            break
        predicted = done.read(group)  # tokens predicted by the whole step, known before the first backward
        if predicted == 0:
            continue

        summed = torch.zeros((), device=device)
        for batch in group:
            with record_function("host_to_device"):
                batch = batch.to(device, non_blocking=True)
            seed_generators(seed, batch.epoch, batch.start, device)
            with record_function("forward"), precision.autocast():
                loss = summed_loss(model, batch.inputs, batch.labels, batch.attention_mask, chunk=loss_chunk, predicted=batch.predicted)
            with record_function("backward"):
                scaler.scale(loss / predicted).backward()  # type: ignore[no-untyped-call]
            summed += loss.detach()

        with record_function("optimizer"):
            scaler.unscale_(optimizer)
            norm = global_norm(parameters)
            figures = guard.observe(done.steps, summed, norm)
            clip(parameters, norm, clip_norm)
            done.seconds = time.perf_counter() - began
            rate = set_learning_rate(optimizer, learning_rate((before + length.progress(done)) / 2))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

        step = Step(
            index=done.steps,
            learning_rate=rate,
            tokens=sum(batch.tokens for batch in group),
            total_tokens=done.tokens,
            predicted=predicted,
            epoch=done.epoch,
            accumulation_steps=len(group),
            progress=length.progress(done),
            seconds=time.perf_counter() - ended,
            _figures=figures,
            _guard=guard,
        )
        waited = guard.waited_seconds
        done.tell(on_step, step)
        done.seconds = time.perf_counter() - began
        ended = began + done.seconds - (guard.waited_seconds - waited)  # on a GPU most of a step passes while `on_step` waits for a loss
    guard.check()
    done.skipped_steps = guard.skipped_steps
    return done
