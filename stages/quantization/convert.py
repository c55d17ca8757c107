"""One quantized variant of a model as a folder that stands alone: weights, configuration, tokenizer, manifest."""

import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from torch import nn

from stages.models.architecture import objective_of
from stages.quantization import manifest
from stages.quantization.counts import Counts
from stages.quantization.runtimes import GRAPH, WEIGHTS

SINGLE_FILE = 1_900_000_000  # bytes: a protobuf file holds 2 GB, larger weights lie beside it

RUN = {
    "onnxruntime": "onnxruntime.InferenceSession('model.onnx').run(['logits'], {'input_ids': int64 (batch, sequence), ...}); whole sequences, "
    "the first time with each past_key_values.* as float32 zeros of (batch, heads, 0, head size), later with the present.* of the call before; "
    "masked models instead take attention_mask (batch, sequence). Or stages.quantization.runtimes.load(folder)([[ids]]).",
    "torch": "stages.quantization.runtimes.load(folder)([[ids]]), with this project's folder on PYTHONPATH: torch's int8 layers need its code",
}


def convert(variant: str, model: nn.Module, source: Path, folder: Path) -> Counts:
    """Quantize `model`, read from the folder `source`, to the new `folder`; its Conv1D layers become nn.Linear in place, exactly.

    Raises torch.onnx.OnnxExporterError when ONNX cannot express the model.
    """
    folder.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith((".safetensors", ".safetensors.index.json")):
            shutil.copyfile(path, folder / path.name)
    counts = VARIANTS[variant](model, folder)
    config = cast(Any, model).config
    values = {
        "variant": variant,
        "objective": objective_of(config),
        "architecture": config.model_type,
        "weights": [name for name in (GRAPH, f"{GRAPH}.data", WEIGHTS) if (folder / name).exists()],
        "layers_quantized": counts.layers,
        "share_quantized": counts.share,
        "versions": {name: version(name) for name in (variant, "transformers")},
        "run": RUN[variant],
    }
    manifest.write(folder, values)
    return counts


def weight_bytes(folder: Path) -> int:
    """Bytes on disk of a quantized folder's weights, the graph that carries them included."""
    values = manifest.read(folder)
    return sum(int(values["files"][name]["bytes"]) for name in values["weights"])


def _onnxruntime(model: nn.Module, folder: Path) -> Counts:
    import onnx_ir

    from stages.models.linearize import linearize
    from stages.quantization.export import export
    from stages.quantization.rewrite import rewrite

    linearize(model)
    graph = export(model)
    counts = rewrite(graph, vocab_size=cast(Any, model).config.vocab_size, parameters=sum(weight.numel() for weight in model.parameters()))
    large = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value is not None) > SINGLE_FILE
    onnx_ir.save(graph, folder / GRAPH, external_data=f"{GRAPH}.data" if large else None)
    return counts


def _torch(model: nn.Module, folder: Path) -> Counts:
    from safetensors.torch import save_file

    from stages.quantization.eager import quantize

    tensors, counts = quantize(model)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    shutil.copymode(folder / "config.json", folder / WEIGHTS)  # safetensors writes a file that only its owner may read
    return counts


VARIANTS: dict[str, Callable[[nn.Module, Path], Counts]] = {"onnxruntime": _onnxruntime, "torch": _torch}
