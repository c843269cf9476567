"""Mistakes in leases, clients and sweeps."""

from tests.store.mutant import mutant

mutant(
    "no_token_comparison",
    "finish_with_a_stale_token_changes_nothing",
    ("if run and run.token == token then", "if run then"),
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
    ("  if request == SWEPT then\n    return 'lost'", "  if false then\n    return 'lost'"),
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
    "the_same_ending_twice_in_a_call",
    "a_lease_ends_once_however_often_its_outcome_is_sent",
    (
        "problems[i])\n      ended[id], any = true, true",
        "problems[i])\n      any = true",
    ),
)
mutant(
    "tokens_restart_in_each_call",
    "tokens_only_ever_increase",
    ("token = token or 0,", "token = 0,"),
)
mutant(
    "a_client_of_one_lease_stays",
    "a_client_made_for_one_lease_ends_with_it",
    ("if is_for_one_lease(run.client) then", "if false then"),
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
    (" and math.min(q.gap_from, contact) or contact", " and math.min(q.gap_from, contact) or 0"),
)
mutant(
    "no_poll_is_needed_before_a_lease_expires",
    "jobs_of_a_dead_client_return_in_time_without_other_traffic",
    ("if left > CONTACT_EVERY_MS then", "if false then"),
)
mutant(
    "a_long_lease_needs_polls_from_the_start",
    "a_waiter_is_not_woken_until_shortly_before_a_long_lease_expires",
    ("at = math.max(from + CONTACT_EVERY_MS, ", "at = math.min(from + CONTACT_EVERY_MS, "),
)
mutant(
    "polls_are_so_rare_that_the_silence_counts_as_an_outage",
    "jobs_of_a_dead_client_return_in_time_without_other_traffic",
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
        "    lease_count = extend_idle_lease(q, args, 0)\n",
        "",
    ),
)
mutant(
    "an_idle_lease_is_as_short_as_any",
    "an_idle_client_stays_alive_until_its_next_poll",
    (
        "q.now + math.max(poll_in, args.waits_ms) + args.lease_ms",
        "q.now + args.lease_ms",
    ),
)
mutant(
    "a_waiter_of_a_paused_queue_gets_no_idle_lease",
    "an_idle_client_stays_alive_until_its_next_poll",
    ("  if waits then\n    lease_count", "  if waits and not q.paused then\n    lease_count"),
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
    ("  if is_for_one_lease(client) then\n    return 0\n", "  if false then\n    return 0\n"),
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
    ("local POLL_TOLERANCE_MS = 1\n", "local POLL_TOLERANCE_MS = 0\n"),
)
mutant(
    "an_idle_lease_lasts_for_two_polls",
    "an_idle_client_stays_alive_until_its_next_poll",
    (
        "q.now + math.max(poll_in, args.waits_ms) + args.lease_ms",
        "q.now + math.max(poll_in, args.waits_ms) + args.waits_ms + args.lease_ms",
    ),
)
mutant(
    "sleeping_clients_poll_for_each_other",
    "a_sleeping_client_does_not_poll_because_another_sleeps",
    ("  if not any_leases(q) then\n    return nil\n  end\n", ""),
    ("    if held ~= 0 or i ==", "    if true or i =="),
)
mutant(
    "the_death_of_an_idle_client_needs_a_poll",
    "the_death_of_a_client_that_holds_nothing_needs_no_poll",
    ("    if held ~= 0 or i ==", "    if true or i =="),
)
mutant(
    "a_call_looks_for_a_lease_among_all_clients",
    "the_death_of_a_client_that_holds_nothing_needs_no_poll",
    ("local EXPIRIES = 10\n", "local EXPIRIES = 1000\n"),
)
mutant(
    "a_client_without_room_gets_no_next_poll",
    "a_client_without_room_learns_that_a_job_is_due",
    ("  local wants_next = limit == 0 or ", "  local wants_next = "),
)
mutant(
    "a_client_without_room_waits_although_a_job_is_due",
    "a_client_without_room_learns_that_a_job_is_due",
    ("  return args.limit > 0 or not is_due(q, args.beside)", "  return true"),
)
mutant(
    "the_wake_up_of_an_evicted_client_is_not_forwarded",
    "a_wake_up_of_a_client_that_died_is_forwarded",
    ("  forward_wake_up(q) -- the client may have been", "  -- the client may have been"),
)
