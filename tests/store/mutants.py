"""Mistakes to seed into the library, and the promise that each one breaks."""

# ruff: noqa: E501 - the patches are lines of Lua

from dataclasses import dataclass

from queasy.store.library import source

MUTANTS: dict[str, "Mutant"] = {}


@dataclass(frozen=True)
class Mutant:
    """Texts to replace, each of which must occur once, and the promise that must then fail."""

    patches: tuple[tuple[str, str], ...]
    breaks: str

    def text(self) -> str:
        text = source()
        for old, new in self.patches:
            assert text.count(old) == 1, f"expected once, found {text.count(old)} times: {old}"
            text = text.replace(old, new)
        return text


def mutant(name: str, breaks: str, *patches: tuple[str, str]) -> None:
    MUTANTS[name] = Mutant(patches, breaks)


# Mistakes that the design names

mutant(
    "no_token_comparison",
    "finish_with_a_stale_token_changes_nothing",
    ("if run and run.token == token then", "if run then"),
)
mutant(
    "no_token_comparison_of_plain_leases",
    "a_plain_finish_with_a_stale_token_changes_nothing",
    ("if found ~= token or #token > 16 then", "if not found then"),
)
mutant(
    "no_token_comparison_in_extend",
    "a_stale_token_does_not_extend_a_lease",
    (
        "local expiry = token == expected and lease_expiry(q, client)",
        "local expiry = lease_expiry(q, client)",
    ),
)
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
    "blocked_as_a_negative_score",
    "a_held_dispatch_never_runs_beside_its_id",
    (
        "    status = block(q, job, d)",
        "    job.score, job.data, status = d.due and -0 or -d.run_at, d.data, 'blocked'",
    ),
    (
        "'ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE',\n      'LIMIT', seen, size",
        "'ZRANGE', q.waiting, 0, q.time, 'BYSCORE',\n      'LIMIT', seen, size",
    ),
)
mutant(
    "no_request_id",
    "a_repeated_dequeue_returns_the_same_batch",
    ("elseif last_request and last_request == id then", "elseif false then"),
)
mutant(
    "no_request_id_of_a_lease",
    "a_client_made_for_one_lease_gets_the_same_lease_again",
    ("if one_lease and expiry then", "if false then"),
)
mutant(
    "a_swept_client_is_created_again",
    "a_swept_client_stays_dead",
    (
        "  return expiry or nil, request or nil",
        "  return expiry or '0', request or nil",
    ),
)
mutant(
    "a_client_swept_in_part_lives_on",
    "a_client_swept_in_part_is_dead_already",
    (
        "  if request == SWEPT then",
        "  if false then",
    ),
)
mutant(
    "a_client_swept_in_part_registers",
    "a_client_swept_in_part_is_dead_already",
    (
        "  if redis.call('HGET', q.requests, client) == SWEPT then\n    return 'lost'",
        "  if false then\n    return 'lost'",
    ),
)
mutant(
    "a_sweep_of_any_number_of_jobs", "a_sweep_is_bounded", ("SWEEP_JOBS = 100", "SWEEP_JOBS = 1e6")
)
mutant(
    "a_sweep_of_any_number_of_clients",
    "a_sweep_handles_a_bounded_number_of_clients",
    ("SWEEP_CLIENTS = 10", "SWEEP_CLIENTS = 1e6"),
)

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

# Leases, clients, sweeps

