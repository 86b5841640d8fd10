"""``unwalk peer data``, ``forget`` and ``peer leave``: a peer's records, and forgetting them.

A request names records by their ids.
"""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unwalk.cli.terminal import BundleArgument, JsonOption, need_peers, say, show
from unwalk.core.errors import InvalidInput

if TYPE_CHECKING:
    from unwalk.peers.forgetting.plans import Book
    from unwalk.peers.forgetting.request_form import Offer, RequestForm, RequestView
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.records.record_store import Records
    from unwalk.peers.web.client import Asker

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done or refused.")]
PAUSE = 0.2


def forget(
    peer: str = typer.Option(
        help="The peer's folder, or HOST:PORT or http(s)://... of its endpoint."
    ),
    ids: Path | None = typer.Option(None, help="File with the record ids, one per line."),
    vanished: str | None = typer.Option(
        None, help="Instead of ids: a peer that is gone for good, with all its records."
    ),
    grade: str | None = typer.Option(
        None,
        help="exact or certified, or name a --method or a budget; with none of them it is listed "
        "what this network offers, and nothing is asked.",
    ),
    epsilon: float | None = typer.Option(None, help="Epsilon of a certified request; empty: 1."),
    delta: float | None = typer.Option(None, help="Delta of a certified request; empty: 1e-5."),
    method: str | None = typer.Option(None, help="rewind, restart or seal; empty: the best."),
    request_id: str | None = typer.Option(
        None,
        help="Public id of the request; empty: a random one. Repeating one counts once.",
    ),
    token: Path | None = typer.Option(None, help="The peer's http.token, needed with an address."),
    authority: Path | None = typer.Option(
        None, help="The network's ca.pem, needed with an https address."
    ),
    name: str | None = typer.Option(
        None, help="With https: the peer's name, PEER.NETWORK, as in peer-2.clinics."
    ),
    wait: Wait = False,
    json_: JsonOption = False,
) -> None:
    """Ask a peer to forget records; unknown ids are named, and then nothing is changed."""
    need_peers()
    from unwalk.peers.forgetting.request_form import RequestForm, implied_grade, new_request_id
    from unwalk.tasks.forgetting import read_ids

    address = _address(peer)
    if vanished is None and (grade, method, epsilon, delta) == (None, None, None, None):
        _tell_offers(_offers(peer, address, token, authority, name), json_)
        if ids is not None:
            raise InvalidInput(
                f"nothing was asked: {peer} answers requests in several ways. Choose one with "
                "--grade or --method; --grade exact takes the first of the exact ones that can be."
            )
        return
    if (ids is None) == (vanished is None) or (vanished is not None and address is not None):
        raise InvalidInput("name --ids, or --vanished with the folder of another peer.")
    if vanished is not None:
        _give_up(Path(peer), vanished, request_id or f"vanished-{vanished}")
        return
    assert ids is not None
    grade = grade or implied_grade(method, epsilon, delta)
    form = RequestForm(request_id or new_request_id(), read_ids(ids), grade, epsilon, delta, method)
    if address is not None:
        asker = _asker(address, token, authority, name)
        request = asker.submit(form)
        if wait:
            request = _followed(request, lambda: asker.request(form.id))
        _tell(request, None, json_)
        return
    bundle = Path(peer)
    request = _hand_in(bundle, form)
    if wait:
        request = _until_done(bundle, form.id)
    _tell(request, bundle, json_)


def _offers(
    peer: str, address: str | None, token: Path | None, authority: Path | None, name: str | None
) -> list[Offer]:
    if address is not None:
        return _asker(address, token, authority, name).offers()
    from unwalk.peers.forgetting.offers import offers_at
    from unwalk.peers.identity.trust import Bundle

    checked = Bundle.read(Path(peer))
    with _opened(checked):
        return list(offers_at(checked))


def _tell_offers(offers: list[Offer], json_: bool) -> None:
    """What a request would cost, a method a line."""
    from unwalk.reports.numbers import human_bytes

    if json_:
        print(json.dumps({"offers": [asdict(offer) for offer in offers]}))
        return
    show("for records that were used in training:")
    for offer in offers:
        show(f"  --grade {offer.grade} --method {offer.method}", soft_wrap=True)
        if offer.reason is not None:
            show(f"    not here: {offer.reason}", soft_wrap=True)
        elif offer.hops is None:
            show(f"    {offer.words}; what it costs is known after training", soft_wrap=True)
        else:
            cost = f"{offer.hops} hops, {human_bytes(offer.bytes or 0)} of tokens"
            show(f"    {offer.words}; {cost if offer.hops else 'no hops'}", soft_wrap=True)
    show("records that no visit used are erased without a walk")


