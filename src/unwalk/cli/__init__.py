"""The command line: one module per group of commands.

Arguments and options enter; the functions of :mod:`unwalk.api`, :mod:`unwalk.runs`,
:mod:`unwalk.audits`, :mod:`unwalk.experiments` and :mod:`unwalk.peers` do the work; text leaves, or
JSON with ``--json``.

========================= =================================================================
running, reproduce        ``run``, ``compare``, ``sweep``, ``reproduce``
evaluating                ``evaluate``
auditing                  ``audit``
capacity                  ``capacity``
planning, doctor          ``plan``, ``doctor``
calibrate, certificates   ``calibrate``, ``verify``, ``sign``
data, listing             ``data``, ``methods``, ``tasks``, ``settings``
peers, forgetting         ``peer``, ``net``, ``peer data``, ``forget``, ``peer leave``
terminal                  options, consoles and progress bars that the commands share
========================= =================================================================

Start reading at ``main`` below, which turns every error into one sentence and exit code 2.
"""

from __future__ import annotations

import typer

import unwalk
from unwalk.cli import (
    auditing,
    calibrate,
    capacity,
    certificates,
    data,
    doctor,
    evaluating,
    forgetting,
    listing,
    peers,
    planning,
    reproduce,
    running,
)
from unwalk.cli.terminal import App, say, say_refused
from unwalk.core.errors import Refused, UnwalkError

FIRST_STEPS = (
    "Start with: unwalk run --out runs/first\n\n"
    "That trains on handwritten digits while one peer is poisoned, forgets the poison in three "
    "ways, prints a table and writes runs/first/report.html, in about a minute on an idle "
    "machine."
)
app = App(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one model by passing it from peer to peer, and make it forget again.",
    epilog=FIRST_STEPS,
)
for command in (
    running.run,
    planning.plan,
    running.compare,
    running.sweep,
    capacity.capacity,
    evaluating.evaluate,
    reproduce.reproduce,
    auditing.audit,
    calibrate.calibrate,
    certificates.verify,
    certificates.sign,
    forgetting.forget,
    doctor.doctor,
    listing.methods,
    listing.tasks,
    listing.settings,
):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(peers.peer, name="peer")
app.add_typer(peers.net, name="net")


def _version(value: bool) -> None:
    if value:
        print(unwalk.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options before any command."""


def main() -> None:
    """Entry point: an error that unwalk raises on purpose is one sentence and exit code 2.

    A guarantee that is refused says as well what that means and what to do instead.
    """
    try:
        app()
    except Refused as refusal:
        say_refused(refusal)
        raise SystemExit(2) from None
    except UnwalkError as error:
        say(f"unwalk: {error}")
        raise SystemExit(2) from None
