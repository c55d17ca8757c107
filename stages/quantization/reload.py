"""Whether a quantized folder, loaded in a fresh process, computes the same logits."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stages.quantization.runtimes import Session, load

ROOT = Path(__file__).resolve().parents[2]


def difference(folder: Path, session: Session, tokens: npt.NDArray[np.int64], threads: int) -> float:
    """The largest difference between the logits of `session` and of the folder it came from, loaded in a fresh process; 0.0 where all bits agree.

    `tokens` is (batch, sequence). NaN in the same places counts as equal. Raises RuntimeError with that process's words when it fails.
    """
    with tempfile.TemporaryDirectory() as place:
        tokens_file, logits_file = Path(place, "tokens.npy"), Path(place, "logits.npy")
        np.save(tokens_file, tokens)
        command = [sys.executable, "-m", "stages.quantization.reload", str(folder.resolve()), str(tokens_file), str(logits_file), str(threads)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"a fresh process could not run {folder}:\n{result.stderr[-2000:]}")
        fresh, ours = np.load(logits_file), session(tokens)
    if np.array_equal(fresh, ours, equal_nan=True):
        return 0.0
    return float(np.abs(fresh - ours).max())


def main(folder: str, tokens: str, logits: str, threads: str) -> None:
    """Write the logits that `folder` gives for the token ids in the file `tokens`."""
    np.save(logits, load(folder, int(threads))(np.load(tokens)))


if __name__ == "__main__":
    main(*sys.argv[1:])
