import pytest

# They hold the assertions of several tests, and are no test files themselves.
pytest.register_assert_rewrite(
    "tests.store.harness",
    "tests.store.promises",
    "tests.store.promises_bounds",
    "tests.store.promises_dispatch",
    "tests.store.promises_given_up",
    "tests.store.promises_hand",
    "tests.store.promises_order",
    "tests.store.promises_server",
    "tests.store.promises_suspects",
    "tests.store.faults",
)
