"""Browse the experiments: the project's own store in MLflow's UI, on this machine only unless told otherwise. `python -m stages.ui`."""

import argparse
import contextlib
import os
import socket
import sys

from stages.params import load
from stages.tracking import outbox, store
from stages.tracking.redact import clean


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command's own options."""
    parser = argparse.ArgumentParser(prog="python -m stages.ui", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; anything but 127.0.0.1 lets others in, so put authentication before it")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument(
        "--allowed-hosts",
        metavar="NAMES",
        help="names under which browsers and other machines may reach it, separated by commas, each with or without a port: mlflow,tracking.example.org:5000",
    )
    return parser.parse_args(words)


def command(options: argparse.Namespace) -> list[str]:
    """MLflow's server; the store's address, which may hold a password, reaches it by the environment, where other users cannot see it."""
    words = [sys.executable, "-m", "mlflow", "ui", "--host", options.host, "--port", str(options.port), "--workers", "1"]
    if options.allowed_hosts:
        names = allowed_hosts(options.allowed_hosts)
        words += ["--allowed-hosts", ",".join(names), "--cors-allowed-origins", ",".join(origins(names))]
    return words


def allowed_hosts(names: str) -> list[str]:
    """MLflow compares the Host header literally, port included: every name is allowed with any port and without, and this machine always."""
    given = [name.strip() for name in names.split(",") if name.strip()]
    both = [form for name in given for form in ((name,) if ":" in name or name == "*" else (name, f"{name}:*"))]
    return list(dict.fromkeys([*both, "localhost", "localhost:*", "127.0.0.1", "127.0.0.1:*"]))


def origins(names: list[str]) -> list[str]:
    """What a browser that opened the UI under one of `names` sends as Origin: the page itself would be refused otherwise."""
    return ["*"] if "*" in names else [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]


def taken(host: str, port: int) -> bool:
    """Whether somebody listens on the port already."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def main() -> None:
    """Make the store when it is not there yet, then become MLflow's server."""
    options, home = arguments(), outbox.home()
    uri = store.uri(home)
    if store.remote(uri):
        raise SystemExit(f"MLFLOW_TRACKING_URI names a server: open {clean(uri)}")
    if taken(options.host, options.port):
        raise SystemExit(f"port {options.port} is taken (macOS keeps 5000 for AirPlay); choose another: python -m stages.ui --port {options.port + 1}")
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # more than halves its processes and memory
    name = load().tracking.experiment
    store.prepare(home)
    # the rows at once: from its own front page MLflow leads to its pages for language-model applications, where there are none of ours
    experiment = store.Store(home, name).experiment_id
    print(f"every run: http://{options.host}:{options.port}/#/experiments/{experiment}/runs?workflowType=machine_learning", flush=True)
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri
    words = command(options)
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