def _address(peer: str) -> str | None:
    """Where the endpoint is that ``--peer`` names; None where it names a folder.

    >>> _address("127.0.0.1:8440"), _address("b.example:8440")
    ('http://127.0.0.1:8440/', 'https://b.example:8440/')
    """
    from unwalk.peers.identity.network_file import ADDRESS
    from unwalk.peers.web.client import is_loopback

    if "://" in peer:
        return peer
    match = None if Path(peer).exists() else ADDRESS.fullmatch(peer)
    if match is None:
        if not Path(peer).is_dir():
            raise InvalidInput(
                f"--peer is {peer!r}; allowed: a peer's folder, or the address of its endpoint."
            )
        return None
    return f"{'http' if is_loopback(match[1]) else 'https'}://{peer}/"


def _asker(address: str, token: Path | None, authority: Path | None, name: str | None) -> Asker:
    from unwalk.peers.identity.credentials import host_name, read_private
    from unwalk.peers.web.client import Asker

    if token is None:
        raise InvalidInput("an address needs --token, the peer's http.token.")
    who = None
    if address.startswith("https:"):
        if authority is None or name is None:
            raise InvalidInput(
                f"{address} needs --authority, the network's ca.pem, and --name, PEER.NETWORK."
            )
        if not authority.is_file():
            raise InvalidInput(f"{authority} is no file; allowed: the network's ca.pem.")
        peer, _, network = name.partition(".")
        who = host_name(peer, network)
    access_token = read_private(token).decode("ascii", "replace").strip()
    return Asker(address, access_token, authority=authority, name=who)


def _followed(
    request: RequestView, look: Callable[[], RequestView], over: Callable[[], bool] = lambda: False
) -> RequestView:
    """Poll a request until it has ended or ``over``; print each stage that it reaches."""
    before = ""
    while request.stage not in ("done", "refused") and not over():
        if request.stage != before:
            say(f"request {request.id}: {request.stage}")
            before = request.stage
        time.sleep(PAUSE)
        request = look()
    return request


@contextmanager
def _opened(checked: Bundle) -> Iterator[tuple[Book, Records]]:
    """The book of a peer's network, and its records, which are closed at the end."""
    from unwalk.peers.forgetting.plans import Book
    from unwalk.peers.records.own_task import open_records
    from unwalk.peers.web.live_desk import NO_RECORDS

    book = Book(checked.network)
    records = open_records(checked.folder, book.assembled.config)
    if records is None:
        raise InvalidInput(NO_RECORDS)
    try:
        yield book, records
    finally:
        records.close()


def _hand_in(bundle: Path, form: RequestForm) -> RequestView:
    """Put a request into a peer's own store: it is durable whether the peer runs or not."""
    from unwalk.peers.forgetting.offers import decided_at
    from unwalk.peers.forgetting.requests import Requests
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.records.sources import SourceRefused
    from unwalk.peers.web.live_desk import check_reachable

    checked = Bundle.read(bundle)
    with _opened(checked) as (book, records):
        requests = Requests(records)
        if requests.get(form.id) is None:
            asked = form.grade, form.method, len(form.records)
            check_reachable(book, checked.index, *asked, decided_at(checked))
            with suppress(SourceRefused):
                records.refresh()
        return requests.submit(form).view()


def _give_up(bundle: Path, vanished: str, name: str) -> None:
    """Record at one peer that another has vanished; that peer does the rest."""
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.lifecycle.progress import VANISHED

    checked = Bundle.read(bundle)
    number = checked.network.index(vanished)
    if number == checked.index:
        raise InvalidInput(f"{bundle} is {vanished} itself; allowed: the folder of another peer.")
    with _opened(checked) as (_, records), records.transaction(touches=False):
        records.put_fact(f"{VANISHED}{number}", name)
    show(f"{checked.name} will have all records of {vanished} forgotten, as request {name}")


def _until_done(bundle: Path, id: str) -> RequestView:
    from unwalk.peers.forgetting.requests import Requests
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.lifecycle.leaving import GONE
    from unwalk.peers.status import running

    checked = Bundle.read(bundle)
    with _opened(checked) as (_, records):
        if running(checked.store) is None:
            say(f"{checked.name} does not run; its requests are answered once it does")
        requests = Requests(records)

        def look() -> RequestView:
            request = requests.get(id)
            assert request is not None
            return request.view()

        return _followed(look(), look, lambda: records.fact(GONE) != "")


