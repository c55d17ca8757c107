"""Run a quantized model: `load(folder)` gives a session; an ONNX Runtime one needs numpy and onnxruntime, no torch and no transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from stages.quantization import manifest

if TYPE_CHECKING:
    from torch import nn

GRAPH = "model.onnx"
WEIGHTS = "int8.safetensors"  # not model.safetensors: from_pretrained must not take int8 values for weights

Logits = npt.NDArray[np.float32]


class Session(Protocol):
    """A loaded model."""

    def __call__(self, input_ids: npt.ArrayLike, attention_mask: npt.ArrayLike | None = None) -> Logits:
        """Logits (batch, sequence, vocabulary) of token ids (batch, sequence); the mask, 1 for tokens and 0 for padding, is for masked models only."""

    def extend(self, input_ids: npt.ArrayLike, cache: Any = None) -> tuple[Logits, Any]:
        """Causal models: logits of `input_ids` (batch, sequence) that follow what `cache` holds, and the cache that holds them too."""


def load(folder: str | Path = "models/quantized", threads: int | None = None) -> Session:
    """The model in `folder`, checked against its manifest, on the CPU; `threads` null: as many as the runtime thinks best.

    Raises ValueError when the folder is incomplete or changed.
    """
    folder = Path(folder)
    values = manifest.read(folder)
    if values["variant"] == "torch":
        return TorchSession(_assembled(folder, values, threads))
    return OnnxSession(folder / GRAPH, threads)


class OnnxSession:
    """A graph in ONNX Runtime."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._past = [value for value in self._session.get_inputs() if value.name.startswith("past_key_values.")]
        self._masked = any(value.name == "attention_mask" for value in self._session.get_inputs())
        self._outputs = [value.name for value in self._session.get_outputs()]

    def __call__(self, input_ids: npt.ArrayLike, attention_mask: npt.ArrayLike | None = None) -> Logits:
        tokens = _tokens(input_ids)
        feed = {"input_ids": tokens, **self._empty(len(tokens))}
        if self._masked:
            feed["attention_mask"] = np.ones_like(tokens) if attention_mask is None else np.asarray(attention_mask, np.int64)
        elif attention_mask is not None:
            raise ValueError("a causal model takes whole sequences without padding, so no attention_mask; give sequences of one length in a batch")
        logits: Logits = self._session.run(["logits"], feed)[0]
        return logits

    def extend(self, input_ids: npt.ArrayLike, cache: Any = None) -> tuple[Logits, Any]:
        if not self._past:
            raise ValueError("a masked model has no cache to extend; call the session with the whole sequence")
        tokens = _tokens(input_ids)
        logits, *present = self._session.run(self._outputs, {"input_ids": tokens, **(cache or self._empty(len(tokens)))})
        return logits, {name.replace("present.", "past_key_values."): value for name, value in zip(self._outputs[1:], present, strict=True)}

    def _empty(self, batch: int) -> dict[str, npt.NDArray[Any]]:
        """The cache before the first token: (batch, heads, 0, head size) a key and a value a layer."""
        return {value.name: np.zeros((batch, value.shape[1], 0, value.shape[3]), np.float32) for value in self._past}


class TorchSession:
    """A model in eager PyTorch, int8 or not."""

    def __init__(self, model: "nn.Module") -> None:
        self.model = model

    def __call__(self, input_ids: npt.ArrayLike, attention_mask: npt.ArrayLike | None = None) -> Logits:
        import torch

        mask = None if attention_mask is None else torch.from_numpy(np.asarray(attention_mask, np.int64))
        with torch.inference_mode():
            logits: Logits = self.model(input_ids=torch.from_numpy(_tokens(input_ids)), attention_mask=mask).logits.numpy()
        return logits

    def extend(self, input_ids: npt.ArrayLike, cache: Any = None) -> tuple[Logits, Any]:
        import torch

        with torch.inference_mode():
            output = self.model(input_ids=torch.from_numpy(_tokens(input_ids)), cache=cache, use_cache=True)
        return output.logits.numpy(), output.cache


def _tokens(input_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Token ids (batch, sequence)."""
    tokens = np.asarray(input_ids, np.int64)
    if tokens.ndim != 2:
        raise ValueError(f"input_ids must be (batch, sequence), such as [[1, 2, 3]], not of shape {tokens.shape}")
    return tokens


def _assembled(folder: Path, values: dict[str, Any], threads: int | None) -> "nn.Module":
    """The torch variant: config.json gives the model, the int8 file its weights."""
    import torch
    from safetensors.torch import load_file

    from stages.models.architecture import config_class, model_class
    from stages.quantization.eager import assemble

    if threads:
        torch.set_num_threads(threads)
    config = config_class(values["objective"], values["architecture"]).from_pretrained(folder)
    kind = model_class(values["objective"], config)
    model = kind._from_config(config, dtype=torch.float32, attn_implementation="sdpa" if kind._supports_sdpa else "eager")
    return assemble(model, load_file(folder / WEIGHTS))
