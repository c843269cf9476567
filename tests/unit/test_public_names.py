"""The public names of the package."""

import queasy


def test_public_names_are_sorted_and_defined() -> None:
    assert queasy.__all__ == sorted(queasy.__all__)
    assert all(hasattr(queasy, name) for name in queasy.__all__)


def test_every_error_is_public_and_under_one_root() -> None:
    from queasy import errors

    assert set(errors.__all__) <= set(queasy.__all__)
    for name in errors.__all__:
        error = getattr(errors, name)
        assert issubclass(error, queasy.QueasyError)
        assert name in (errors.__doc__ or ""), f"{name} is not in the tree at the top"
