"""The endpoint of a peer for its own organisation: HTTP, a dashboard, and a client.

In: HTTP requests with the peer's token.  Out: JSON, certificates and pages; nothing here holds a
record or the id of one once a form is handed in.

Start with ``views.py``: ``Desk`` is all that the endpoint knows of a peer, and ``live_desk.py``
answers it from a running one.  ``routes.py`` has a function for each path, ``operations.py`` what
all of them have in common, ``answers.py`` the JSON and the errors that go back, ``openapi.py`` the
description of the interface.  ``http_server.py`` says where to listen
and who is let in, ``connections.py`` reads and writes HTTP.  ``page/`` is the dashboard, and
``client.py`` is what ``unwalk forget --peer`` calls.
"""
