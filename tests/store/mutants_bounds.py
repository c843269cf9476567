"""Mistakes in how much one call does."""

from tests.store.mutant import mutant

mutant(
    "a_sweep_of_any_number_of_bytes",
    "a_sweep_is_bounded_in_bytes",
    ("budget.jobs > 0 and budget.bytes > 0", "budget.jobs > 0"),
)
mutant(
    "a_sweep_does_not_count_held_dispatches",
    "a_held_dispatch_counts_against_the_bytes_of_a_sweep",
    ("#(run.data or '') + #(run.held_data or run.old_held or '')", "#(run.data or '')"),
)
mutant(
    "a_sweep_does_not_count_cancelled_runs",
    "a_sweep_of_cancelled_runs_is_bounded_in_bytes",
    ("  if run.cancelled then\n    run.data", "  if false then\n    run.data"),
)
mutant(
    "a_dequeue_of_any_number_of_bytes",
    "a_dequeue_is_bounded_in_bytes",
    ("      if bytes >= MAX_CALL_BYTES then\n        break", "      if false then\n        break"),
)
mutant(
    "a_requeue_of_any_number_of_bytes",
    "a_requeue_is_bounded_in_bytes",
    ("local later = bytes >= MAX_CALL_BYTES", "local later = false"),
)
mutant(
    "a_repeated_dequeue_scans_all_leases",
    "a_repeated_dequeue_of_a_client_with_many_leases_returns_the_same_batch",
    ("local FEW_LEASES = 100\n", "local FEW_LEASES = 1e6\n"),
)
mutant(
    "a_repeated_dequeue_returns_jobs_of_other_clients",
    "a_repeated_dequeue_returns_only_jobs_the_client_still_holds",
    ("n and holder == client and n >= first_token and n <= last_token", "n"),
)
