"""DVC stage `evaluate`: the test split, token by token, beside what compressors need for it; samples; the gate. `python -m stages.evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.params import Params, load
from stages.tracking.console import Progress, figure, table
from stages.tracking.curves import Curve
from stages.tracking.run import stage

if TYPE_CHECKING:
    from stages.data.shards import Meta, Shard
    from stages.evaluation.gate import Verdict
    from stages.evaluation.likelihood import Likelihood

MODEL, TEST_TEXT = Path("models/model"), Path("data/tokens/test.txt")
POSITIONS, SAMPLES = Path("plots/loss_by_position.csv"), Path("evaluation/samples.md")


def main() -> None:
    params = load()
    with stage("evaluate", params.model_dump(mode="json"), experiment=params.tracking.experiment) as run:
        from stages.data.shards import TOKENS_FOLDER, open_split, read_meta
        from stages.evaluation.gate import judge
        from stages.models.device import resolve
        from stages.models.storage import load as load_model

        meta, shard = read_meta(), open_split(TOKENS_FOLDER, "test")
        model = load_model(MODEL).to(resolve(params.device))
        figures = {**baselines(shard, meta), **measured(params, meta, shard, model)}
        page = written(params, meta, model)
        verdict = judge(params.evaluate, figures)
        run.report({**figures, "gate_passed": int(verdict.passed)})
        run.artifact(SAMPLES, "evaluation")
        show(figures, page, verdict)
        if verdict.missed and params.evaluate.gate.fail_stage:
            raise ValueError(f"the model does not pass evaluate.gate, and fail_stage is true: {'; '.join(verdict.missed)}. The report is written")


def baselines(shard: "Shard", meta: "Meta") -> dict[str, float]:
    """What the same text costs without a network: bits per byte, and nats per token."""
    from stages.evaluation.baselines import compressors, token_unigram

    found = {f"{name}_bits_per_byte": bits for name, bits in compressors(TEST_TEXT).items()}
    return {**found, "unigram_loss": token_unigram(shard, meta.vocab_size)}


def measured(params: Params, meta: "Meta", shard: "Shard", model: Any) -> dict[str, float]:
    """The test split under the model, by name of the figure; writes the loss by position."""
    from stages.evaluation.likelihood import measure
    from stages.evaluation.scoring import model_scorer
    from stages.evaluation.windows import split_windows

    causal = params.model.objective == "causal"
    with Progress("evaluate", shard.tokens - 1 if causal else None, "tokens") as progress:
        windows = split_windows(params, meta, shard, stride=params.evaluate.stride, batch_size=params.evaluate.batch_size)
        likelihood = measure(model_scorer(model, model.device), windows, "test", lambda tokens, loss: progress.update(tokens, loss=loss))
    with Curve(POSITIONS, ("position", "loss")) as curve:
        for position, loss in likelihood.by_position:
            curve.row(position=position, loss=loss)
    return {
        "loss": likelihood.loss,
        "perplexity": likelihood.perplexity,
        **(in_bytes(shard, likelihood) if causal else {}),
        "accuracy" if causal else "masked_accuracy": likelihood.accuracy,
        "tokens": likelihood.tokens,
        "windows": likelihood.windows,
        "tokens_read": likelihood.read,
        "tokens_per_second": likelihood.tokens_per_second,
    }


def in_bytes(shard: "Shard", likelihood: "Likelihood") -> dict[str, float]:
    """The same cost for each byte of text."""
    from stages.data.tokenizer import load as load_tokenizer
    from stages.evaluation.text_bytes import scored_bytes, token_lengths

    text_bytes = scored_bytes(shard, token_lengths(load_tokenizer(MODEL)))
    assert text_bytes, "the whole split was scored"
    return {"bits_per_byte": likelihood.bits_per_byte(text_bytes), "text_bytes": text_bytes}


def written(params: Params, meta: "Meta", model: Any) -> str:
    """The page of samples, which it also writes."""
    from stages.data.tokenizer import load as load_tokenizer
    from stages.evaluation.samples import continuations, fillings, markdown

    samples, tokenizer, length = params.evaluate.samples, load_tokenizer(MODEL), params.model.sequence_length
    if params.model.objective == "causal":
        page = markdown(continuations(model, tokenizer, samples, sequence_length=length, end_of_text=meta.end_of_text, seed=params.seed))
    else:
        assert meta.mask_token is not None, "Blocks has refused a masked model without a mask token"
        page = markdown(fillings(model, tokenizer, samples.prompts, sequence_length=length, mask_token=meta.mask_token, seed=params.seed))
    SAMPLES.parent.mkdir(parents=True, exist_ok=True)
    SAMPLES.write_text(page, "utf-8")
    return page


def show(figures: dict[str, float], page: str, verdict: "Verdict") -> None:
    """What a person reads: the model beside the baselines, its samples, the gate."""
    print(page)
    table("The test split", ("figure", "value", "what it is"), _rows(figures))
    if "bits_per_byte" in figures:  # hidden tokens cost what no compressor has to pay
        table("The same text, bits per byte", ("", "bits per byte", "what it is"), _compared(figures))
    for message in verdict.messages:
        print(f"Gate: {message}.")
    print(f"Samples: {SAMPLES}. Loss by position: {POSITIONS}.")


def _rows(figures: dict[str, float]) -> list[tuple[str, str, str]]:
    rows = [
        ("loss", f"{figures['loss']:.4f}", f"nats per predicted token; without any context {figures['unigram_loss']:.4f} (adaptive token counts)"),
        ("perplexity", f"{figures['perplexity']:.2f}", "exp(loss)"),
    ]
    if "masked_accuracy" in figures:
        rows.append(("masked accuracy", f"{figures['masked_accuracy']:.1%}", "share of hidden tokens that were the model's first choice"))
    else:
        rows.append(("accuracy", f"{figures['accuracy']:.1%}", "share of tokens that were the model's first choice"))
    speed = figure("tokens_per_second", figures["tokens_per_second"])
    rows.append(("tokens", f"{figures['tokens']:,.0f}", f"predicted, each once, from {figures['windows']:,.0f} windows"))
    why = "only hidden ones are predicted" if "masked_accuracy" in figures else "windows overlap, so that each prediction has context"
    return [*rows, ("speed", speed, f"{figures['tokens_read']:,.0f} tokens went through the model: {why}")]


def _compared(figures: dict[str, float]) -> list[tuple[str, float, str]]:
    meaning = {
        "bits_per_byte": "this model",
        "xz_bits_per_byte": "xz -9e",
        "bz2_bits_per_byte": "bz2 -9",
        "zlib_bits_per_byte": "zlib -9 (gzip)",
        "unigram_bits_per_byte": "adaptive byte counts: no context at all",
    }
    return [
        (name.removesuffix("_bits_per_byte") if what != "this model" else "model", figures[name], what) for name, what in meaning.items() if name in figures
    ]


if __name__ == "__main__":
    main()
