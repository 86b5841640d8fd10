"""The endpoint of a peer for its own organisation: HTTP, a dashboard, and a client.

In: HTTP requests with the peer's token.  Out: JSON, certificates and pages; nothing here holds a
record or the id of one once a form is handed in.

Start with ``views.py``: ``Desk`` is all that the endpoint knows of a peer, and ``live_desk.py``
answers it from a running one.  ``http_server.py`` reads and writes HTTP, ``routes.py`` says which
path gets which answer, ``openapi.py`` describes them, ``page/`` is the dashboard, and ``client.py``
is what ``unwalk forget --peer`` calls.
"""
