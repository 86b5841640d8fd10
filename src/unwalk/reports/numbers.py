"""Formats numbers, counts and lists the same way on every page and in the terminal."""

from __future__ import annotations

from collections.abc import Iterable

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"

RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def fixed(value: float | None, decimals: int = 1) -> str:
    """A number with thousands marked; a dash where there is none.

    >>> fixed(12345.678), fixed(3, 0), fixed(None)
    ('12,345.7', '3', '–')
    """
    if value is None:
        return DASH
    text = f"{value:,.{decimals}f}"
    if text.startswith("-"):
        text = text[1:] if not text.strip("-0.,") else MINUS + text[1:]
    return text


def hundredths(value: float | None) -> str:
    """A fraction in per cent, without the sign.

    >>> hundredths(0.9612)
    '96.1'
    """
    return fixed(None if value is None else 100 * value)


def percent(value: float | None) -> str:
    """A fraction in per cent, with the sign.

    >>> percent(0.03) == f"3.0{SPACE}%"
    True
    """
    return DASH if value is None else f"{hundredths(value)}{SPACE}%"


def points(value: float | None) -> str:
    """A difference of two fractions, in percentage points.

    >>> points(0.0081), points(-0.0081), points(-0.0001)
    ('+0.8', '−0.8', '0.0')
    """
    return signed(None if value is None else 100 * value, 1)


def byte_unit(values: Iterable[float | None]) -> tuple[float, str]:
    """The unit that fits the largest of ``values``, for a column that shares one unit.

    >>> byte_unit([1200.0, 5_000_000.0, None])
    (1000000.0, 'MB')
    """
    largest = max((v for v in values if v is not None), default=0.0)
    return next((u for u in BYTE_UNITS if largest >= u[0]), BYTE_UNITS[-1])


def human_bytes(value: float | None) -> str:
    """A size in the unit that fits it.

    >>> human_bytes(45_210_000) == f"45.2{SPACE}MB"
    True
    """
    if value is None:
        return DASH
    size, unit = byte_unit([value])
    return f"{fixed(value / size, 0 if unit == 'B' else 1)}{SPACE}{unit}"


def counted(count: float, one: str) -> str:
    """A count with its noun.

    >>> counted(1, "hop"), counted(1200, "hop")
    ('1 hop', '1,200 hops')
    """
    return f"{fixed(count, 0)} {one if count == 1 else one + 's'}"


def joined(words: list[str]) -> str:
    """Words as a list in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(([", ".join(words[:-1])] if words[:-1] else []) + words[-1:])


def sentence(text: str) -> str:
    """``text`` with a capital at its start.

    >>> sentence("the noise is RR-DU's.")
    "The noise is RR-DU's."
    """
    return text[:1].upper() + text[1:]


def compact(value: float) -> str:
    """Four digits; powers of ten raised where they are far from one.

    >>> compact(2.88154), compact(1e-5), compact(2.5e-6)
    ('2.882', '10⁻⁵', '2.5 × 10⁻⁶')
    """
    text = f"{value:.4g}"
    return raised(value) if "e" in text else text.replace("-", MINUS)


def raised(value: float) -> str:
    """A number as a power of ten.

    >>> raised(0.0001), raised(-25e5)
    ('10⁻⁴', '−2.5 × 10⁶')
    """
    mantissa, power = f"{value:.3e}".split("e")
    ten = "10" + str(int(power)).translate(RAISED)
    digits = f"{float(mantissa):g}".replace("-", MINUS)
    return ten if digits == "1" else f"{digits} × {ten}"


def signed(value: float | None, decimals: int = 2) -> str:
    """A difference with its sign.

    >>> signed(0.161), signed(-3.0), signed(-0.001), signed(None)
    ('+0.16', '−3.00', '0.00', '–')
    """
    text = fixed(value, decimals)
    unsigned = value is None or text[0] == MINUS or not text.strip("0.")
    return text if unsigned else f"+{text}"