mutant(
    "the_same_ending_twice_in_a_call",
    "a_lease_ends_once_however_often_its_outcome_is_sent",
    (
        "problems[i])\n      ended[id], any = true, true",
        "problems[i])\n      any = true",
    ),
)
mutant(
    "the_same_finish_twice_in_a_call",
    "a_plain_lease_ends_once_and_leaves_nothing",
    (".. id\n      ended[id], any = true, true", ".. id\n      any = true"),
)
mutant(
    "tokens_restart_in_each_call",
    "tokens_only_ever_increase",
    ("token = token or 0,", "token = 0,"),
)
mutant(
    "a_client_of_one_lease_stays",
    "a_client_made_for_one_lease_ends_with_it",
    ("if run.client:byte(1) == 126 then", "if false then"),
)
mutant(
    "an_unregistered_client_dequeues",
    "an_unregistered_client_gets_nothing",
    ("if not expiry and (request or not one_lease) then", "if false then"),
)
mutant(
    "a_client_that_dequeues_late_is_swept",
    "a_client_that_dequeues_before_it_is_swept_stays_alive",
    ("if expiry and tonumber(expiry) <= expiry_cutoff(q) then", "if false then"),
)
mutant(
    "no_grace_after_an_outage",
    "after_an_outage_leases_are_extended_once",
    ("OUTAGE_MS = 10000", "OUTAGE_MS = 1e15"),
)
mutant(
    "grace_without_end",
    "a_client_that_does_not_return_after_an_outage_is_swept",
    (
        "  return in_grace(q) and q.gap_from or q.now",
        "  return q.grace_until > 0 and q.gap_from or q.now",
    ),
)
mutant(
    "a_client_dead_before_the_outage_gets_grace",
    "a_client_that_was_dead_before_an_outage_gets_no_grace",
    ("    q.gap_from = q.time\n", "    q.gap_from = 0\n"),
)
mutant(
    "no_poll_is_needed_before_a_lease_expires",
    "jobs_of_a_dead_client_return_in_time_without_other_traffic",
    ("if expiry - from > CONTACT_EVERY_MS and any_leases(q) then", "if false then"),
)
mutant(
    "a_long_lease_needs_polls_from_the_start",
    "a_waiter_is_not_woken_until_shortly_before_a_long_lease_expires",
    ("return math.max(from, expiry - 2 * CONTACT_EVERY_MS)", "return from"),
)
mutant(
    "the_poll_at_the_end_of_a_grace_starts_another",
    "after_an_outage_jobs_of_a_dead_client_return_when_the_grace_ends",
    ("OUTAGE_MS - 1000", "OUTAGE_MS + 1000"),
)
mutant(
    "bump_does_not_sweep",
    "bump_and_dequeue_also_sweep",
    ("bump(q, lease_ms, clients)\n  sweep(q)", "bump(q, lease_ms, clients)"),
)
mutant(
    "a_waiter_gets_no_idle_lease",
    "an_idle_client_stays_alive_until_its_next_poll",
    (
        "    lease_count = extend_idle_lease(q, client, q.now + 2 * args.waits_ms + args.lease_ms)\n",
        "",
    ),
)
mutant(
    "an_idle_lease_is_as_short_as_any",
    "an_idle_client_stays_alive_until_its_next_poll",
    (
        "extend_idle_lease(q, client, q.now + 2 * args.waits_ms + args.lease_ms)",
        "extend_idle_lease(q, client, q.now + args.lease_ms)",
    ),
)
mutant(
    "a_waiter_of_a_paused_queue_gets_no_idle_lease",
    "an_idle_client_stays_alive_until_its_next_poll",
    ("  if waits then\n", "  if waits and not q.paused then\n"),
)
mutant(
    "a_client_with_a_job_gets_an_idle_lease",
    "a_client_that_holds_a_job_is_not_idle",
    (
        "  if lease_count > 0 then\n    return lease_count\n",
        "  if false then\n    return lease_count\n",
    ),
)
mutant(
    "a_single_lease_that_waits_creates_a_client",
    "a_single_lease_that_waits_does_not_create_a_client",
    ("  if client:byte(1) == 126 then -- '~'\n    return 0\n", "  if false then\n    return 0\n"),
)

# Suspects

mutant(
    "all_jobs_of_a_dead_client_stall",
    "only_the_started_jobs_of_a_dead_client_stall",
    ("started and not started[id] and 'release' or verb", "verb"),
)
mutant(
    "started_jobs_of_a_dead_client_are_released",
    "only_the_started_jobs_of_a_dead_client_stall",
    ("started and not started[id] and 'release' or verb", "started and 'release' or verb"),
)

