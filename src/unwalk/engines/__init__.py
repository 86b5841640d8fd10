"""Engines carry plans out; :class:`~unwalk.engines.inprocess.InProcess` is the reference."""
