import pytest

# They contain assertions of several tests, but are not test files themselves.
pytest.register_assert_rewrite(
    "tests.store.harness",
    "tests.store.promises",
    "tests.store.promises_bounds",
    "tests.store.promises_consumers",
    "tests.store.promises_dispatch",
    "tests.store.promises_given_up",
    "tests.store.promises_handoff",
    "tests.store.promises_idempotency",
    "tests.store.promises_limits",
    "tests.store.promises_order",
    "tests.store.promises_plain",
    "tests.store.promises_protocol",
    "tests.store.promises_server",
    "tests.store.promises_suspects",
    "tests.store.promises_waiters",
    "tests.store.promises_waking",
    "tests.store.faults",
)
