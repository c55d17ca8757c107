"""What the CSV files hold is drawn, and nothing else."""

from pathlib import Path

import pytest

from stages.tracking import figures

FILES = {
    "train": "step,tokens,loss,learning_rate,grad_norm,tokens_per_second,memory_bytes\n" + "".join(f"{i},{i * 8},{3 / i},0.1,,100,\n" for i in range(1, 50)),
    "validation": "step,tokens,loss\n20,160,0.5\n40,320,0.4\n",
    "loss_by_position": "position,loss\n0,5\n1,4\n2,3.5\n",
    "phases": "phase,seconds\nforward,0.5\nbackward,\n",
    "quantization": "variant,bytes,perplexity,prefill_tokens_per_second,decode_tokens_per_second\nfp32,100,2,5,3\nint8,30,,8,\n",
}
NAMES = {"loss", "training", "loss_by_position", "phases", "quantization"}


def write(folder: Path, names: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in names.items():
        (folder / f"{name}.csv").write_text(text, "utf-8")
    return folder


def test_every_figure_is_an_image(tmp_path: Path) -> None:
    drawn = figures.draw(write(tmp_path / "plots", FILES), tmp_path / "summary")
    assert {path.stem for path in drawn} == NAMES
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 3000 for path in drawn)


@pytest.mark.parametrize("missing", FILES)
def test_without_a_file_the_others_are_drawn(tmp_path: Path, missing: str) -> None:
    drawn = figures.draw(write(tmp_path / "plots", {name: text for name, text in FILES.items() if name != missing}), tmp_path / "summary")
    gone = {"train": {"loss", "training"}, "validation": set()}.get(missing, {missing})
    assert {path.stem for path in drawn} == NAMES - gone


@pytest.mark.parametrize("text", ["", "step,tokens,loss\n"])
def test_nothing_is_drawn_of_empty_files(tmp_path: Path, text: str) -> None:
    assert figures.draw(write(tmp_path / "plots", dict.fromkeys(FILES, text)), tmp_path / "summary") == []


def test_smoothing_leaves_gaps_alone() -> None:
    assert figures.smooth([2.0, None, 4.0, 6.0], share=0.5) == [2.0, None, 4.0, 5.0]
    assert figures.smooth([1.0, 2.0], share=0.01) == [1.0, 2.0]