# Dispatch and cancel

mutant(
    "a_due_job_loses_its_place",
    "a_due_job_keeps_its_place_when_it_is_dispatched_again",
    ("if moved ~= score and moved <= q.time and score <= q.time then", "if false then"),
)
mutant(
    "if_later_is_always",
    "run_at_is_updated_always_never_if_later_or_if_earlier",
    ("    return d.run_at, nil\n", "    return d.run_at, d.run_at\n"),
)
mutant(
    "options_are_replaced_as_a_whole",
    "each_option_is_updated_on_its_own",
    (
        "    if update_options(info.options, d.set, d.update) then",
        "    info.options = d.set\n    if true then",
    ),
)
mutant(
    "counts_are_always_reset",
    "counts_are_reset_only_on_request",
    ("if d.reset and reset_counts(info) then", "if reset_counts(info) then"),
)
mutant(
    "unblock_forgets_info",
    "a_held_dispatch_becomes_a_new_job_when_the_run_finishes",
    ("run.id, { dispatched_at = held.accepted, options = held.options },", "run.id, {},"),
)
mutant(
    "held_flags_are_forgotten",
    "a_held_dispatch_is_applied_to_a_retried_job_by_its_flags",
    ("    if held.update_data then\n", "    if true then\n"),
)
mutant(
    "a_release_drops_the_held_dispatch",
    "a_held_dispatch_is_applied_to_a_released_or_stalled_job",
    ("  if held then\n    score = move", "  if false then\n    score = move"),
)
mutant(
    "merging_replaces",
    "further_dispatches_merge_into_the_held_one",
    (
        "    job.held_data = merge_held(q, job.held, job.held_data, d)",
        "    job.held, job.held_data = held_record(d), d.data",
    ),
)
mutant(
    "merged_clamps_do_not_compose",
    "merged_flags_compose_when_the_run_is_retried",
    ("    held.low = clamp(held.low, low, high)", "    held.low = held.low"),
)
mutant(
    "merged_clamps_do_not_compose_above",
    "merged_flags_compose_when_the_run_is_retried",
    ("    held.high = clamp(held.high, low, high)", "    held.high = held.high"),
)
mutant(
    "only_if_absent_is_ignored",
    "only_if_absent_leaves_an_existing_job_unchanged",
    (
        "  local changed = false\n  local info = load_info",
        "  local changed = d.only_if_absent\n  local info = load_info",
    ),
    (
        "  if d.only_if_absent then\n    return 'unchanged'\n  end\n  local changed",
        "  local changed",
    ),
)
mutant(
    "cancel_forgets_info",
    "cancel_removes_a_waiting_job_completely",
    (
        "        batch:del(q.info, id, infos[i])\n      end\n      batch:del_unread(q.data, id)\n      count(q, 'cancelled')",
        "      end\n      batch:del_unread(q.data, id)\n      count(q, 'cancelled')",
    ),
)
mutant(
    "a_cancel_request_is_forgotten",
    "a_run_with_a_requested_cancel_never_returns_to_the_queue",
    ("if run.cancelled and RETURNS_JOB[verb] then", "if false then"),
)

# Repeated calls

