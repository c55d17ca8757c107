"""From params.yaml and a folder of tokens to everything `fit` needs; every fault of the user comes out here, before any long work."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.data.batches import Batch, Blocks, spread, stream
from stages.data.shards import TOKENS_FOLDER, Meta, Split, open_split
from stages.models import device as devices
from stages.models.build import build
from stages.params import Params, Train
from stages.training import length as lengths
from stages.training import loader as loaders
from stages.training import optimizer as optimizers
from stages.training import precision as precisions
from stages.training import schedule as schedules
from stages.training.accumulation import DynamicAccumulation
from stages.training.checkpoint import checkpoint_layers
from stages.training.compiling import compile_layers, warm_up
from stages.training.fit import fit
from stages.training.length import Length
from stages.training.loader import Loader
from stages.training.precision import Precision
from stages.training.schedule import Schedule
from stages.training.step import Fit, OnStep
from stages.training.validation import mean_loss


@dataclass(frozen=True)
class Setup:
    """A training that is ready to start; `fit` and `validate` may be called any number of times."""

    params: Params
    model: Any  # a transformers model on `device`, weights in fp32
    optimizer: torch.optim.AdamW
    device: torch.device
    precision: Precision
    scaler: torch.amp.GradScaler
    train: Blocks
    validation: Blocks
    loader: Loader
    length: Length
    learning_rate: Schedule
    accumulation: int | Callable[[], int]
    checkpointed_layers: int
    compile_seconds: float

    def batches(self) -> Iterator[Batch]:
        """Endless shuffled micro-batches of the train split, from its first epoch's first."""
        settings = self.loader
        return stream(
            self.train,
            self.params.train.batch_size,
            workers=settings.workers,
            prefetch=settings.prefetch,
            pin_memory=settings.pin_memory,
        )

    def fit(self, on_step: OnStep = lambda step: None, length: Length | None = None) -> Fit:
        """Train for `length`, or as long as params.yaml says."""
        train = self.params.train
        return fit(
            self.model,
            self.batches(),
            self.optimizer,
            length=length or self.length,
            learning_rate=self.learning_rate,
            accumulation=self.accumulation,
            loss_chunk=train.loss_chunk,
            clip_norm=train.clip_norm,
            precision=self.precision,
            scaler=self.scaler,
            max_skipped_steps=train.loss_scale.max_skipped_steps,
            device=self.device,
            seed=self.params.seed,
            on_step=on_step,
        )

    def validate(self) -> float:
        """Loss on the validation split: nats per predicted token, the same tokens each time."""
        train = self.params.train
        batches = spread(self.validation, train.batch_size, train.validation_tokens)
        return mean_loss(self.model, batches, precision=self.precision, device=self.device, loss_chunk=train.loss_chunk)

    def adapt(self, validation_loss: float) -> None:
        """Let dynamic accumulation, where it is on, follow the validation loss."""
        if isinstance(self.accumulation, DynamicAccumulation):
            self.accumulation.observe(validation_loss)

    def facts(self) -> dict[str, Any]:
        """What `auto` and the machine made of the settings."""
        return {
            "device": str(self.device),
            "precision": self.precision.name,
            "fused_optimizer": optimizers.is_fused(self.optimizer),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "checkpointed_layers": self.checkpointed_layers,
            "accumulation_steps": self.accumulation() if callable(self.accumulation) else self.accumulation,
            "workers": self.loader.workers,
            "compile_seconds": self.compile_seconds,
        }


def prepare(params: Params, meta: Meta, tokens_folder: Path = TOKENS_FOLDER) -> Setup:
    """Build and check everything that a training of `params` on the tokens of `meta` needs. Raises ValueError for every fault that can be known now."""
    device, train = devices.resolve(params.device), params.train
    blocks = {split: _blocks(params, meta, tokens_folder, split) for split in ("train", "validation")}
    precisions.allow_tf32(train.tf32, device)
    model = build(params.model, vocab_size=meta.vocab_size, end_of_text=meta.end_of_text, pad_token=meta.pad_token, seed=params.seed)
    precision = precisions.resolve(train.precision, device, sum(parameter.numel() for parameter in model.parameters()))
    model.to(device)
    checkpointed_layers = checkpoint_layers(model, train.activation_checkpointing)
    compile_seconds = 0.0
    if train.compile is not None:
        compile_layers(model, train.compile)
        batch = blocks["train"].batch(0, 0, min(train.batch_size, len(blocks["train"])))
        compile_seconds = warm_up(model, batch.to(device), precision=precision, loss_chunk=train.loss_chunk)
    return Setup(
        params=params,
        model=model,
        optimizer=optimizers.from_params(model, train),
        device=device,
        precision=precision,
        scaler=precisions.gradient_scaler(precision, train.loss_scale),
        train=blocks["train"],
        validation=blocks["validation"],
        loader=loaders.resolve(train, device),
        length=lengths.from_params(train, len(blocks["train"])),
        learning_rate=schedules.from_params(train),
        accumulation=_accumulation(train),
        checkpointed_layers=checkpointed_layers,
        compile_seconds=compile_seconds,
    )


def _blocks(params: Params, meta: Meta, tokens_folder: Path, split: Split) -> Blocks:
    return Blocks(
        open_split(tokens_folder, split),
        sequence_length=params.model.sequence_length,
        objective=params.model.objective,
        seed=params.seed,
        mask_token=meta.mask_token,
        vocab_size=meta.vocab_size,
        masked_share=params.model.masked_share,
        partial=split == "validation",
    )


def _accumulation(train: Train) -> int | DynamicAccumulation:
    dynamic = train.dynamic_accumulation
    if dynamic is None:
        return train.accumulation_steps
    return DynamicAccumulation(train.accumulation_steps, max_steps=dynamic.max_steps, patience=dynamic.patience, min_improvement=dynamic.min_improvement)
