"""Mistakes in limits, in pull leases that run out, and in what is left of a job given up."""

from tests.store.mutant import mutant

mutant(
    "a_pull_lease_that_runs_out_is_a_stall",
    "a_pull_lease_that_runs_out_counts_as_an_expiry_and_not_as_a_stall",
    ("client:byte(1) == 126 and 'expiry' or 'stall'", "'stall'"),
)
mutant(
    "an_expiry_makes_a_suspect",
    "a_pull_lease_that_runs_out_makes_no_suspect",
    (
        "  info.error = problem\n  count(q, 'expired')",
        "  info.companions = 0\n  count(q, 'expired')",
    ),
)
mutant(
    "expired_to_the_back",
    "a_job_whose_pull_lease_ran_out_returns_to_the_front",
    (
        "  put_back(q, batch, run, run.score)\n  return 'expired'",
        "  put_back(q, batch, run, tick(q))\n  return 'expired'",
    ),
)
mutant(
    "one_expiry_more",
    "a_job_is_given_up_at_its_max_expiries_th_expiry",
    ("'max_expiries', info.expiry_count) then", "'max_expiries', info.expiry_count - 1) then"),
)
mutant(
    "a_cancelled_run_survives_an_expiry",
    "a_cancelled_run_does_not_wait_again_when_its_pull_lease_runs_out",
    ("death = true, expiry = true,", "death = true,"),
)
mutant(
    "a_client_reports_an_expiry",
    "a_client_cannot_report_a_stall_or_an_expiry",
    ("or verb == 'stall' or verb == 'expiry' then", "or verb == 'stall' then"),
)
mutant(
    "expiries_are_not_reset",
    "a_dispatch_that_resets_counts_resets_expiries",
    ("'timeout_count', 'expiry_count' }\n\n-- The table", "'timeout_count' }\n\n-- The table"),
)
mutant(
    "unlimited_is_a_large_number",
    "an_unlimited_count_never_gives_a_job_up",
    ("  return n >= limit and limit < UNLIMITED", "  return n >= limit"),
)
mutant(
    "a_failed_record_in_bulk_has_no_limits",
    "a_job_given_up_has_the_options_that_were_in_force_then",
    ("cmsgpack.pack(limits_of_queue(q))", "cmsgpack.pack({})"),
)
mutant(
    "a_failed_record_has_no_limits",
    "a_job_given_up_has_the_options_that_were_in_force_then",
    (", limits = limits_of_queue(q),", ","),
)
mutant(
    "the_origin_has_no_options_of_its_own",
    "a_job_given_up_has_the_options_that_were_in_force_then",
    ("    record.id = run.id\n", "    record.id, record.options = run.id, nil\n"),
)
mutant(
    "a_failed_record_has_no_run_at",
    "a_job_given_up_has_its_times_and_all_its_counts",
    ("    record.run_at = run.score\n", ""),
)
mutant(
    "a_failed_record_has_no_expiries",
    "a_job_given_up_has_its_times_and_all_its_counts",
    ("    expiry_count = info.expiry_count, origin", "    origin"),
)
mutant(
    "a_row_of_a_failed_job_has_no_run_at",
    "a_job_given_up_in_its_first_run_was_due_when_it_was_dispatched",
    ("(record.run_at or record.dispatched_at)", "record.run_at"),
)
mutant(
    "a_requeued_job_keeps_the_limits_of_its_queue",
    "a_requeued_job_has_its_own_options_and_no_others",
    ("{ options = record.options, origin", "{ options = record.limits, origin"),
)
mutant(
    "jobs_finished_in_bulk_keep_their_failed_records",
    "a_job_that_finishes_has_no_failed_record",
    ("  note_finished(q, plain.ids, plain.n)\n", ""),
)
mutant(
    "a_job_finished_alone_keeps_its_failed_record",
    "a_job_that_finishes_has_no_failed_record",
    ("  note_finished(q, { run.id }, 1)\n", ""),
)
mutant(
    "only_the_place_of_the_failed_record_is_removed",
    "a_job_that_finishes_in_a_dequeue_has_no_failed_record",
    ("    batch:bulk_del_unread(q.failed, gone, n)\n", ""),
)
mutant(
    "every_failed_record_of_a_queue_goes_with_a_finish",
    "a_job_that_finishes_has_no_failed_record",
    (
        "    if times[i] then\n      n = n + 1\n      gone",
        "    if true then\n      n = n + 1\n      gone",
    ),
    (
        "local times = in_chunks('ZMSCORE', q.failed_at, ids)\n  local gone",
        "ids = redis.call('ZRANGE', q.failed_at, 0, -1)\n  local times = {}\n  local gone",
    ),
)
mutant(
    "a_cancel_removes_the_failed_record",
    "only_a_finish_removes_a_failed_record",
    (
        "function ENDINGS.cancel(q, batch, run)\n  remove(q, batch, run)\n",
        "function ENDINGS.cancel(q, batch, run)\n  remove(q, batch, run)\n"
        "  note_finished(q, { run.id }, 1)\n",
    ),
)
mutant(
    "a_removed_record_counts_against_the_limit",
    "a_finish_and_a_failure_in_one_call_keep_the_failed_record_full",
    (
        "trim(q, batch, kind, most, added - n_gone, fresh)",
        "trim(q, batch, kind, most, added, fresh)",
    ),
)
mutant(
    "the_mark_of_failed_records_stays",
    "the_mark_of_failed_records_goes_with_the_last_of_them",
    ("    batch:del(q.meta, 'has_failed', mark)\n", ""),
)
mutant(
    "the_mark_goes_with_the_first_failed_record",
    "the_mark_of_failed_records_goes_with_the_last_of_them",
    ("mark and removed >= redis.call('ZCARD', q.failed_at) then", "mark then"),
)