mutant(
    "a_repeated_call_is_not_recognised",
    "a_repeated_dispatch_of_a_finished_job_does_not_run_it_again",
    ("if not number or number < call.number then", "if true then"),
)
mutant(
    "a_call_is_not_recorded",
    "a_repeated_dispatch_of_a_finished_job_does_not_run_it_again",
    ("  if not call then\n    return\n", "  if true then\n    return\n"),
)
mutant(
    "the_last_call_counts_as_new",
    "a_repeated_dispatch_gets_the_same_reply_and_changes_nothing",
    ("if not number or number < call.number then", "if not number or number <= call.number then"),
)
mutant(
    "an_older_call_counts_as_new",
    "a_dispatch_older_than_the_last_of_its_caller_is_refused",
    ("if not number or number < call.number then", "if number ~= call.number then"),
)
mutant(
    "every_call_of_a_caller_counts_as_a_repeat",
    "the_next_dispatch_of_a_caller_is_carried_out",
    ("if not number or number < call.number then", "if not number then"),
    ("if number > call.number or #letters ~= jobs then", "if number > call.number then"),
)
mutant(
    "all_callers_share_one_entry",
    "callers_with_the_same_numbers_are_kept_apart",
    ("{ caller = client_arg(argv[last + 1]), number", "{ caller = 'p', number"),
)
mutant(
    "a_cancel_is_not_recorded",
    "a_repeated_cancel_does_not_remove_a_job_dispatched_since",
    ("or cancel(q, ids, argv[2] == '1', call)", "or cancel(q, ids, argv[2] == '1')"),
)
mutant(
    "a_requeue_is_not_recorded",
    "a_repeated_requeue_does_not_run_a_job_that_failed_since",
    ("or requeue(q, kind, ids, call)", "or requeue(q, kind, ids)"),
)
mutant(
    "another_call_with_the_same_number_is_accepted",
    "a_dispatch_older_than_the_last_of_its_caller_is_refused",
    ("if number > call.number or #letters ~= jobs then", "if number > call.number then"),
)
mutant(
    "a_repeated_call_gets_another_reply",
    "a_repeated_dispatch_gets_the_same_reply_and_changes_nothing",
    ("replies[i] = WORDS[letters:sub(i, i)]", "replies[i] = 'unchanged'"),
)
mutant(
    "callers_are_never_forgotten",
    "callers_that_are_gone_are_forgotten",
    ("CALLER_GONE_MS = 600000", "CALLER_GONE_MS = 6e9"),
)
mutant(
    "callers_are_forgotten_too_soon",
    "a_call_is_remembered_for_nine_minutes",
    ("CALLER_GONE_MS = 600000", "CALLER_GONE_MS = 60000"),
)
mutant(
    "a_caller_is_noted_only_once",
    "a_caller_that_keeps_calling_is_not_forgotten",
    ("if not noted or math.abs(q.now - noted) > NOTE_EVERY_MS then", "if not noted then"),
)
mutant(
    "any_number_of_callers_is_forgotten_at_once",
    "callers_that_are_gone_are_forgotten",
    (
        "q.now - CALLER_GONE_MS, 'BYSCORE',\n    'LIMIT', 0, 100,",
        "q.now - CALLER_GONE_MS, 'BYSCORE',\n    'LIMIT', 0, 1000,",
    ),
)

