"""``unwalk verify`` and ``unwalk sign``: check a certificate, and sign one."""

# Imports in functions: a command loads what it needs, and none waits for torch in vain.

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from unwalk.cli.terminal import JsonOption, show
from unwalk.core.errors import Corrupt, InvalidInput, UnwalkError

if TYPE_CHECKING:
    from unwalk.certificates import Verdict
    from unwalk.core.transcript import Transcript

KEY = Path("~/.config/unwalk/signing.pem")


def verify(
    certificate: Path | None = typer.Argument(
        None, help="certificate.json, its folder, or the zip archive that a peer gives."
    ),
    transcript: Path | None = typer.Option(
        None, help="Its transcript; empty: transcript.jsonl beside it."
    ),
    trust: str | None = typer.Option(
        None, help="Fingerprint of a signer, or the file of a CA's certificate (PEM)."
    ),
    network: Path | None = typer.Option(
        None, help="The newest network.json of its network, to see what was revoked."
    ),
    replay: Path | None = typer.Option(
        None, metavar="RUN_DIR", help="Repeat the run from its data and secrets, and compare."
    ),
    model: Path | None = typer.Option(
        None, metavar="FILE", help="The released model; empty: the one beside it."
    ),
    html: Path | None = typer.Option(
        None, metavar="OUT.html", help="Also write the certificate as a page to print."
    ),
    json_: JsonOption = False,
) -> None:
    """Check a certificate: signature, hash chain, every number recomputed from events, model.

    Exit codes:
    0: intact, and signed by --trust;
    3: intact, but the signer is unknown, or model or transcript is not there;
    1: something was changed.
    """
    place = certificate or replay
    if place is None:
        raise InvalidInput("name a certificate, or give --replay RUN_DIR.")
    if html is not None and (html.exists() or not html.parent.is_dir()):
        wrong = "exists" if html.exists() else "is in a folder that does not exist"
        raise InvalidInput(f"--html is {str(html)!r}, which {wrong}; allowed: a new file.")
    try:
        with TemporaryDirectory() as folder:
            laid = _laid_out(place, Path(folder))
            code = _verify(laid, transcript, model, trust, network, replay, html, json_)
    except Corrupt as error:
        _tell(json_, {"verdict": "changed", "problems": [str(error)]}, [f"changed: {error}"])
        code = 1
    raise typer.Exit(code)


def _laid_out(place: Path, folder: Path) -> Path:
    """The path of the certificate; an archive is unpacked into ``folder``."""
    if place.is_dir():
        return place / "certificate.json"
    if place.suffix.lower() != ".zip":
        return place
    from unwalk.peers.forgetting.certificate_archive import unpack

    return unpack(place, folder)


def _verify(
    place: Path,
    transcript: Path | None,
    model: Path | None,
    trust: str | None,
    network: Path | None,
    replay: Path | None,
    html: Path | None,
    json_: bool,
) -> int:
    from unwalk.certificates import read_certificate
    from unwalk.certificates import verify as check

    document = read_certificate(place)
    recorded = _transcript(place, transcript)
    released = _model(document, place, model)
    verdict = check(document, recorded, model=released, trust=trust, now=datetime.now(UTC))
    if "peers" in document:
        verdict = _with_peers(verdict, document, recorded, place, trust, network)
    if replay is not None:
        verdict = _replayed(verdict, replay, recorded, document)
    try:
        answer = {
            **verdict.to_json(document),
            "replayed": replay is not None,
            "noise": document.get("noise"),
            "redraws": document.get("redraws"),
        }
        lines = _lines(verdict, document)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"the certificate lacks or mistypes {error}.") from error
    if html is not None:
        _write_page(html, document, answer)
    _tell(json_, answer, lines)
    if html is not None and not json_:
        show(f"page: {html}", soft_wrap=True)
    return verdict.exit_code


def _write_page(out: Path, document: dict[str, Any], answer: dict[str, Any]) -> None:
    """The certificate as a page, with what the check found."""
    from unwalk.certificates.words import in_words
    from unwalk.reports.certificate_page import render_certificate
    from unwalk.runs.store import write_file

    try:
        words = {} if answer["problems"] else in_words(document)
        page = render_certificate(document, words, answer, f"{datetime.now(UTC):%Y-%m-%d}")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"the certificate lacks or mistypes {error}, so no page is made.") from error
    try:
        write_file(out, page)
    except OSError as error:
        raise UnwalkError(f"{out} cannot be written: {error.strerror}.") from error


