"""`python -m kakeya`."""

from kakeya.cli.app import main

main()
