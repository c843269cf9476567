"""Mistakes in waking clients."""

from tests.store.mutant import mutant

mutant(
    "a_message_counts_from_the_start_of_its_call",
    "waiters_poll_early_if_the_call_that_asks_them_dispatches_many_jobs",
    ("  q.dispatched = #replies\n", ""),
)
mutant(
    "a_full_batch_wakes_no_client",
    "a_client_that_takes_a_full_batch_wakes_the_next",
    ("and not q.no_waiters and is_due(", "and #jobs < 5 * args.limit and is_due("),
)
mutant(
    "a_batch_wakes_a_client_for_nothing",
    "a_client_that_takes_the_last_due_job_wakes_no_other",
    (
        "  if is_due(q, 0) then\n    wake_waiters(q, 1)\n",
        "  if true then\n    wake_waiters(q, 1)\n",
    ),
    ("and not q.no_waiters and is_due(q, args.beside)", ""),
)
mutant(
    "a_call_looks_at_the_first_waiters_only",
    "a_lone_waiter_keeps_the_time_beside_a_crowd_of_another_host",
    ("  if found.err or #found < 2 * LOOK_AT then\n", "  if true then\n"),
)
mutant(
    "one_host_keeps_the_time",
    "waiters_of_two_hosts_keep_the_time",
    ("    appoint_beside(q, first, polling, at, 0)\n", ""),
)
mutant(
    "two_waiters_of_one_host_keep_the_time",
    "waiters_of_two_hosts_keep_the_time",
    ("  for wanted = 2, math.max(least,", "  for wanted = 1, math.max(least,"),
)
mutant(
    "each_call_appoints_waiters_again",
    "waiters_of_two_hosts_keep_the_time",
    ("  redis.pcall('ZADD', q.waiters, 'XX', math.floor(at), client)\n", ""),
)
mutant(
    "one_waiter_of_one_host_keeps_the_time",
    "two_waiters_of_one_group_keep_the_time_if_there_is_no_other",
    ("appoint_beside(q, first, polling, at, 0)", "appoint_beside(q, first, polling, at, 1)"),
)
mutant(
    "a_waiter_that_is_gone_keeps_the_time",
    "a_waiter_that_is_gone_does_not_keep_the_time",
    ("    remove_waiter(q, client)\n    return false\n", "    return true\n"),
)
mutant(
    "a_waiter_that_missed_its_poll_keeps_the_time",
    "a_waiter_that_missed_its_poll_does_not_keep_the_time",
    ("polling_between(q, q.now - OVERDUE_MS,", "polling_between(q, 0,"),
)
mutant(
    "every_client_keeps_the_time",
    "a_client_that_need_not_keep_the_time_rests",
    ("      if n >= 2 and most >= apart(first, client) then\n", "      if false then\n"),
)
mutant(
    "one_other_waiter_lets_a_client_rest",
    "a_client_that_need_not_keep_the_time_rests",
    ("      if n >= 2 and most >= apart(first, client) then\n", "      if true then\n"),
)
mutant(
    "a_client_counts_itself",
    "a_client_that_need_not_keep_the_time_rests",
    (
        "    if other ~= client and is_subscribed(q, other) then\n",
        "    if is_subscribed(q, other) then\n",
    ),
)
mutant(
    "a_crowd_polls_as_often_as_one_client",
    "a_client_that_need_not_keep_the_time_rests",
    ("waits_ms * redis.call('ZCARD', q.waiters) / FREQUENT_WAITERS", "waits_ms"),
)
mutant(
    "a_client_rests_without_a_limit",
    "a_client_rests_for_ten_minutes_at_most",
    ("math.max(waits_ms, math.min(rest, MAX_REST_MS))", "math.max(waits_ms, rest)"),
)
mutant(
    "two_waiters_of_one_host_spare_all_others",
    "a_client_of_another_host_keeps_the_time",
    ("n >= 2 and most >= apart(first, client)", "n >= 2"),
)
mutant(
    "waiters_without_a_subscription_spare_others",
    "waiters_without_a_subscription_spare_no_other",
    ("    if other ~= client and is_subscribed(q, other) then\n", "    if other ~= client then\n"),
)
mutant(
    "a_client_that_rests_is_swept",
    "a_client_that_rests_stays_alive_until_after_its_next_poll",
    ("  extend_idle_lease(q, args, rest)\n", ""),
)
mutant(
    "a_pull_client_rests",
    "a_pull_client_never_rests_longer_than_it_asks",
    ("  elseif is_for_one_lease(args.client) then\n    return args.waits_ms\n", ""),
)
mutant(
    "one_host_watches_a_lease",
    "a_lease_is_watched_by_waiters_of_two_hosts",
    ("    appoint_beside(q, first, polling, at, 0)\n", ""),
)
mutant(
    "one_group_watches_a_lease",
    "a_lease_is_watched_by_waiters_of_two_groups",
    ("  return group_of(one) ~= group_of(other) and 1 or 0\n", "  return 0\n"),
)
mutant(
    "one_group_keeps_the_time",
    "waiters_of_two_groups_keep_the_time_if_there_is_one_host",
    ("  return group_of(one) ~= group_of(other) and 1 or 0\n", "  return 0\n"),
)
mutant(
    "hosts_do_not_come_before_groups",
    "a_waiter_of_another_host_keeps_the_time_before_one_of_another_group",
    ("  if host_of(one) ~= host_of(other) then\n    return 2\n", "  if false then\n    return 2\n"),
)
mutant(
    "a_call_looks_for_another_host_only",
    "a_lone_waiter_keeps_the_time_beside_a_crowd_of_another_group",
    ("if apart(found[1], more[i]) > most then", "if apart(found[1], more[i]) == 2 then"),
)
mutant(
    "two_waiters_of_one_group_spare_all_others",
    "a_client_of_another_group_keeps_the_time",
    ("n >= 2 and most >= apart(first, client)", "n >= 2"),
)
mutant(
    "a_wake_up_is_checked_by_another_host_only",
    "a_wake_up_is_checked_by_a_waiter_of_another_group",
    ("keepers(q, at), at, 1)\n", "keepers(q, at), at, 2)\n"),
)
mutant(
    "a_wake_up_is_not_checked",
    "a_wake_up_is_checked_by_a_waiter_of_another_host",
    ("  if woken then\n    check_soon(q, woken)\n  end\n  return false", "  return false"),
)
mutant(
    "a_wake_up_is_checked_by_the_same_host",
    "a_wake_up_is_checked_by_a_waiter_of_another_host",
    ("  return client:match('^~*(h%x%x%x%x%x%x%x%x%-)') or client", "  return client"),
)
mutant(
    "each_wake_up_has_a_check_of_its_own",
    "one_check_serves_several_wake_ups",
    ("  redis.pcall('ZADD', q.waiters, 'XX', math.floor(at), client)\n", ""),
)
mutant(
    "a_check_is_left_to_a_waiter_that_missed_its_poll",
    "a_check_is_not_left_to_a_waiter_that_missed_its_poll",
    ("polling_between(q, q.now - OVERDUE_MS,", "polling_between(q, 0,"),
)
mutant(
    "a_paused_queue_wakes_clients",
    "a_dispatch_into_a_paused_queue_wakes_no_client",
    ("  if q.due and not q.paused and", "  if q.due and"),
)
mutant(
    "a_resume_wakes_all_clients",
    "a_resume_wakes_a_client_for_each_due_job",
    (
        "  q.due = math.min(redis.call('ZCOUNT', q.waiting, '-inf', q.time), CHUNK)\n",
        "  q.due = CHUNK\n",
    ),
)
mutant(
    "a_resume_wakes_one_client",
    "a_resume_wakes_a_client_for_each_due_job",
    (
        "  q.due = math.min(redis.call('ZCOUNT', q.waiting, '-inf', q.time), CHUNK)\n",
        "  q.due = 1\n",
    ),
)
mutant(
    "a_resume_leaves_the_time_alone",
    "after_a_resume_two_clients_keep_the_time",
    ("    q.paused = false\n", ""),
)
mutant(
    "a_bump_never_needs_another_call",
    "a_bump_says_when_a_lease_may_expire",
    ("= ms_until(q, next_event_at(q))", "= -1"),
)
mutant(
    "a_bump_does_not_say_that_dead_clients_are_left",
    "a_bump_says_that_dead_clients_are_left",
    ("= ms_until(q, next_event_at(q))", "= math.max(1, ms_until(q, next_event_at(q)))"),
)