def _with_peers(
    verdict: Verdict,
    document: dict[str, Any],
    recorded: Transcript | None,
    place: Path,
    trust: str | None,
    network: Path | None,
) -> Verdict:
    """Also check what the certificate says about peers, which needs the network's CA."""
    if recorded is None or trust is None or not Path(trust).is_file():
        why = "that needs --trust with the network's CA"
        if recorded is None:
            why = "transcript.jsonl is not beside it, as in the archive that a peer gives"
        unchecked = (*verdict.unchecked, f"signatures of peers: {why}")
        return replace(verdict, known=False, unchecked=unchecked)
    from unwalk.peers.forgetting.peer_certificate import check

    return check(document, recorded, place, Path(trust), network).added_to(verdict)


def _transcript(place: Path, given: Path | None) -> Transcript | None:
    from unwalk.core.transcript import Transcript

    path = given or place.with_name("transcript.jsonl")
    if given is None and not path.exists():
        return None
    try:
        return Transcript.read(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise Corrupt(f"{path} is not text.") from error


def _model(document: dict[str, Any], place: Path, given: Path | None) -> bytes | None:
    """The released model: as given, or beside the certificate, or in the peer's store around it."""
    from unwalk.certificates.document import MODEL

    path = given or place.with_name(MODEL)
    if given is None and not path.exists():
        if "peers" not in document:
            return None
        from unwalk.peers.forgetting.peer_certificate import released

        return released(document, place)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error


def _replayed(
    verdict: Verdict, run_dir: Path, recorded: Transcript | None, document: dict[str, Any]
) -> Verdict:
    """Also repeat the run and compare."""
    from unwalk.runs.replay import replay

    if recorded is None:
        raise InvalidInput(f"{run_dir} has no transcript to compare with.")
    differences = replay(run_dir, recorded, certified=document.get("model"))
    if differences:
        return replace(verdict, problems=(*verdict.problems, *differences))
    note = "done again from data and secrets, every hop came out the same"
    return replace(verdict, notes=(*verdict.notes, note))


def _lines(verdict: Verdict, document: dict[str, Any]) -> list[str]:
    """What is shown: the verdict, what was checked and what not, and last what is guaranteed."""
    from unwalk.certificates.document import NOT_SHOWN

    lines = [verdict.headline]
    lines += [f"changed: {text}" for text in verdict.problems]
    lines += [f"checked: {text}" for text in verdict.notes]
    lines += [f"not checked: {text}" for text in verdict.unchecked]
    lines += [f"stated: {text}" for text in verdict.stated]
    if verdict.problems:
        return lines
    lines += verdict.claimed(document)
    if verdict.recomputed and document["noise"]["origin"] != "none":
        lines.append(f"noise: {document['noise']['meaning']}")
        lines.append(f"redraws: {document['redraws']['meaning']}")
    lines += [f"not shown: {text}" for text in NOT_SHOWN]
    return [*lines, verdict.conclusion(document)]


def _tell(json_: bool, answer: dict[str, Any], lines: list[str]) -> None:
    if json_:
        print(json.dumps(answer))
        return
    for line in lines:
        show(line, soft_wrap=True)


def sign(
    run_dir: Path = typer.Argument(help="The folder of a run.", metavar="RUN_DIR"),
    key: Path | None = typer.Option(
        None, help=f"Ed25519 key (PEM); without, {KEY}, made if missing."
    ),
    chain: Path | None = typer.Option(
        None, help="X.509 certificate (PEM) that a CA issued for the key."
    ),
) -> None:
    """Sign the certificate of a run, after checking it against its transcript."""
    from unwalk.certificates import read_certificate
    from unwalk.certificates import verify as check
    from unwalk.certificates.document import FILE, text_of
    from unwalk.certificates.signing import load_key, make_key
    from unwalk.certificates.signing import sign as put_signature
    from unwalk.runs.store import write_file

    place = run_dir / FILE
    document = read_certificate(place)
    unsigned = check(document, _transcript(place, None), model=_model(document, place, None))
    if not unsigned.recomputed:
        raise InvalidInput(f"{run_dir} has no transcript.jsonl to check the certificate with.")
    if unsigned.problems:
        raise Corrupt(f"{place} is not signed: {unsigned.problems[0]}.")
    path = key
    if path is None:
        path = KEY.expanduser()
        if not path.exists():
            show(f"made a new key: {path}, fingerprint {make_key(path)}", soft_wrap=True)
    pem = None
    if chain is not None:
        try:
            pem = chain.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{chain} cannot be read as PEM.") from error
    signed = put_signature(document, load_key(path), pem)
    try:
        write_file(place, text_of(signed))
    except OSError as error:
        raise UnwalkError(f"{place} cannot be written: {error.strerror}.") from error
    show(f"signed {place} as {signed['signer']['fingerprint']}", soft_wrap=True)
