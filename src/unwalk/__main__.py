"""``python -m unwalk``: the command line."""

from unwalk.cli import main

main()