# Order, time, budgets

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
    ("if retries >= limit_of", "if retries > limit_of"),
)
mutant(
    "one_stall_more",
    "a_job_is_given_up_at_its_max_stalls_th_stall",
    ("if info.stall_count >= limit_of", "if info.stall_count > limit_of"),
)
mutant(
    "one_timeout_more",
    "a_job_is_given_up_at_its_max_timeouts_th_timeout",
    ("if timeouts >= limit_of", "if timeouts > limit_of"),
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

# What is stored

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
        "      batch:del(q[kind], id, raw)\n      batch:rem(q[kind .. '_at'], id, times[i])\n      count(q, 'requeued')",
        "      count(q, 'requeued')",
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
    "a_plain_finish_keeps_data",
    "a_plain_lease_ends_once_and_leaves_nothing",
    ("  batch:bulk_del_unread(q.data, plain.ids, plain.n)\n", ""),
)
mutant(
    "a_plain_finish_drops_the_held_dispatch",
    "a_held_dispatch_becomes_a_new_job_when_a_plain_run_finishes",
    ("raw and not helds[i] and has_bulk_path", "raw and has_bulk_path"),
)
mutant(
    "the_long_entry_stays_among_the_leases",
    "many_leases_are_stored_as_a_table_without_the_long_entry",
    ("    batch:rem(q.leases, LONG_ENTRY)\n", ""),
)
mutant(
    "many_leases_stay_a_listpack",
    "many_leases_are_stored_as_a_table_without_the_long_entry",
    ("local BULK = 8", "local BULK = 1e6"),
)
mutant(
    "the_long_entry_stays_in_data",
    "many_jobs_are_stored_as_tables_without_the_long_entry",
    ("    batch:del(q.data, LONG_ENTRY)\n", ""),
)
mutant(
    "the_long_entry_stays_in_waiting",
    "many_jobs_are_stored_as_tables_without_the_long_entry",
    ("  batch:rem(q.waiting, LONG_ENTRY)\n", ""),
)
mutant(
    "the_long_entry_stays_among_the_counters",
    "the_counters_of_an_older_queue_are_stored_as_a_table",
    ("  batch:del(q.stats, LONG_ENTRY)\n", ""),
)
mutant(
    "a_client_that_stops_waiting_ignores_other_waiters",
    "a_client_that_got_a_job_is_not_a_waiter",
    ("if not poll_at and #redis.call('ZRANGE', q.waiters, 0, 0) == 0 then", "if not poll_at then"),
)
mutant(
    "the_long_entry_overwrites_a_job_with_that_id",
    "a_job_may_have_the_long_entry_as_its_id",
    ("if n >= BULK and not active[n + 1] and not scores[n + 1] and", "if n >= BULK and"),
)
mutant(
    "the_long_entry_overwrites_a_dispatch_of_the_same_call",
    "a_job_may_have_the_long_entry_as_its_id",
    ("and not scores[n + 1] and not jobs[LONG_ENTRY] then", "and not scores[n + 1] then"),
)
mutant(
    "every_plain_lease_belongs_to_the_sender",
    "many_leases_end_each_by_its_own_token",
    ("(holder == sender and lease_head or holder", "(lease_head or holder"),
)
mutant(
    "a_lease_with_a_requested_cancel_counts_as_plain",
    "many_leases_end_each_by_its_own_token",
    ("  if client == sender or string.find(client, '^[^~:][^:]*$') then", "  if client then"),
)
mutant(
    "any_double_is_a_time",
    "an_infinite_dispatch_time_is_not_a_time",
    ("  return not (high % 128 == 127 and low >= 240)", "  return true"),
)
mutant(
    "a_plain_finish_keeps_info",
    "a_plain_finish_leaves_nothing_of_an_earlier_attempt",
    ("    batch:bulk_del_unread(q.info, plain.ids, plain.n)\n", ""),
)
mutant(
    "keys_of_unread_values_are_not_checked",
    "a_refused_finish_changes_nothing",
    ("  check_unread_keys(self)\n", ""),
)
mutant(
    "a_scheduled_plain_job_has_no_dispatch_time",
    "a_scheduled_dispatch_may_occur_twice_in_a_batch",
    (
        "      if not due then\n        add_scheduled",
        "      if false then\n        add_scheduled",
    ),
)
mutant(
    "a_second_scheduled_dispatch_ignores_the_first",
    "a_scheduled_dispatch_may_occur_twice_in_a_batch",
    ("    if plain.infos[i] == id then", "    if false then"),
)
mutant(
    "a_scheduled_dispatch_wakes_a_waiter",
    "a_scheduled_dispatch_wakes_no_waiter",
    ("(q.due or 0) + plain.n - plain.scheduled", "(q.due or 0) + plain.n"),
)
mutant(
    "a_second_plain_dispatch_ignores_the_first",
    "a_plain_dispatch_may_occur_twice_in_a_batch",
    (
        "if not job and not active[i] and not scores[i] and id ~= ''",
        "if not active[i] and id ~= ''",
    ),
)
mutant(
    "later_writes_come_first",
    "a_plain_dispatch_may_occur_twice_in_a_large_batch",
    ("  of_kind[key] = nil -- later writes to this key come after this command\n", ""),
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
    "a_late_heartbeat_shortens_an_idle_lease",
    "a_late_heartbeat_does_not_shorten_the_lease_of_an_idle_client",
    (
        "        new_expiry = math.max(new_expiry, tonumber(expiry)) -- an idle",
        "        -- an idle",
    ),
)
mutant(
    "a_client_that_sleeps_until_an_event_is_woken_for_it",
    "a_client_that_sleeps_until_a_lease_expires_is_not_woken_early",
    ("at < tonumber(first[2]) - 1.25 then", "at < tonumber(first[2]) then"),
)
mutant(
    "an_idle_client_expires_before_it_polls",
    "a_sleeping_client_is_not_woken_because_another_sleeps",
    (
        "extend_idle_lease(q, client, q.now + 2 * args.waits_ms + args.lease_ms)",
        "extend_idle_lease(q, client, q.now + args.lease_ms)",
    ),
)
mutant(
    "a_client_without_room_gets_no_next_poll",
    "a_client_without_room_learns_that_a_job_is_due",
    ("  local wants_next = limit == 0 or ", "  local wants_next = "),
)
mutant(
    "a_client_without_room_waits_although_a_job_is_due",
    "a_client_without_room_learns_that_a_job_is_due",
    ("  return args.limit > 0 or not is_due(q, args.skips_suspects)", "  return true"),
)
mutant(
    "the_wake_up_of_an_evicted_client_is_not_forwarded",
    "a_wake_up_of_a_client_that_died_is_forwarded",
    ("  forward_wake_up(q) -- the client may have been", "  -- the client may have been"),
)

