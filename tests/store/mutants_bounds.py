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
TOO_MANY_BYTES = "a_call_that_gives_up_too_many_bytes_is_refused_before_anything_is_written"

mutant(
    "a_call_gives_up_any_number_of_bytes_in_bulk",
    TOO_MANY_BYTES,
    ("      count_given_up(bulk, datas[i] or '')\n", ""),
)
mutant(
    "a_call_gives_up_any_number_of_bytes_one_by_one",
    TOO_MANY_BYTES,
    ("        count_given_up(bulk, run.data)\n", ""),
)
mutant(
    "a_call_sets_any_number_of_bytes_aside_as_broken",
    TOO_MANY_BYTES,
    ("if status == 'failed' or status == 'broken' then", "if status == 'failed' then"),
)
mutant(
    "jobs_given_up_in_bulk_do_not_count_with_others",
    TOO_MANY_BYTES,
    ("bulk.failures, bulk.errors = nil, {}", "bulk.failures, bulk.errors, bulk.bytes = nil, {}, 0"),
)
mutant(
    "the_last_job_counts_against_the_bytes_of_a_call",
    "a_call_may_give_up_what_a_worker_reports_in_one",
    (
        "if bulk.bytes >= MAX_CALL_BYTES and #data > 0 then",
        "if bulk.bytes + #data > MAX_CALL_BYTES then",
    ),
)
mutant(
    "all_endings_count_against_the_bytes_of_a_call",
    "jobs_that_are_not_given_up_do_not_count_against_the_bytes_of_a_call",
    (
        "if status == 'failed' or status == 'broken' then\n        count_given_up(bulk, run.data)",
        "if true then\n        count_given_up(bulk, redis.call('HGET', q.data, id) or '')",
    ),
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
