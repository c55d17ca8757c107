"""Samples are reproducible, leave the global generator alone, and survive odd prompts."""

from typing import Any

import pytest
import torch

from stages.evaluation.samples import Continuation, Filling, continuations, fillings, markdown
from stages.models.build import build
from stages.params import Samples
from tests.evaluation.made import TEXT, text_split
from tests.models.made import tiny

LENGTH = 24
PROMPTS = ["Fellow citizens", "", TEXT * 5, " ", "`|`\n```\nx"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return text_split(tmp_path_factory.mktemp("tokens"), [TEXT, TEXT * 2])[1]


def network(tokenizer: Any, architecture: str = "gpt2", objective: str = "causal") -> Any:
    model = tiny(architecture, objective, sequence_length=LENGTH)
    return build(model, vocab_size=tokenizer.get_vocab_size(), end_of_text=0, pad_token=1, seed=1).eval()


def asked(**changes: Any) -> Samples:
    return Samples.model_validate({"prompts": PROMPTS, "tokens": 40, "temperature": 0.9, "top_k": 50} | changes)


def written(model: Any, tokenizer: Any, seed: int = 5, **changes: Any) -> list[Continuation]:
    return continuations(model, tokenizer, asked(**changes), sequence_length=LENGTH, end_of_text=0, seed=seed)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_seed_decides_and_the_global_generator_does_not(architecture: str, tokenizer: Any) -> None:
    model = network(tokenizer, architecture)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = written(model, tokenizer)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert written(model, tokenizer) == first
    assert written(model, tokenizer, seed=6) != first
    assert [sample.prompt for sample in first] == PROMPTS


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_k": 1}])
def test_without_chance_it_is_the_likeliest_token_each_time(changes: dict[str, Any], tokenizer: Any) -> None:
    model = network(tokenizer)
    (sample,) = written(model, tokenizer, prompts=["Fellow"], tokens=8, **changes)
    tokens = [0, *tokenizer.encode("Fellow", add_special_tokens=False).ids]
    begun = len(tokens)
    for _ in range(8):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    assert sample.text == tokenizer.decode(tokens[begun:], skip_special_tokens=False)


def test_more_tokens_than_the_context_holds_are_written(tokenizer: Any) -> None:
    model = network(tokenizer)
    with torch.no_grad():
        model.transformer.wte.weight[0] = 0  # end-of-text becomes unlikely
    (sample,) = written(model, tokenizer, prompts=["Fellow"], tokens=100, temperature=2.0, top_k=1000)
    assert sample.ended or len(tokenizer.encode(sample.text, add_special_tokens=False).ids) > LENGTH


def test_a_model_that_ends_the_document_stops_there(tokenizer: Any) -> None:
    model = network(tokenizer)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(model.transformer.wte.weight[0] * 100)
    (sample,) = written(model, tokenizer, prompts=["Fellow"], temperature=0.0)
    assert sample.ended
    assert sample.text == ""


def test_a_masked_model_fills_gaps(tokenizer: Any) -> None:
    model = network(tokenizer, "bert", "masked")
    found = fillings(model, tokenizer, PROMPTS, sequence_length=LENGTH, mask_token=2, seed=5)
    assert found == fillings(model, tokenizer, PROMPTS, sequence_length=LENGTH, mask_token=2, seed=5)
    assert len(found) == len(PROMPTS)
    for filling in found:
        assert filling.gaps and all(len(gap.guesses) == 3 for gap in filling.gaps)
        shares = [share for gap in filling.gaps for _, share in gap.guesses]
        assert all(0 < share <= 1 for share in shares)
        assert all(f"[{number}]" in filling.prompt for number in range(1, len(filling.gaps) + 1))
    assert found[1].gaps[0].token == ""
    assert len(found[2].gaps) == round(0.2 * LENGTH)


def test_hidden_tokens_put_back_give_the_prompt(tokenizer: Any) -> None:
    (filling,) = fillings(network(tokenizer, "bert", "masked"), tokenizer, ["Fellow citizens of the Senate"], sequence_length=LENGTH, mask_token=2, seed=5)
    text = filling.prompt
    for number, gap in enumerate(filling.gaps, start=1):
        text = text.replace(f"[{number}]", gap.token)
    assert text == "Fellow citizens of the Senate"


def test_the_page_shows_text_as_text(tokenizer: Any) -> None:
    model = network(tokenizer)
    page = markdown(written(model, tokenizer))
    assert page.count("## ") == len(PROMPTS)
    assert "(empty prompt)" in page
    assert "````text\n`|`\n```\nx" in page
    masked = markdown(fillings(network(tokenizer, "bert", "masked"), tokenizer, PROMPTS, sequence_length=LENGTH, mask_token=2, seed=5))
    assert masked.count("| gap | hidden | guesses |") == len(PROMPTS)


def test_no_prompts_are_no_samples() -> None:
    empty: list[Filling] = []
    assert "evaluate.samples.prompts" in markdown(empty)
