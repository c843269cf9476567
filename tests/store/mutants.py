"""Mistakes to seed into the library, and the promise that each of them breaks."""

# ruff: noqa: E501 - the patches are lines of Lua

from dataclasses import dataclass

from queasy.store.library import source

MUTANTS: dict[str, "Mutant"] = {}


@dataclass(frozen=True)
class Mutant:
    """Texts to replace, each of which must be there, and the promise that must then fail."""

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


# Those that the design names

mutant(
    "no_token_comparison",
    "finish_with_a_stale_token_changes_nothing",
    ("if run and run.token == token then", "if run then"),
)
mutant(
    "no_token_comparison_of_most_runs",
    "a_plain_finish_with_a_stale_token_changes_nothing",
    ("if found ~= token or #token > 16 then", "if not found then"),
)
mutant(
    "no_token_comparison_in_extend",
    "a_stale_token_extends_no_lease",
    (
        "local expiry = token == expected and lease_expiry(q, client)",
        "local expiry = lease_expiry(q, client)",
    ),
)
mutant(
    "the_clients_clock",
    "the_clients_clock_decides_nothing",
    (
        "  if at <= q.now then\n    return accepted, true",
        "  if at <= q.now then\n    return at, true",
    ),
)
mutant(
    "the_clients_clock_as_the_queues",
    "the_clients_clock_decides_nothing",
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
        "'ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE', 'LIMIT', seen, size",
        "'ZRANGE', q.waiting, 0, q.time, 'BYSCORE', 'LIMIT', seen, size",
    ),
)
mutant(
    "no_request_id",
    "a_repeated_dequeue_returns_the_same_batch",
    ("elseif same and same == id then", "elseif false then"),
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
    "a_sweep_looks_at_a_bounded_number_of_clients",
    ("SWEEP_CLIENTS = 10", "SWEEP_CLIENTS = 1e6"),
)

mutant(
    "a_sweep_of_any_number_of_bytes",
    "a_sweep_ends_only_so_many_bytes",
    ("budget.jobs > 0 and budget.bytes > 0", "budget.jobs > 0"),
)
mutant(
    "held_dispatches_weigh_nothing",
    "what_is_held_behind_a_run_counts_when_it_is_swept",
    ("#(run.data or '') + #(run.held_data or run.old_held or '')", "#(run.data or '')"),
)
mutant(
    "cancelled_runs_weigh_nothing",
    "a_sweep_ends_only_so_many_bytes_of_cancelled_runs",
    ("  if run.cancelled then\n    run.data", "  if false then\n    run.data"),
)
mutant(
    "a_dequeue_of_any_number_of_bytes",
    "a_dequeue_takes_only_so_many_bytes",
    ("      if bytes >= MAX_CALL_BYTES then\n        break", "      if false then\n        break"),
)
mutant(
    "a_requeue_of_any_number_of_bytes",
    "a_requeue_moves_only_so_many_bytes",
    ("local later = bytes >= MAX_CALL_BYTES", "local later = false"),
)
mutant(
    "a_repeat_looks_through_a_thousand_leases",
    "a_repeated_dequeue_is_the_same_however_much_its_client_holds",
    ("local FEW_LEASES = 100\n", "local FEW_LEASES = 1e6\n"),
)
mutant(
    "a_repeat_returns_what_another_holds_by_now",
    "a_repeated_dequeue_is_of_what_its_client_still_holds",
    ("n and holder == client and n >= first_token and n <= last_token", "n"),
)

mutant(
    "a_grace_that_began_later",
    "a_clock_set_back_to_before_an_outage_stalls_nobody",
    ("q.now < q.grace_until and q.now >= q.grace_until - OUTAGE_MS", "q.now < q.grace_until"),
)
mutant(
    "a_grace_that_lasts_until_the_clock_has_caught_up",
    "a_clock_set_back_does_not_prolong_the_grace_after_an_outage",
    ("q.now < q.grace_until and q.now >= q.grace_until - OUTAGE_MS", "q.now < q.grace_until"),
)

# Leases, clients, sweeps

