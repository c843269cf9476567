"""Mistakes in waking clients."""

from tests.store.mutant import mutant

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
    "one_waiter_keeps_the_time",
    "waiters_of_two_hosts_keep_the_time",
    ("local satisfied = polls == nil or polls and keeper", "local satisfied = polls ~= false"),
)
mutant(
    "two_waiters_of_one_host_keep_the_time",
    "waiters_of_two_hosts_keep_the_time",
    ("    if host == keeper then\n", "    if false then\n"),
)
mutant(
    "one_waiter_watches_a_lease",
    "a_lease_is_watched_by_waiters_of_two_hosts",
    ("local satisfied = polls == nil or polls and keeper", "local satisfied = polls ~= false"),
)
mutant(
    "a_wake_up_is_not_checked",
    "a_wake_up_is_checked_by_a_waiter_of_another_host",
    (
        "  if woken_host then\n    check_soon(q, woken_host)\n  end\n  return false",
        "  return false",
    ),
)
mutant(
    "a_wake_up_is_checked_by_the_same_host",
    "a_wake_up_is_checked_by_a_waiter_of_another_host",
    ("  return client:match('^h%x%x%x%x%x%x%x%x%-') or client", "  return client"),
)
mutant(
    "each_wake_up_has_a_check_of_its_own",
    "one_check_serves_several_wake_ups",
    ("    redis.pcall('ZADD', q.waiters, 'XX', at + poll_at % 1, client)\n", ""),
)
