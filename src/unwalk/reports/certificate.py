"""One page for whoever answers for data protection: asked, done, promised to whom, not promised."""

from __future__ import annotations

from html import escape

from unwalk.reports.comparison import section
from unwalk.reports.result import Certificate, Result
from unwalk.reports.svg import tag

HEADINGS = (
    ("asked", "What was asked"),
    ("done", "What was done"),
    ("promised", "What is promised, and to whom"),
    ("not_promised", "What is not promised"),
)


def certificate_section(result: Result) -> str:
    """The certificate in plain words; nothing where a result has none."""
    certificate = result.certificate
    if certificate is None:
        return ""
    parts = []
    for key, heading in HEADINGS:
        texts = certificate.words.get(key, ())
        if texts:
            parts.append(tag("h3", heading) + _texts(texts))
    if certificate.worth:
        parts.append(tag("h3", "What it was worth") + _texts((certificate.worth,)))
    if not parts:
        return ""
    return section(
        "The certificate in plain words",
        tag("div", *parts, _where(certificate), class_="card certificate"),
    )


def _texts(texts: tuple[str, ...]) -> str:
    if len(texts) == 1:
        return tag("p", escape(texts[0]))
    return tag("ul", *(tag("li", escape(text)) for text in texts))


def _where(certificate: Certificate) -> str:
    """Where the document is, who signed it, and how anyone can check it."""
    signed = (
        f"It is signed by the key {certificate.signer[:16]}\N{HORIZONTAL ELLIPSIS}."
        if certificate.signer
        else "It was not signed when this page was made."
    )
    return tag(
        "p",
        "The document itself is ",
        tag("code", "certificate.json"),
        f" beside this page. {escape(signed)} Anyone can check it: ",
        tag("code", "unwalk verify certificate.json"),
        ".",
        class_="note",
    )