mutant(
    "the_same_ending_twice_in_a_call",
    "a_lease_ends_once_whoever_repeats_it",
    (
        "problems[i])\n      ended[id], any = true, true",
        "problems[i])\n      any = true",
    ),
)
mutant(
    "the_same_finish_twice_in_a_call",
    "a_plain_lease_ends_once_and_nothing_is_left_of_it",
    (".. id\n      ended[id], any = true, true", ".. id\n      any = true"),
)
mutant(
    "tokens_begin_anew_in_each_call",
    "tokens_only_ever_increase",
    ("token = token or 0,", "token = 0,"),
)
mutant(
    "a_client_of_one_lease_stays",
    "a_client_made_for_one_lease_ends_with_it",
    ("if run.client:byte(1) == 126 then", "if false then"),
)
mutant(
    "anybody_is_a_client",
    "a_client_nobody_registered_gets_nothing",
    ("if not expiry and (request or not one_lease) then", "if false then"),
)
mutant(
    "who_asks_late_is_swept",
    "a_client_that_asks_before_it_was_swept_lives",
    ("if expiry and tonumber(expiry) <= expiry_cutoff(q) then", "if false then"),
)
mutant(
    "no_grace_after_an_outage",
    "after_an_outage_leases_are_extended_once",
    ("OUTAGE_MS = 10000", "OUTAGE_MS = 1e15"),
)
mutant(
    "grace_without_end",
    "who_does_not_come_back_after_an_outage_is_swept",
    (
        "  return in_grace(q) and q.gap_from or q.now",
        "  return q.grace_until > 0 and q.gap_from or q.now",
    ),
)
mutant(
    "grace_for_the_dead",
    "an_outage_saves_nobody_who_was_dead_before_it",
    ("    q.gap_from = q.time\n", "    q.gap_from = 0\n"),
)
mutant(
    "nobody_is_heard_until_a_lease_runs_out",
    "the_jobs_of_the_dead_come_back_in_time_although_nobody_else_is_heard",
    ("if expiry - from > CONTACT_EVERY_MS and any_leases(q) then", "if false then"),
)
mutant(
    "a_long_lease_keeps_everybody_awake",
    "who_waits_is_left_alone_until_shortly_before_a_long_lease_runs_out",
    ("return math.max(from, expiry - 2 * CONTACT_EVERY_MS)", "return from"),
)
mutant(
    "who_looks_when_the_grace_is_over_begins_another",
    "after_an_outage_the_jobs_of_the_dead_come_back_when_the_grace_is_over",
    ("OUTAGE_MS - 1000", "OUTAGE_MS + 1000"),
)
mutant(
    "bump_does_not_sweep",
    "bump_and_dequeue_sweep_as_well",
    ("bump(q, lease_ms, clients)\n  sweep(q)", "bump(q, lease_ms, clients)"),
)
mutant(
    "who_waits_must_be_heard",
    "an_idle_client_lives_until_it_looks_again",
    (
        "    lease_count = extend_idle_lease(q, client, q.now + 2 * args.waits_ms + args.lease_ms)\n",
        "",
    ),
)
mutant(
    "who_waits_lives_for_a_lease",
    "an_idle_client_lives_until_it_looks_again",
    (
        "extend_idle_lease(q, client, q.now + 2 * args.waits_ms + args.lease_ms)",
        "extend_idle_lease(q, client, q.now + args.lease_ms)",
    ),
)
mutant(
    "who_waits_in_a_pause_must_be_heard",
    "an_idle_client_lives_until_it_looks_again",
    ("  if waits then\n", "  if waits and not q.paused then\n"),
)
mutant(
    "who_holds_a_job_is_idle",
    "a_client_that_holds_a_job_is_not_idle",
    (
        "  if lease_count > 0 then\n    return lease_count\n",
        "  if false then\n    return lease_count\n",
    ),
)
mutant(
    "who_waits_for_one_lease_is_a_client",
    "one_lease_that_waits_makes_no_client",
    ("  if client:byte(1) == 126 then -- '~'\n    return 0\n", "  if false then\n    return 0\n"),
)

# Suspects

