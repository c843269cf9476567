"""Mistakes in giving jobs up and retrying them in bulk."""

from tests.store.mutant import mutant

SAME_AS_ONE_BY_ONE = "jobs_given_up_in_bulk_are_the_same_as_one_by_one"

mutant(
    "a_job_given_up_in_bulk_keeps_its_data",
    SAME_AS_ONE_BY_ONE,
    ("  batch:bulk('hdel', q.data, ids, n, datas)\n", ""),
)
mutant(
    "a_fail_job_in_bulk_has_the_id_of_its_origin",
    SAME_AS_ONE_BY_ONE,
    ("fail_ids[i] = ids[i] .. ':' .. tokens[i]", "fail_ids[i] = ids[i]"),
)
mutant(
    "fail_jobs_in_bulk_without_a_fail_handler",
    "without_a_fail_handler_jobs_given_up_in_bulk_leave_the_fail_queue_empty",
    (
        "  end\n  local fq = settings_of(q).fail_handler and fail",
        "  end\n  local fq = fail",
    ),
)
mutant(
    "an_origin_in_bulk_has_no_error",
    SAME_AS_ONE_BY_ONE,
    (
        "ORIGIN .. pack_with_error(5, fields[i], problems[i], name)",
        "ORIGIN .. pack_with_error(5, fields[i], '', name)",
    ),
)
mutant(
    "jobs_given_up_in_bulk_are_not_counted",
    SAME_AS_ONE_BY_ONE,
    ("  count(q, 'failed', n)\n", ""),
)
mutant(
    "jobs_with_an_info_are_given_up_in_bulk",
    "the_record_of_a_job_given_up_has_its_earlier_attempts",
    ("elseif info or not problem then", "elseif not problem then"),
)
mutant(
    "the_field_after_an_error_is_copied_with_it",
    "an_error_in_another_packing_is_still_read",
    ("string.sub(raw, 8, rest)", "string.sub(raw, 8)"),
)
mutant(
    "a_fail_job_in_bulk_overwrites_a_job_with_its_id",
    "a_fail_job_does_not_overwrite_a_job_with_its_id",
    ("taken[i] and free_fail_id(fq, fail_ids[i]) or fail_ids[i]", "fail_ids[i]"),
)
mutant(
    "the_long_entry_overwrites_a_fail_job_with_that_id",
    "the_long_entry_does_not_stay_in_a_fail_queue_unless_it_is_a_job",
    (
        "if n >= BULK and not taken[n + 1] then\n    avoid_listpacks(fq",
        "if n >= BULK then\n    avoid_listpacks(fq",
    ),
)
mutant(
    "records_of_the_general_path_come_first",
    "jobs_are_given_up_in_the_order_of_their_outcomes",
    ("      write_failures(q, batch, bulk) -- records", "      -- records"),
)
mutant(
    "a_first_retry_in_bulk_is_not_counted",
    "first_retries_in_bulk_are_the_same_as_one_by_one",
    ("pack_with_error(2, RETRIED,", "pack_with_error(2, '\\171retry_count\\000',"),
)
mutant(
    "a_first_retry_in_bulk_has_no_backoff",
    "first_retries_in_bulk_are_the_same_as_one_by_one",
    ("when = string.format('+%.17g', backoff(q, none, 0))", "when = '+0'"),
)
mutant(
    "a_first_retry_in_bulk_loses_its_dispatch_time",
    "first_retries_in_bulk_are_the_same_as_one_by_one",
    ("cmsgpack.pack(tonumber(run_at))\n  plain", "cmsgpack.pack(q.now)\n  plain"),
)
mutant(
    "a_job_without_retries_is_retried_in_bulk",
    "a_job_without_retries_is_given_up",
    ("verb == 'retry' and may_retry(q)", "verb == 'retry'"),
)
mutant(
    "a_first_retry_in_bulk_wakes_no_waiter",
    "a_waiter_is_woken_for_a_retry_that_is_due",
    (
        "  count_due(q, score)\nend\n\nlocal function retry_all",
        "end\n\nlocal function retry_all",
    ),
)
