"""params.yaml: what is accepted means what it says, and everything else is one clear refusal."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from ruamel.yaml import YAML

from stages.params import Params, ParamsError, parse, read

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "params.yaml").read_text("utf-8")
LENGTH = f"max_tokens: {YAML(typ='safe').load(TEXT)['train']['max_tokens']}"  # as the file has it at present


def values() -> dict:
    return YAML(typ="safe").load(TEXT)


def with_value(key: str, value: object) -> dict:
    *parents, last = key.split(".")
    changed = values()
    section = changed
    for parent in parents:
        section = section[parent]
    assert last in section
    section[last] = value
    return changed


def write(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in TEXT
    path = folder / "params.yaml"
    path.write_text(TEXT.replace(old, new, 1), "utf-8")
    return path


def refusal(source: Path | dict) -> str:
    with pytest.raises(ParamsError) as caught:
        read(source) if isinstance(source, Path) else parse(source)
    return str(caught.value)


def override(path: Path, *settings: str) -> None:
    """What `dvc exp run -S` does to the file, by DVC itself."""
    from dvc.utils.hydra import apply_overrides

    apply_overrides(path, list(settings))


# What is accepted


def test_every_key_of_the_file_is_a_field_and_says_its_value():
    params = read(ROOT / "params.yaml")
    assert params.train.learning_rate == 0.002
    assert params.profile.max_trace_size == 50 * 2**20
    assert params.seed == 1337


@pytest.mark.parametrize(
    ("written", "meant"), [("1e-4", 1e-4), ("1e-4   # x", 1e-4), ("1E-4", 1e-4), ("0.0001", 1e-4), ("1", 1.0), ("010", 10.0), ("+2e-3", 2e-3)]
)
def test_learning_rate_is_a_number_however_written(tmp_path, written, meant):
    rate = read(write(tmp_path, "learning_rate: 2e-3", f"learning_rate: {written}")).train.learning_rate
    assert (rate, type(rate)) == (meant, float)


@pytest.mark.parametrize(("written", "meant"), [("2 GiB", 2 * 2**30), ("1.5 MiB", 1.5 * 2**20), ("3000000", 3_000_000), ("4 MB", 4_000_000)])
def test_sizes_become_bytes(tmp_path, written, meant):
    assert read(write(tmp_path, "max_trace_size: 50 MiB", f"max_trace_size: {written}")).profile.max_trace_size == meant


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path, line_end):
    path = tmp_path / "params.yaml"
    path.write_bytes(TEXT.replace("\n", line_end).encode("utf-8-sig"))
    assert read(path) == read(ROOT / "params.yaml")


@pytest.mark.parametrize("source", ["sotu", "inputs/text/mine", "inputs/text/*.jsonl", "hub:org/name", "hub:org/name@config"])
def test_sources(source):
    assert parse(with_value("data.source", source)).data.source == source


def test_sections_are_frozen():
    params = read(ROOT / "params.yaml")
    with pytest.raises(ValueError, match="frozen"):
        params.train.learning_rate = 1.0


# What is refused, with the key and the value


@pytest.mark.parametrize("written", ['"1e-4"', "yes", "null", ".inf", "-.inf", ".nan", "", "0", "-1", "true", "[1]", "1e400", "1e-4 x", "1,5"])
def test_learning_rate_that_is_no_positive_number(tmp_path, written):
    message = refusal(write(tmp_path, "learning_rate: 2e-3", f"learning_rate: {written}"))
    shown = repr(YAML(typ="safe").load(f"x: {written}")["x"])
    assert f"train.learning_rate: {shown}: must be" in message
    assert "1 fault" in message


@pytest.mark.parametrize("written", ["-2", "0", "1.5", "null", '"4"', "true", "4.0", "", "[4]"])
def test_accumulation_that_is_no_positive_integer(tmp_path, written):
    message = refusal(write(tmp_path, "accumulation_steps: 1 ", f"accumulation_steps: {written} "))
    assert f"train.accumulation_steps: {YAML(typ='safe').load(f'x: {written}')['x']!r}: must be" in message
    assert "micro-batches in a step" in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  learning_rate: 2e-3", "  learning_rat: 2e-3", "train.learning_rat: 0.002: unknown key; did you mean learning_rate?"),
        ("  learning_rate: 2e-3", "  learning_rat: 2e-3", "train.learning_rate: missing"),
        ("train:\n", "trane:\n", "trane: unknown key; did you mean train?"),
        ("seed: 1337", "seed: 1337\nzzz: 1", "zzz: 1: unknown key; allowed: seed, device, data"),
        ("seed: 1337", "seed: 1337\n1: 2", "1: 2: a key must be text"),
        ("    top_k: 50", "    top_k: 50\n    top_p: 1", "evaluate.samples.top_p: 1: unknown key; did you mean top_k?"),
        ("profile:\n", "profile: 3\nother:\n", "profile: 3: must hold keys of its own"),
        ("seed: 1337", "seed: 2020-01-01", "seed: datetime.date(2020, 1, 1): must be"),
        ("max_trace_size: 50 MiB", "max_trace_size: 50 parsecs", "'50 parsecs': must be a size such as 50 MiB"),
        ("max_trace_size: 50 MiB", "max_trace_size: -5", "profile.max_trace_size: -5: must be a size"),
        ("max_trace_size: 50 MiB", "max_trace_size: 0", "profile.max_trace_size: 0: must be greater than"),
        ("activation_checkpointing: none", "activation_checkpointing: some", "'some': must be 'none' or 'all'; or must be a valid integer"),
        ("experiment: underbudget", 'experiment: ""', "tracking.experiment: '': must not be empty"),
        (
            "max_epochs: null",
            "max_epochs: 2",
            f"exactly one of train.max_tokens, max_epochs, max_seconds must be set, not {LENGTH.replace(': ', '=')} and max_epochs=2",
        ),
        (LENGTH, "max_tokens: null", "must be set, not none"),
        ("num_heads: 4", "num_heads: 3", "model.hidden_size 256 is not divisible by model.num_heads 3"),
        ("[John Tyler,", "[Millard Fillmore,", "held out twice: ['Millard Fillmore']"),
        ("revision: null", "revision: abc", "data.revision is 'abc' but data.source 'sotu' is no hub dataset"),
    ],
)
def test_wrong_keys_and_values_are_named(tmp_path, old, new, said):
    assert said in refusal(write(tmp_path, old, new))


@pytest.mark.parametrize("source", ["/etc/passwd", "../text", "data/x.txt", "inputs/text/../../x", "inputs/weights/x", "~/x", "sotuu", "hub:", ""])
def test_source_outside_of_inputs(source):
    message = refusal(with_value("data.source", source))
    assert f"data.source: {source!r}" in message
    assert "inputs/text/" in message


def test_all_faults_at_once():
    faulty = with_value("train.learning_rate", -1)
    faulty["train"] |= {"max_epochs": 2.0, "presicion": "bf16"}  # a bad value, a contradiction and a typo in one section
    faulty["model"] |= {"num_heads": 3, "dropout": 7}
    faulty["seed"] = "one"
    del faulty["quantize"]["decode_tokens"]
    message = refusal(faulty)
    expected = [
        "seed: 'one'",
        "train.learning_rate: -1",
        "train.presicion: 'bf16': unknown key; did you mean precision?",
        "train: exactly one of",
        "model.dropout: 7",
        "model: model.hidden_size 256 is not divisible",
        "quantize.decode_tokens: missing",
    ]
    assert [fault for fault in expected if fault not in message] == []
    assert f"{len(expected)} faults" in message


@pytest.mark.parametrize(
    ("objective", "key", "value", "said"),
    [
        ("causal", "evaluate.stride", 257, "evaluate.stride: 257 would skip tokens; allowed: 1 to model.sequence_length (256)"),
        ("masked", "evaluate.stride", 64, "evaluate.stride: 64, but the windows of a masked model do not slide"),
        ("masked", "evaluate.gate.max_bits_per_byte", 1.5, "evaluate.gate.max_bits_per_byte: 1.5, but a masked model has no such figure"),
        ("causal", "evaluate.gate.min_masked_accuracy", 0.3, "evaluate.gate.min_masked_accuracy: 0.3, but a causal model has no such figure"),
    ],
)
def test_what_two_sections_say_against_each_other(objective, key, value, said):
    changed = with_value(key, value)
    changed["model"]["objective"] = objective
    first, line = refusal(changed).splitlines()
    assert first.endswith("has 1 fault:")
    assert line.strip().startswith(said)
    changed["model"] |= {"objective": "causal" if objective == "masked" else "masked", "sequence_length": 512}
    if key != "evaluate.stride" or objective == "masked":
        parse(changed)


# The file itself


def test_a_key_given_twice_is_refused(tmp_path):
    message = refusal(write(tmp_path, "  learning_rate: 2e-3", "  learning_rate: 2e-3\n  learning_rate: 1e-3"))
    assert 'duplicate key "learning_rate"' in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "must hold sections"),
        (b"- 1\n", "must hold sections"),
        (b"a: [", "not readable as YAML"),
        (b"a: \xff\n", "not readable as YAML"),
        (b"a: !!python/object:os.system x\n", "not readable as YAML"),
        (b"a: 1\n---\nb: 2\n", "not readable as YAML"),
    ],
)
def test_a_file_that_is_no_params_file(tmp_path, content, said):
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    assert said in refusal(path)
    assert str(path) in refusal(path)


def test_a_missing_file_and_a_folder(tmp_path):
    assert "is missing; run from the folder that holds it" in refusal(tmp_path / "params.yaml")
    assert "cannot be read" in refusal(tmp_path)


# Through DVC's own -S


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("train.learning_rate=1e-5", 1e-5),
        ("train.learning_rate=1e-4", 1e-4),
        ("train.activation_checkpointing=2", 2),
        ("train.clip_norm=null", None),
        ("data.validation=0.1", 0.1),
        ("data.source=hub:org/name@config", "hub:org/name@config"),
        ("profile.max_trace_size=1 GiB", 2**30),
    ],
)
def test_override_by_dvc_is_read_as_meant(tmp_path, setting, meant):
    path = write(tmp_path)
    override(path, setting)
    found: object = read(path)
    for key in setting.split("=")[0].split("."):
        found = getattr(found, key)
    assert found == meant


def test_override_of_a_nested_section(tmp_path):
    path = write(tmp_path)
    override(path, "train.dynamic_accumulation={max_steps:8,patience:2,min_improvement:0.01}")
    assert read(path).train.dynamic_accumulation.max_steps == 8


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.learning_rate=", "train.learning_rate: '': must be a valid number"),
        ("train.learning_rate=null", "train.learning_rate: None: must be a valid number"),
        ("train.learning_rate=yes", "train.learning_rate: 'yes': must be a valid number"),
        ('train.learning_rate="1e-4"', "train.learning_rate: '1e-4': must be a valid number"),
        ("train.learning_rate=inf", "train.learning_rate: inf: must be a finite number"),
        ('train.accumulation_steps="4"', "train.accumulation_steps: '4': must be a valid integer"),
        ("train.accumulation_steps=-2", "train.accumulation_steps: -2: must be greater"),
        ("seed=", "seed: '': must be a valid integer"),
        ("+train.lrr=1", "train.lrr: 1: unknown key"),
        ("~train.beta1", "train.beta1: missing"),
    ],
)
def test_odd_override_is_refused_by_us(tmp_path, setting, said):
    path = write(tmp_path)
    override(path, setting)
    assert said in refusal(path)


def test_override_of_an_unknown_key_is_refused_by_dvc(tmp_path):
    from dvc.exceptions import InvalidArgumentError

    path = write(tmp_path)
    with pytest.raises(InvalidArgumentError):
        override(path, "train.lrr=1")
    assert path.read_text("utf-8") == TEXT


def test_override_keeps_every_other_value(tmp_path):
    path = write(tmp_path)
    override(path, "train.learning_rate=1e-5")
    assert read(path) == parse(with_value("train.learning_rate", 1e-5))


# Properties


def test_every_field_states_what_it_is_or_has_a_plain_name():
    sections = [Params]
    for section in sections:  # grows while it is walked
        for field in section.model_fields.values():
            kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
            sections += [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    assert len(sections) >= 11
    assert all(section.__doc__ for section in sections)


@given(
    st.fixed_dictionaries(
        {
            "learning_rate": st.floats(min_value=1e-12, max_value=1e6),
            "accumulation_steps": st.integers(min_value=1, max_value=10**6),
            "clip_norm": st.none() | st.floats(min_value=1e-6, max_value=1e6),
            "activation_checkpointing": st.sampled_from(["none", "all"]) | st.integers(min_value=1, max_value=99),
            "workers": st.just("auto") | st.integers(min_value=0, max_value=64),
            "pin_memory": st.just("auto") | st.booleans(),
        }
    )
)
def test_round_trip_through_the_file(tmp_path_factory, changes):
    written = values()
    written["train"] |= changes
    params = parse(written)
    path = tmp_path_factory.mktemp("round-trip") / "params.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(params.model_dump(mode="json"), file)
    assert read(path) == params
    assert {key: getattr(params.train, key) for key in changes} == changes


def test_faults_come_before_torch_is_imported(tmp_path):
    write(tmp_path, "learning_rate: 2e-3", "learning_rate: -1")
    program = "import sys; from stages.params import ParamsError, read\ntry: read()\nexcept ParamsError as error: print(error)\nprint('torch' in sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    assert "train.learning_rate: -1" in result.stdout
    assert result.stdout.endswith("False\n"), result.stderr


@pytest.mark.parametrize("command", ["tokenize", "train", "profile", "evaluate", "quantize", "report"])
def test_a_command_says_the_fault_and_nothing_else(tmp_path, command):
    write(tmp_path, "learning_rate: 2e-3", "learning_rate: -1")
    result = subprocess.run(
        [sys.executable, "-m", f"stages.{command}"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[0] == "params.yaml has 1 fault:"
    assert "Traceback" not in result.stderr
