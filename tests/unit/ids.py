"""Ids of parametrized cases."""


def short(value: object) -> str:
    """The value in ASCII, cut short: some have hundreds of digits."""
    return ascii(value)[:40]
