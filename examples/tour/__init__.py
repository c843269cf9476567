"""The tour of Queasy: start it with `make demo`, and read app.py first."""
