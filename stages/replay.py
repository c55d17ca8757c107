"""Send what earlier commands could not: everything that waits in .underbudget/outbox goes to MLflow now. `python -m stages.replay`."""

import time

from stages.tracking import outbox, processes
from stages.tracking.recorder import Recorder

PATIENCE_SECONDS = 60.0


def main() -> None:
    """Send all of it; exits 1 when something still waits."""
    home, deadline = outbox.home(), time.monotonic() + PATIENCE_SECONDS
    recorder = Recorder(home, processes.identity())
    while not (recorder.round() and not recorder.busy) and time.monotonic() < deadline:
        time.sleep(1)
    recorder.close()
    print("\n".join(recorder.news) or "nothing was left to send")
    left = [waiting.folder.name for waiting in outbox.waiting(home)]
    if left:
        raise SystemExit(f"{len(left)} still wait in {home / 'outbox'}: MLflow does not answer, or their stages still run ({', '.join(left)})")


if __name__ == "__main__":
    main()