mutant(
    "all_of_a_dead_client_stalls",
    "only_what_a_dead_client_had_started_stalls",
    ("started and not started[id] and 'release' or verb", "verb"),
)
mutant(
    "what_was_started_is_released",
    "only_what_a_dead_client_had_started_stalls",
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
    "options_come_as_one",
    "each_option_is_updated_by_itself",
    (
        "    if update_options(info.options, d.set, d.update) then",
        "    info.options = d.set\n    if true then",
    ),
)
mutant(
    "counts_are_reset_whatever",
    "counts_are_reset_if_asked_and_only_then",
    ("if d.reset and reset_counts(info) then", "if reset_counts(info) then"),
)
mutant(
    "unblock_forgets_info",
    "a_held_dispatch_comes_up_as_a_new_job",
    ("run.id, { dispatched_at = held.accepted, options = held.options },", "run.id, {},"),
)
mutant(
    "held_flags_are_forgotten",
    "a_held_dispatch_is_applied_to_a_retried_job_by_its_flags",
    ("    if held.update_data then\n", "    if true then\n"),
)
mutant(
    "a_held_dispatch_is_lost_to_a_release",
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
    "only_if_absent_changes_nothing_that_is_there",
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
    "cancel_ends_a_wait_and_nothing_is_left_of_it",
    (
        "        batch:del(q.info, id, infos[i])\n      end\n      batch:del_unread(q.data, id)\n      count(q, 'cancelled')",
        "      end\n      batch:del_unread(q.data, id)\n      count(q, 'cancelled')",
    ),
)
mutant(
    "a_cancel_request_is_forgotten",
    "a_run_that_was_asked_to_cancel_comes_back_in_no_way",
    ("if run.cancelled and RETURNS_JOB[verb] then", "if false then"),
)

# Calls that are sent again

mutant(
    "a_call_is_not_looked_for",
    "a_dispatch_sent_again_after_its_job_finished_runs_no_job",
    ("if not number or number < call.number then", "if true then"),
)
mutant(
    "a_call_is_not_kept",
    "a_dispatch_sent_again_after_its_job_finished_runs_no_job",
    ("  if not call then\n    return\n", "  if true then\n    return\n"),
)
mutant(
    "the_last_call_is_taken_for_a_new_one",
    "a_dispatch_sent_again_is_answered_as_before_and_changes_nothing",
    ("if not number or number < call.number then", "if not number or number <= call.number then"),
)
mutant(
    "only_the_last_call_is_known",
    "a_dispatch_that_its_caller_has_overtaken_is_refused",
    ("if not number or number < call.number then", "if number ~= call.number then"),
)
mutant(
    "every_call_of_a_caller_is_the_same",
    "the_next_dispatch_of_a_caller_is_carried_out",
    ("if not number or number < call.number then", "if not number then"),
    ("if number > call.number or #letters ~= jobs then", "if number > call.number then"),
)
mutant(
    "every_call_is_of_one_caller",
    "callers_do_not_get_in_each_others_way",
    ("{ caller = client_arg(argv[last + 1]), number", "{ caller = 'p', number"),
)
mutant(
    "a_cancel_is_not_kept",
    "a_cancel_sent_again_does_not_hit_a_job_dispatched_since",
    ("or cancel(q, ids, argv[2] == '1', call)", "or cancel(q, ids, argv[2] == '1')"),
)
mutant(
    "a_requeue_is_not_kept",
    "a_requeue_sent_again_does_not_run_a_job_that_failed_since",
    ("or requeue(q, kind, ids, call)", "or requeue(q, kind, ids)"),
)
mutant(
    "another_call_of_the_same_number_is_not_noticed",
    "a_dispatch_that_its_caller_has_overtaken_is_refused",
    ("if number > call.number or #letters ~= jobs then", "if number > call.number then"),
)
mutant(
    "a_call_sent_again_is_answered_somehow",
    "a_dispatch_sent_again_is_answered_as_before_and_changes_nothing",
    ("replies[i] = WORDS[letters:sub(i, i)]", "replies[i] = 'unchanged'"),
)
mutant(
    "callers_pile_up",
    "callers_who_are_gone_are_forgotten",
    ("CALLER_GONE_MS = 600000", "CALLER_GONE_MS = 6e9"),
)
mutant(
    "callers_are_forgotten_too_soon",
    "a_call_is_known_for_nine_minutes",
    ("CALLER_GONE_MS = 600000", "CALLER_GONE_MS = 60000"),
)
mutant(
    "a_caller_is_noted_once",
    "a_caller_who_goes_on_calling_is_not_forgotten",
    ("if not noted or math.abs(q.now - noted) > NOTE_EVERY_MS then", "if not noted then"),
)
mutant(
    "any_number_of_callers_is_forgotten_at_once",
    "callers_who_are_gone_are_forgotten",
    (
        "q.now - CALLER_GONE_MS, 'BYSCORE', 'LIMIT', 0, 100,",
        "q.now - CALLER_GONE_MS, 'BYSCORE', 'LIMIT', 0, 1000,",
    ),
)

