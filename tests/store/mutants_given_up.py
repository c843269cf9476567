"""Seeded mistakes in the short way of giving jobs up."""

from tests.store.mutants import mutant

THE_SAME = "what_is_given_up_by_the_short_way_is_as_by_the_long"

mutant(
    "given_up_and_still_there",
    THE_SAME,
    ("  batch:bulk('hdel', q.data, ids, n, datas)\n", ""),
)
mutant(
    "a_plain_fail_id_is_the_jobs_own",
    THE_SAME,
    ("fail_ids[i] = ids[i] .. ':' .. tokens[i]", "fail_ids[i] = ids[i]"),
)
mutant(
    "the_short_way_has_fail_jobs_for_nobody",
    "who_is_given_up_by_the_short_way_leaves_the_fail_queue_to_its_handler",
    (
        "  end\n  local fq = settings_of(q).fail_handler and fail",
        "  end\n  local fq = fail",
    ),
)
mutant(
    "an_origin_without_an_error",
    THE_SAME,
    (
        "ORIGIN .. pack_with_error(4, fields[i], problems[i], name)",
        "ORIGIN .. pack_with_error(4, fields[i], '', name)",
    ),
)
mutant(
    "the_short_way_counts_none",
    THE_SAME,
    ("  count(q, 'failed', n)\n", ""),
)
mutant(
    "the_short_way_forgets_earlier_tries",
    "what_was_tried_before_is_told_of_who_is_given_up",
    ("elseif info or not problem then", "elseif not problem then"),
)
mutant(
    "an_error_with_more_behind_it_is_kept_as_it_is",
    "an_error_that_is_packed_otherwise_is_read_all_the_same",
    ("return problem, rest == -1 and first", "return problem, first"),
)
mutant(
    "a_taken_fail_id_is_overwritten_by_the_short_way",
    "a_fail_id_that_is_taken_is_left_alone",
    ("taken[i] and free_fail_id(fq, fail_ids[i]) or fail_ids[i]", "fail_ids[i]"),
)
mutant(
    "somebodys_long_id_is_gone",
    "what_makes_a_table_of_a_fail_queue_is_gone_again_or_is_somebodys",
    (
        "if n >= BULK and not taken[n + 1] then\n    avoid_listpacks(fq",
        "if n >= BULK then\n    avoid_listpacks(fq",
    ),
)
mutant(
    "the_long_way_overtakes",
    "jobs_are_given_up_in_the_order_in_which_they_are_told",
    ("if failures then -- in the order", "if false then -- in the order"),
)
mutant(
    "a_first_retry_is_not_counted",
    "a_first_retry_by_the_short_way_is_as_by_the_long",
    ("pack_with_error(2, RETRIED,", "pack_with_error(2, '\\171retry_count\\000',"),
)
mutant(
    "a_first_retry_is_due_at_once",
    "a_first_retry_by_the_short_way_is_as_by_the_long",
    ("when = string.format('+%.17g', backoff(q, none, 0))", "when = '+0'"),
)
mutant(
    "a_first_retry_forgets_when_it_was_dispatched",
    "a_first_retry_by_the_short_way_is_as_by_the_long",
    ("cmsgpack.pack(tonumber(run_at))\n  plain", "cmsgpack.pack(q.now)\n  plain"),
)
mutant(
    "who_has_no_retries_has_one",
    "who_has_no_retries_is_given_up",
    ("and limit_of(q, {}, 'max_retries') > 0", ""),
)
mutant(
    "a_first_retry_wakes_nobody",
    "who_waits_is_woken_for_a_retry_that_is_due",
    (
        "  count_due(q, score)\nend\n\nlocal function retry_all",
        "end\n\nlocal function retry_all",
    ),
)
