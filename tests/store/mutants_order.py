"""Mistakes in order, time, budgets, and the records of jobs that ended."""

# ruff: noqa: E501 - the patches are lines of Lua

from tests.store.mutant import mutant

mutant(
    "the_clock_of_the_client_sets_run_at",
    "the_clock_of_a_client_decides_nothing",
    (
        "  if at <= q.now then\n    return accepted, true",
        "  if at <= q.now then\n    return at, true",
    ),
)
mutant(
    "the_clock_of_the_client_becomes_that_of_the_queue",
    "the_clock_of_a_client_decides_nothing",
    (
        "    at = parse_number(when, 'run_at')\n",
        "    at = parse_number(when, 'run_at')\n    q.now, q.time, accepted = at, at, at\n",
    ),
)
mutant(
    "a_clock_before_the_outage_counts_as_grace",
    "a_clock_set_back_to_before_an_outage_stalls_no_job",
    ("q.now < q.grace_until and q.now >= q.grace_until - OUTAGE_MS", "q.now < q.grace_until"),
)
mutant(
    "a_clock_set_back_prolongs_the_grace",
    "a_clock_set_back_does_not_prolong_the_grace_after_an_outage",
    ("q.now < q.grace_until and q.now >= q.grace_until - OUTAGE_MS", "q.now < q.grace_until"),
)
mutant(
    "no_order_in_a_batch",
    "due_jobs_leave_in_the_order_they_were_accepted",
    ("  if q.ticked then\n    q.time = q.time + TICK", "  if q.ticked then\n    q.time = q.time"),
)
mutant(
    "jobs_of_one_instant_have_no_order",
    "jobs_of_one_call_for_one_instant_keep_their_order",
    ("return at + q.scheduled * TICK, false", "return at, false"),
)
mutant(
    "release_to_the_back",
    "released_and_stalled_jobs_go_to_the_front",
    (
        "  put_back(q, batch, run, run.score)\n  return 'released'",
        "  put_back(q, batch, run, tick(q))\n  return 'released'",
    ),
)
mutant(
    "stalled_to_the_back",
    "released_and_stalled_jobs_go_to_the_front",
    (
        "  put_back(q, batch, run, run.score)\n  return 'stalled'",
        "  put_back(q, batch, run, tick(q))\n  return 'stalled'",
    ),
)
mutant(
    "retry_to_the_front",
    "an_immediate_retry_goes_to_the_back",
    (
        "  put_back(q, batch, run, (schedule(q, when)))",
        "  put_back(q, batch, run, when == '' and schedule(q, when) or run.score)",
    ),
)
mutant(
    "jobs_run_a_second_early",
    "nothing_runs_early",
    (
        "'ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE',\n      'LIMIT', seen, size",
        "'ZRANGE', q.waiting, '-inf', q.time + 1000, 'BYSCORE',\n      'LIMIT', seen, size",
    ),
)
mutant(
    "the_clock_may_step_back",
    "a_clock_that_steps_back_does_not_stop_the_queue",
    (
        "  if q.now > q.time then\n    q.time = q.now",
        "  if true then\n    q.time, q.old_clock[1] = q.now, false",
    ),
)
mutant(
    "a_pause_is_ignored",
    "a_paused_queue_leases_nothing_and_loses_nothing",
    ("if q.paused then", "if false then"),
)
mutant(
    "one_retry_more",
    "a_job_is_retried_exactly_max_retries_times",
    ("'max_retries', retries) then", "'max_retries', retries - 1) then"),
)
mutant(
    "one_stall_more",
    "a_job_is_given_up_at_its_max_stalls_th_stall",
    ("'max_stalls', info.stall_count) then", "'max_stalls', info.stall_count - 1) then"),
)
mutant(
    "one_timeout_more",
    "a_job_is_given_up_at_its_max_timeouts_th_timeout",
    ("'max_timeouts', timeouts) then", "'max_timeouts', timeouts - 1) then"),
)
mutant(
    "backoff_without_limit",
    "the_backoff_doubles_up_to_its_limit",
    (
        "return math.min(most, least * 2 ^ math.min(attempts, 60))",
        "return least * 2 ^ math.min(attempts, 60)",
    ),
)
mutant(
    "the_limits_of_the_queue_are_ignored",
    "limits_come_from_the_job_else_the_queue_else_the_defaults",
    ("local of_queue = q.limits_table and q.limits_table[name]", "local of_queue = nil"),
)
mutant(
    "a_dequeue_omits_the_info",
    "a_job_is_retried_exactly_max_retries_times",
    ("jobs[at + 5] = data, info or ''\n", "jobs[at + 5] = data, ''\n"),
)
mutant(
    "the_failed_record_is_not_bounded",
    "the_failed_record_is_bounded_and_keeps_the_newest",
    ("  if excess <= 0 then\n", "  if true then\n"),
)
mutant(
    "the_failed_record_keeps_the_oldest",
    "the_failed_record_is_bounded_and_keeps_the_newest",
    ("  for i = #noted.ids, 1, -1 do", "  for i = 1, #noted.ids do"),
)
mutant(
    "a_fail_job_has_the_id_of_its_origin",
    "a_job_given_up_dispatches_a_fail_job_with_an_id_derived_from_its_run",
    ("free_fail_id(fq, run.id .. ':' .. run.token)", "run.id"),
)
mutant(
    "a_fail_job_has_no_origin",
    "a_job_given_up_dispatches_a_fail_job_with_an_id_derived_from_its_run",
    ("cmsgpack.pack({ origin = record })", "cmsgpack.pack({ dispatched_at = q.now })"),
)
mutant(
    "fail_jobs_without_a_fail_handler",
    "without_a_fail_handler_the_fail_queue_stays_empty",
    (
        "join_payload(record, data))\n  local fq = settings_of(q).fail_handler and fail",
        "join_payload(record, data))\n  local fq = fail",
    ),
)
mutant(
    "requeue_keeps_the_record",
    "a_requeued_job_starts_with_counts_at_zero",
    (
        "      batch:del(q[kind], id, raw)\n      batch:rem(q[kind .. '_at'], id, times[i])\n      removed = removed + 1",
        "      removed = removed + 1",
    ),
)
mutant(
    "finish_keeps_info",
    "a_finished_job_leaves_nothing",
    (
        "  if run.old_info then\n    batch:del(q.info, run.id, run.old_info)",
        "  if false then\n    batch:del(q.info, run.id, run.old_info)",
    ),
)
mutant(
    "finish_keeps_data",
    "a_finished_job_leaves_nothing",
    ("  else\n    batch:del_unread(q.data, run.id)\n  end\n", "  end\n"),
)
mutant(
    "a_swept_client_is_remembered",
    "an_empty_queue_leaves_only_its_settings_and_counters",
    (
        "  if request then\n    batch:del(q.requests, client, request)",
        "  if request then\n    batch:set(q.requests, client, request, request)",
    ),
)
mutant(
    "lost_leases_in_a_list_of_finishes_are_not_reported",
    "a_lost_lease_among_many_finishes_is_reported",
    ("lost[#lost + 1] = i - n", "lost[1] = nil"),
)
mutant(
    "an_overtaken_request_takes_jobs",
    "an_overtaken_request_takes_nothing",
    ("tonumber(request) < tonumber(known)", "false"),
)
mutant(
    "a_request_that_took_nothing_is_not_recorded",
    "an_overtaken_request_takes_nothing",
    ("    record_request(q, client, id, request)\n", ""),
)