# Order, time, budgets

mutant(
    "no_order_in_a_batch",
    "due_jobs_leave_in_the_order_they_were_accepted",
    ("  if q.ticked then\n    q.time = q.time + TICK", "  if q.ticked then\n    q.time = q.time"),
)
mutant(
    "no_order_of_one_instant",
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
    "a_retry_at_once_goes_to_the_back",
    (
        "  put_back(q, batch, run, (schedule(q, when)))",
        "  put_back(q, batch, run, when == '' and schedule(q, when) or run.score)",
    ),
)
mutant(
    "a_second_early",
    "nothing_runs_early",
    (
        "'ZRANGE', q.waiting, '-inf', q.time, 'BYSCORE', 'LIMIT', seen, size",
        "'ZRANGE', q.waiting, '-inf', q.time + 1000, 'BYSCORE', 'LIMIT', seen, size",
    ),
)
mutant(
    "the_clock_may_step_back",
    "a_clock_that_steps_back_stops_nothing",
    (
        "  if q.now > q.time then\n    q.time = q.now",
        "  if true then\n    q.time, q.old_clock[1] = q.now, false",
    ),
)
mutant(
    "a_pause_is_ignored",
    "a_paused_queue_gives_nothing_out_and_forgets_nothing",
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
    "the_queues_limits_are_ignored",
    "a_job_says_its_limits_else_the_queue_else_the_defaults",
    ("local of_queue = q.limits_table and q.limits_table[name]", "local of_queue = nil"),
)
mutant(
    "take_forgets_info",
    "a_job_is_retried_exactly_max_retries_times",
    ("id, token, run_at, data, info or ''\n", "id, token, run_at, data, ''\n"),
)

# What is kept

