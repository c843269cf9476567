"""`python -m queasy` is `queasy`."""

from queasy.cli import main

main()