# The server

mutant(
    "dispatch_in_full_memory",
    "a_full_server_refuses_dispatch_and_drains",
    ("register('put', API.put)", "register('put', API.put, 'allow-oom')"),
)
mutant(
    "scheduled_dispatch_in_full_memory",
    "a_full_server_refuses_dispatch_and_drains",
    ("register('dispatch', API.dispatch)", "register('dispatch', API.dispatch, 'allow-oom')"),
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
mutant(
    "a_dispatch_wakes_all_waiters",
    "a_dispatch_wakes_one_waiter_that_is_subscribed",
    ("n, gone = n - (received and 1 or 0),", "n, gone = n,"),
)
mutant(
    "a_client_that_waits_again_counts_as_gone",
    "a_client_that_waits_again_after_a_long_time_is_still_woken",
    ("      if gone[i] ~= waiter then\n", "      if true then\n"),
)
mutant(
    "tokens_do_not_follow_the_clock",
    "a_token_is_not_issued_again_after_the_server_lost_its_state",
    ("  q.token = math.max(math.ceil(q.token), math.floor(q.now * 1000))\n", ""),
)
mutant(
    "a_fail_job_overwrites_a_job_with_its_id",
    "a_fail_job_does_not_overwrite_a_job_with_its_id",
    ("  while redis.call('HEXISTS', fq.data, id) == 1 do\n", "  while false do\n"),
)

mutant(
    "every_dequeue_gets_seven_values",
    "a_dequeue_without_a_list_of_finishes_gets_five_values",
    ("  if not args.packed_finishes then", "  if false then"),
)

# Values that another program wrote

mutant(
    "a_stored_clock_is_not_checked",
    "unreadable_settings_and_clocks_count_as_not_set",
    (
        "  local last_contact = stored_number(clock[1], MAX_TIME)",
        "  local last_contact = clock[1] and tonumber(clock[1])",
    ),
)
mutant(
    "stored_limits_are_not_checked",
    "unreadable_settings_and_clocks_count_as_not_set",
    ("stored_number(raw[3], MAX_INTEGER)", "tonumber(raw[3])"),
)
mutant(
    "a_held_dispatch_is_not_checked",
    "an_unreadable_held_dispatch_is_quarantined_when_the_run_ends",
    (
        "    run.held, run.held_data = read_held(held)\n",
        "    run.held, run.held_data = split_payload(held)\n",
    ),
)
mutant(
    "an_active_job_is_leased_again",
    "a_job_that_waits_and_is_active_is_not_leased_again",
    ("  if active and has_lease(q, id, active) then", "  if false then"),
)
mutant(
    "the_wrong_key_is_not_named",
    "an_error_names_the_key_of_the_wrong_type",
    ("      explain(reply, keys)\n", "      error({ err = reply })\n"),
)