mutant(
    "the_record_grows",
    "the_failed_record_is_bounded_and_keeps_the_newest",
    ("  if excess <= 0 then\n", "  if true then\n"),
)
mutant(
    "the_oldest_are_kept",
    "the_failed_record_is_bounded_and_keeps_the_newest",
    ("  for i = #noted.ids, 1, -1 do", "  for i = 1, #noted.ids do"),
)
mutant(
    "fail_ids_are_plain",
    "a_job_given_up_gives_the_fail_queue_a_job_derived_from_its_run",
    ("free_fail_id(fq, run.id .. ':' .. run.token)", "run.id"),
)
mutant(
    "a_fail_job_has_no_origin",
    "a_job_given_up_gives_the_fail_queue_a_job_derived_from_its_run",
    ("cmsgpack.pack({ origin = record })", "cmsgpack.pack({ dispatched_at = q.now })"),
)
mutant(
    "fail_jobs_for_nobody",
    "without_a_fail_handler_the_fail_queue_stays_empty",
    (
        "join_payload(record, data))\n  local fq = settings_of(q).fail_handler and fail",
        "join_payload(record, data))\n  local fq = fail",
    ),
)
mutant(
    "requeue_keeps_the_record",
    "a_requeued_job_begins_anew",
    (
        "      batch:del(q[kind], id, raw)\n      batch:rem(q[kind .. '_at'], id, times[i])\n      count(q, 'requeued')",
        "      count(q, 'requeued')",
    ),
)
mutant(
    "finish_keeps_info",
    "nothing_is_kept_of_a_finished_job",
    (
        "  if run.old_info then\n    batch:del(q.info, run.id, run.old_info)",
        "  if false then\n    batch:del(q.info, run.id, run.old_info)",
    ),
)
mutant(
    "finish_keeps_data",
    "nothing_is_kept_of_a_finished_job",
    ("  else\n    batch:del_unread(q.data, run.id)\n  end\n", "  end\n"),
)
mutant(
    "most_finishes_keep_data",
    "a_plain_lease_ends_once_and_nothing_is_left_of_it",
    ("  batch:bulk_del_unread(q.data, plain.ids, plain.n)\n", ""),
)
mutant(
    "a_plain_finish_forgets_what_is_held",
    "what_is_held_behind_a_plain_run_comes_up",
    ("raw and not helds[i] and has_bulk_path", "raw and has_bulk_path"),
)
mutant(
    "the_long_member_stays_among_the_leases",
    "the_leases_of_many_are_in_a_table_and_are_all_there_is_in_it",
    ("    batch:rem(q.leases, LONG_ENTRY)\n", ""),
)
mutant(
    "leases_are_searched_from_end_to_end",
    "the_leases_of_many_are_in_a_table_and_are_all_there_is_in_it",
    ("local BULK = 8", "local BULK = 1e6"),
)
mutant(
    "what_makes_a_table_is_left_in_it",
    "many_jobs_are_in_tables_and_are_all_there_is_in_them",
    ("    batch:del(q.data, LONG_ENTRY)\n", ""),
)
mutant(
    "what_makes_a_table_is_taken_for_a_job",
    "many_jobs_are_in_tables_and_are_all_there_is_in_them",
    ("  batch:rem(q.waiting, LONG_ENTRY)\n", ""),
)
mutant(
    "what_makes_a_table_is_left_among_the_counters",
    "the_counters_of_a_queue_that_is_older_are_in_a_table",
    ("  batch:del(q.stats, LONG_ENTRY)\n", ""),
)
mutant(
    "who_stops_waiting_thinks_that_nobody_waits",
    "who_got_a_job_waits_no_more",
    ("if not poll_at and #redis.call('ZRANGE', q.waiters, 0, 0) == 0 then", "if not poll_at then"),
)
mutant(
    "what_makes_a_table_is_nobodys_id",
    "an_id_may_be_what_makes_a_table",
    ("if n >= BULK and not active[n + 1] and not scores[n + 1] and", "if n >= BULK and"),
)
mutant(
    "what_makes_a_table_is_no_id_of_the_same_call",
    "an_id_may_be_what_makes_a_table",
    ("and not scores[n + 1] and not jobs[LONG_ENTRY] then", "and not scores[n + 1] then"),
)
mutant(
    "every_plain_lease_is_of_who_asks",
    "many_leases_end_each_by_its_own_token",
    ("(holder == sender and lease_head or holder", "(lease_head or holder"),
)
mutant(
    "a_cancel_that_was_asked_for_is_overlooked",
    "many_leases_end_each_by_its_own_token",
    ("  if client == sender or string.find(client, '^[^~:][^:]*$') then", "  if client then"),
)
mutant(
    "any_double_is_a_time",
    "a_time_that_is_none_is_no_time_of_a_dispatch",
    ("  return not (high % 128 == 127 and low >= 240)", "  return true"),
)
mutant(
    "a_plain_finish_keeps_info",
    "a_plain_finish_leaves_nothing_of_an_earlier_try",
    ("    batch:bulk_del_unread(q.info, plain.ids, plain.n)\n", ""),
)
mutant(
    "what_cannot_be_taken_back_is_tried",
    "a_finish_that_is_refused_has_changed_nothing",
    ("  check_unread_keys(self)\n", ""),
)
mutant(
    "a_plain_job_that_is_scheduled_forgets_when_it_was_dispatched",
    "a_scheduled_dispatch_may_follow_itself_in_a_batch",
    (
        "      if not due then\n        add_scheduled",
        "      if false then\n        add_scheduled",
    ),
)
mutant(
    "a_scheduled_dispatch_forgets_the_one_before",
    "a_scheduled_dispatch_may_follow_itself_in_a_batch",
    ("    if plain.infos[i] == id then", "    if false then"),
)
mutant(
    "who_waits_is_woken_for_what_is_scheduled",
    "what_is_scheduled_wakes_nobody",
    ("(q.due or 0) + plain.n - plain.scheduled", "(q.due or 0) + plain.n"),
)
mutant(
    "a_plain_dispatch_forgets_the_one_before",
    "a_plain_dispatch_may_follow_itself_in_a_batch",
    (
        "if not job and not active[i] and not scores[i] and id ~= ''",
        "if not active[i] and id ~= ''",
    ),
)
mutant(
    "what_comes_later_is_written_first",
    "a_plain_dispatch_may_follow_itself_in_a_large_batch",
    ("  of_kind[key] = nil -- what comes later is written later\n", ""),
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
    "a_late_heartbeat_cuts_a_rest_short",
    "a_heartbeat_that_comes_late_does_not_cut_a_rest_short",
    (
        "        new_expiry = math.max(new_expiry, tonumber(expiry)) -- one that",
        "        -- one that",
    ),
)
mutant(
    "who_sleeps_until_something_happens_is_woken_for_it",
    "who_sleeps_until_a_lease_runs_out_is_not_woken_for_it_before",
    ("at < tonumber(first[2]) - 1.25 then", "at < tonumber(first[2]) then"),
)
mutant(
    "a_sleeper_keeps_the_others_awake",
    "who_sleeps_is_not_woken_because_another_does",
    (
        "extend_idle_lease(q, client, q.now + 2 * args.waits_ms + args.lease_ms)",
        "extend_idle_lease(q, client, q.now + args.lease_ms)",
    ),
)
mutant(
    "who_has_no_room_is_told_nothing",
    "who_has_no_room_is_told_that_something_is_due_or_woken_when_it_is",
    ("  local wants_next = limit == 0 or ", "  local wants_next = "),
)
mutant(
    "who_has_no_room_waits_for_what_is_there",
    "who_has_no_room_is_told_that_something_is_due_or_woken_when_it_is",
    ("  return args.limit > 0 or not is_due(q, args.skips_suspects)", "  return true"),
)
mutant(
    "who_dies_takes_its_wake_up_along",
    "what_a_client_was_woken_for_when_it_died_goes_to_another",
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
    "finishes_of_who_lost_the_lease_are_not_told",
    "who_lost_the_lease_is_told_so_also_among_many",
    ("lost[#lost + 1] = i - n", "lost[1] = nil"),
)
mutant(
    "an_old_request_takes_jobs",
    "a_request_that_was_given_up_takes_nothing_when_it_comes_at_last",
    ("tonumber(request) < tonumber(known)", "false"),
)
mutant(
    "a_request_that_took_nothing_is_not_noted",
    "a_request_that_was_given_up_takes_nothing_when_it_comes_at_last",
    ("    record_request(q, client, id, request)\n", ""),
)
mutant(
    "a_dispatch_wakes_everybody",
    "a_dispatch_wakes_one_sleeper_who_hears_it",
    ("n, gone = n - (received and 1 or 0),", "n, gone = n,"),
)
mutant(
    "who_waits_again_is_taken_for_gone",
    "who_waits_again_after_a_long_time_is_still_woken",
    ("      if gone[i] ~= waiter then\n", "      if true then\n"),
)
mutant(
    "tokens_start_again_with_the_server",
    "a_token_is_not_given_out_again_after_the_server_forgot",
    ("  q.token = math.max(math.ceil(q.token), math.floor(q.now * 1000))\n", ""),
)
mutant(
    "a_fail_job_overwrites_who_has_its_id",
    "a_fail_id_that_is_taken_is_left_alone",
    ("  while redis.call('HEXISTS', fq.data, id) == 1 do\n", "  while false do\n"),
)

