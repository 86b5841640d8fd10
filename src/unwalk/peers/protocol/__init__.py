"""The rules and formats that all peers share, as pure functions.

In: states, messages and votes as values.  Out: the next state, or what is wrong with a message.
Nothing here has a clock, a disk or a network, so tests explore it exhaustively.

Start with ``handover.py`` (who has the token, when a copy may go on) and ``consensus.py`` (how
peers that do not trust each other decide one value).  ``hoplog.py`` is the signed log that travels
with a token, ``schedule.py`` says what a chapter is and which follows which, ``messages.py`` has a
type for each message, and ``codec.py`` reads and writes all of it as JSON.
"""
