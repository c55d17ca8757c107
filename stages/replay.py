"""Send what earlier commands could not: everything that waits in .underbudget/outbox goes to MLflow now."""

from stages.tracking import outbox
from stages.tracking.delivery import GaveUp, Patience, Stores
from stages.tracking.recorder import replay

PATIENCE_SECONDS = 60.0


def main() -> None:
    """Send all of it; exits 1 when something still waits."""
    home = outbox.home()
    try:
        for line in replay(Stores(home), patience=Patience(PATIENCE_SECONDS)):
            print(line)
    except GaveUp:
        pass
    left = [waiting.folder.name for waiting in outbox.waiting(home)]
    if left:
        raise SystemExit(f"{len(left)} still wait in {home / 'outbox'}: MLflow does not answer, or their stages still run ({', '.join(left)})")
    print("nothing waits")


if __name__ == "__main__":
    main()
