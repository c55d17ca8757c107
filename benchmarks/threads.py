"""OpenMP's idle threads asleep or spinning: the same arithmetic alone and beside one busy process. `python -m benchmarks.threads`."""

import argparse
import os
import statistics
import subprocess
import sys

TARGET = {"alone": 0.9, "beside": 1.5}  # sleeping / spinning, work done in the same time
WORK = """
import sys, time
import torch
a, b, seconds = torch.randn(1024, 256), torch.randn(256, 1024), float(sys.argv[1])
def work():
    for _ in range(20):
        c = a @ b
        (torch.nn.functional.gelu(c) + c).sum()
work()
began = time.perf_counter()
rounds = 0
while time.perf_counter() - began < seconds:
    work()
    rounds += 1
print(rounds / (time.perf_counter() - began))
"""


def rate(policy: str, seconds: float) -> float:
    """Rounds a second in a fresh process whose idle threads obey `policy`."""
    environment = {**os.environ, "OMP_WAIT_POLICY": policy} if policy else {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    result = subprocess.run([sys.executable, "-c", WORK, str(seconds)], env=environment, capture_output=True, text=True, check=True)
    return float(result.stdout)


def ratios(pairs: int, seconds: float) -> list[float]:
    """Sleeping / spinning, pair by pair in turn."""
    return [rate("PASSIVE", seconds) / rate("", seconds) for _ in range(pairs)]


def beside(pairs: int, seconds: float) -> list[float]:
    """The same while another process keeps one core busy."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return ratios(pairs, seconds)
    finally:
        busy.kill()
        busy.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="an answer within a minute")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    pairs, seconds = (1, 2.0) if options.quick else (5, 4.0)
    found = {"alone": ratios(pairs, seconds), "beside": beside(pairs, seconds)}
    for name, values in found.items():
        print(f"{name:8} sleeping / spinning: median {statistics.median(values):.2f}, {min(values):.2f} to {max(values):.2f} in {len(values)} pairs")
    print(" ".join(f"{name}={statistics.median(values):.3f}" for name, values in found.items()))
    missed = [name for name, values in found.items() if statistics.median(values) < TARGET[name]]
    if options.check and missed:
        raise SystemExit(f"below target: {', '.join(missed)}")


if __name__ == "__main__":
    main()