def _tell(request: RequestView, bundle: Path | None, json_: bool) -> None:
    place = None
    if bundle is not None and request.certificate is not None:
        place = bundle / "store" / "certificates" / request.certificate / "certificate.json"
    if json_:
        print(json.dumps({**asdict(request), "path": None if place is None else str(place)}))
        return
    count = f"{request.records} record{'' if request.records == 1 else 's'}"
    show(f"request {request.id}: {request.stage}, {count}, {request.grade}")
    if request.reason:
        show(f"reason: {request.reason}", soft_wrap=True)
    if place is not None:
        show(f"certificate: {place}", soft_wrap=True)
    elif request.certificate is not None:
        show(f"certificate: {request.certificate}")


def leave(
    bundle: BundleArgument,
    forget_all: bool = typer.Option(
        False, "--forget-all", help="Have all of the peer's records forgotten first."
    ),
    grade: str = typer.Option("exact", help="exact or certified."),
    wait: Wait = False,
) -> None:
    """Leave the network: all records of the peer are forgotten, then it ends for good."""
    need_peers()
    if not forget_all:
        raise InvalidInput(
            "leaving without --forget-all would leave the records in the model; to stop a peer for "
            "a while, use unwalk peer stop."
        )
    from unwalk.peers.forgetting.requests import Requests
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.lifecycle.leaving import LEAVING
    from unwalk.peers.records.sources import SourceRefused
    from unwalk.peers.web.live_desk import check_reachable

    checked = Bundle.read(bundle)
    name = f"leave-{checked.name}"
    with _opened(checked) as (book, records):
        with suppress(SourceRefused):
            records.refresh()
        check_reachable(book, checked.index, grade, records=max(1, records.counts().train))
        request = Requests(records).submit_all(name, grade=grade).view()
        with records.transaction(touches=False):
            records.put_fact(LEAVING, name)
    if wait:
        request = _until_done(bundle, name)
    _tell(request, bundle, False)


def data(
    bundle: BundleArgument,
    from_: Path | None = typer.Option(
        None, "--from", help="File or folder of the records.", metavar="PATH"
    ),
    id_column: str | None = typer.Option(None, help="Column of the record id."),
    label_column: str | None = typer.Option(None, help="Column of the label."),
    hold_out: float | None = typer.Option(None, help="Share of records that is never trained on."),
    erase_source: bool | None = typer.Option(
        None, "--erase-source/--keep-source", help="Erase forgotten records from PATH as well."
    ),
    allow_again: Path | None = typer.Option(
        None, help="File of ids, one per line, that may come back after being forgotten."
    ),
    json_: JsonOption = False,
) -> None:
    """Set where a peer's records are and read them in; without options, read again and count."""
    need_peers()
    from unwalk.peers.identity.trust import Bundle
    from unwalk.peers.records.own_task import open_records
    from unwalk.peers.records.sources import SETTINGS, DataSettings
    from unwalk.runs.assemble import resolve
    from unwalk.tasks.forgetting import read_ids

    checked = Bundle.read(bundle)
    config = resolve(checked.network.run_settings, where="the network file")
    given = {
        "id_column": id_column,
        "label_column": label_column,
        "hold_out": hold_out,
        "erase_source": erase_source,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    before = DataSettings.read(bundle) if (bundle / SETTINGS).exists() else None
    if from_ is None and before is None:
        raise InvalidInput(f"{bundle} has no records yet; say where they lie with --from PATH.")
    ids = read_ids(allow_again) if allow_again is not None else ()
    records = open_records(bundle, config)
    if records is None:
        raise InvalidInput(
            f"the network's task is {config.task!r}, which brings its own data; a network whose "
            "peers bring theirs is made with task 'records'."
        )
    try:
        changes = records.take_over(DataSettings.over(before, from_, chosen), ids)
        counts = records.counts()
    finally:
        records.close()
    if json_:
        print(json.dumps({**asdict(counts), "changes": asdict(changes)}))
        return
    show(
        f"{counts.train} records to train on, {counts.hold_out} held out, {counts.excluded} about "
        f"to be forgotten, {counts.forgotten} forgotten"
    )
    show(f"{changes.added} were added, {changes.changed} changed, {changes.removed} removed")
