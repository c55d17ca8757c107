"""What a model writes: continued prompts of a causal model, filled gaps of a masked one, for a person to read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stages.params import Samples

HIDDEN_SHARE = 0.2  # of a prompt's tokens that a masked model has to fill in
GUESSES = 3


@dataclass(frozen=True)
class Continuation:
    """What a causal model wrote behind `prompt`; `ended` when it closed the document itself."""

    prompt: str
    text: str
    ended: bool


@dataclass(frozen=True)
class Gap:
    """One hidden token and what a masked model takes it for, likeliest first, each with its probability."""

    token: str
    guesses: list[tuple[str, float]]


@dataclass(frozen=True)
class Filling:
    """A prompt with gaps, and what a masked model put into them."""

    prompt: str
    gaps: list[Gap]


def continuations(model: Any, tokenizer: Any, samples: Samples, *, sequence_length: int, end_of_text: int, seed: int) -> list[Continuation]:
    """Continue every prompt by up to `samples.tokens` tokens, drawn by temperature among the `samples.top_k` likeliest.

    Depends on `seed` and the prompt alone; the global generators are left as they are. An empty prompt begins a document; of a long one the last tokens
    that fit are read. A model that has read `sequence_length` tokens goes on from the later half of them.
    """
    found = []
    for prompt in samples.prompts:
        tokens = [end_of_text, *tokenizer.encode(prompt, add_special_tokens=False).ids]
        written = _continue(model, tokens, _Choice(samples, seed), samples.tokens, sequence_length, end_of_text)
        ended = written[-1] == end_of_text
        found.append(Continuation(prompt, tokenizer.decode(written[:-1] if ended else written, skip_special_tokens=False), ended))
    return found


class _Choice:
    """Draws the next token from logits with a generator of its own; called by `generate` for each token, it leaves only the drawn one possible."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.temperature, self.top_k = samples.temperature, samples.top_k
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`scores` (1, vocabulary): 0 for the drawn token, -inf for all others."""
        logits = scores[0].float().cpu()
        best = logits.topk(min(self.top_k, len(logits)))
        drawn = best.indices[0]
        if self.temperature > 0:
            shares = (best.values / self.temperature).softmax(0)
            drawn = best.indices[torch.multinomial(shares, 1, generator=self.generator)[0]]
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, drawn] = 0
        return chosen


def _continue(model: Any, tokens: list[int], choose: _Choice, count: int, context: int, end_of_text: int) -> list[int]:
    """The ids written behind `tokens`, at most `count`; the last one is `end_of_text` when the model ended there."""
    written: list[int] = []
    while len(written) < count and (not written or written[-1] != end_of_text):
        known = [*tokens, *written]
        kept = known if len(known) < context else known[-max(1, context // 2) :]
        read = torch.tensor([kept], device=model.device)  # (1, sequence)
        more = model.generate(
            read,
            attention_mask=torch.ones_like(read),
            max_new_tokens=min(count - len(written), context - len(kept)),
            do_sample=False,  # `choose` has drawn already
            logits_processor=[choose],
            eos_token_id=end_of_text,
            pad_token_id=end_of_text,
            use_cache=True,
        )
        written += more[0, len(kept) :].tolist()
    return written


def fillings(model: Any, tokenizer: Any, prompts: Sequence[str], *, sequence_length: int, mask_token: int, seed: int) -> list[Filling]:
    """Hide a fifth of each prompt's tokens (one at least, the same for the same `seed`) and let the model say what stood there.

    An empty prompt is one gap without anything around it; of a long one the last `sequence_length` tokens are read.
    """
    found = []
    for prompt in prompts:
        tokens = tokenizer.encode(prompt, add_special_tokens=False).ids[-sequence_length:] or [mask_token]
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed)).tolist()
        places = sorted(order[: max(1, round(HIDDEN_SHARE * len(tokens)))])
        found.append(_fill(model, tokenizer, tokens, places, mask_token))
    return found


def _fill(model: Any, tokenizer: Any, tokens: list[int], places: list[int], mask_token: int) -> Filling:
    hidden = [mask_token if place in places else token for place, token in enumerate(tokens)]
    with torch.no_grad():
        shares = model(input_ids=torch.tensor([hidden], device=model.device)).logits[0, places].float().softmax(-1)  # (gaps, vocabulary)
    best = shares.topk(min(GUESSES, shares.shape[-1]))
    gaps = []
    for place, indices, values in zip(places, best.indices.tolist(), best.values.tolist(), strict=True):
        guesses = [(tokenizer.decode([index]), value) for index, value in zip(indices, values, strict=True)]
        gaps.append(Gap("" if tokens[place] == mask_token else tokenizer.decode([tokens[place]]), guesses))
    return Filling(_with_blanks(tokenizer, hidden, places), gaps)


def _with_blanks(tokenizer: Any, hidden: list[int], places: list[int]) -> str:
    """The text with [1], [2], ... where tokens are hidden."""
    pieces, begin = [], 0
    for number, place in enumerate(places, start=1):
        pieces += [tokenizer.decode(hidden[begin:place]), f"[{number}]"]
        begin = place + 1
    return "".join([*pieces, tokenizer.decode(hidden[begin:])])


def markdown(found: Sequence[Continuation | Filling]) -> str:
    """The samples as a page; text stands in fences, so that no character of it is taken for markup."""
    pages = [_continued(each) if isinstance(each, Continuation) else _filled(each) for each in found]
    return "# Samples\n\n" + "\n".join(pages or ["There are no prompts in evaluate.samples.prompts.\n"])


def _continued(sample: Continuation) -> str:
    title = sample.prompt.strip() or "(empty prompt)"
    ending = "The model ended the document here.\n" if sample.ended else ""
    return f"## {_one_line(title)}\n\n{_fenced(sample.prompt + sample.text)}\n{ending}"


def _filled(sample: Filling) -> str:
    rows = [
        f"| {number} | {_cell(gap.token)} | " + ", ".join(f"{_cell(text)} {share:.0%}" for text, share in gap.guesses) + " |"
        for number, gap in enumerate(sample.gaps, start=1)
    ]
    return "\n".join([_fenced(sample.prompt), "", "| gap | hidden | guesses |", "| --- | --- | --- |", *rows, ""])


def _fenced(text: str) -> str:
    longest = max((len(run) for run in text.replace("\n", " ").split(" ") if set(run) == {"`"}), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:100]


def _cell(text: str) -> str:
    return "`" + text.replace("\n", "\\n").replace("|", "\\|").replace("`", "'") + "`" if text else "(nothing)"
