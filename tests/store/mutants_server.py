"""Mistakes about the server: full memory, reading, waking, unusual ids, bad records."""

from tests.store.mutant import mutant

mutant(
    "dispatch_in_full_memory",
    "a_full_server_refuses_dispatch_and_drains",
    (
        "register('put', PRODUCER_KEYS, API.put)",
        "register('put', PRODUCER_KEYS, API.put, 'allow-oom')",
    ),
)
mutant(
    "scheduled_dispatch_in_full_memory",
    "a_full_server_refuses_dispatch_and_drains",
    (
        "register('dispatch', PRODUCER_KEYS, API.dispatch)",
        "register('dispatch', PRODUCER_KEYS, API.dispatch, 'allow-oom')",
    ),
)
mutant(
    "a_dispatch_wakes_all_waiters",
    "a_dispatch_wakes_one_waiter_that_is_subscribed",
    ("n, gone = n - (received and 1 or 0),", "n, gone = n,"),
)
mutant(
    "a_client_that_waits_again_counts_as_gone",
    "a_client_that_waits_again_after_a_long_time_is_still_woken",
    ("    if gone[i] ~= waiter then\n", "      if true then\n"),
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
    "a_stored_clock_is_not_checked",
    "unreadable_settings_and_clocks_count_as_not_set",
    (
        "  local stored_time = stored_number(clock[1], MAX_TIME)",
        "  local stored_time = clock[1] and tonumber(clock[1])",
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
