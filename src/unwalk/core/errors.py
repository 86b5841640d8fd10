"""The errors that unwalk raises on purpose.

::

    UnwalkError
      InvalidInput      a value, a file or a key that cannot be used; the command line exits with 2
      Diverged          a step produced NaN or infinity
      Refused           an accountant or a certificate refuses to claim what it cannot prove
      NoRoom            the disk is full; what was written before is kept
      Corrupt           a file, transcript or token that is not what it says it is
"""

from __future__ import annotations

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk and of a quota that is used up."""


class UnwalkError(Exception):
    """Root of all errors raised on purpose; its text is one sentence for a person."""


class InvalidInput(UnwalkError):
    """A value, file or key that cannot be used: says which one, and what is allowed."""


class Diverged(UnwalkError):
    """A step produced a value that is not finite."""


class Refused(UnwalkError):
    """A guarantee that cannot be proved for the events that happened; names the event.

    ``code`` names the reason for programs: :data:`unwalk.core.grades.REFUSALS` explains each, and
    says what to do; ``instead`` is for who knows better than that.
    """

    def __init__(self, message: str, code: str = "", instead: str = "") -> None:
        super().__init__(message)
        self.code, self.instead = code, instead


class NoRoom(UnwalkError):
    """The disk is full; what was written before is kept."""

    def __init__(self, *_: object) -> None:
        super().__init__("no room is left on the disk")


class Corrupt(UnwalkError):
    """Bytes that do not match their digest, chain or declared shape."""


def told(error: BaseException) -> str:
    """An error's type and the first line of its text, without a full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