mutant(
    "everybody_is_answered_alike",
    "who_gives_no_list_of_finishes_is_answered_as_before_there_was_one",
    ("  if not args.gives_finishes then", "  if false then"),
)

# What somebody put there by hand

mutant(
    "a_clock_that_is_no_number",
    "settings_and_clocks_that_cannot_be_read_count_as_not_set",
    (
        "  local last_contact = stored_number(clock[1], MAX_TIME)",
        "  local last_contact = clock[1] and tonumber(clock[1])",
    ),
)
mutant(
    "limits_of_any_kind",
    "settings_and_clocks_that_cannot_be_read_count_as_not_set",
    ("stored_number(raw[3], MAX_INTEGER)", "tonumber(raw[3])"),
)
mutant(
    "a_held_dispatch_of_any_kind",
    "a_held_dispatch_that_cannot_be_read_is_set_aside_when_the_run_ends",
    (
        "    run.held, run.held_data = read_held(held)\n",
        "    run.held, run.held_data = split_payload(held)\n",
    ),
)
mutant(
    "who_is_active_is_taken_again",
    "a_job_that_waits_and_is_held_is_not_handed_out_again",
    ("  if active and has_lease(q, id, active) then", "  if false then"),
)
mutant(
    "the_wrong_key_is_not_named",
    "a_key_of_the_wrong_type_is_named",
    ("      explain(reply, keys)\n", "      error({ err = reply })\n"),
)
