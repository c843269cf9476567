"""The tour of Queasy: run it with `make demo`, and read app.py first."""
