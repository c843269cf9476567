"""Mistakes in hand-offs."""

from tests.store.mutant import mutant

mutant(
    "an_unreceived_hand_off_stays_leased",
    "a_hand_off_that_no_client_receives_leaves_the_job_waiting",
    (" or not is_subscribed(q, client) then", " then"),
    ("  if not notify(q, client, message) then\n", "  if notify(q, client, message) == nil then\n"),
)
mutant(
    "a_hand_off_received_twice_is_undone",
    "a_hand_off_that_two_connections_receive_stays_leased",
    ("return received > 0", "return received == 1"),
)
mutant(
    "a_paused_queue_hands_off",
    "a_paused_queue_makes_no_hand_offs",
    ("q.broken_at and not q.paused then", "q.broken_at then"),
)
mutant(
    "a_dead_client_gets_a_hand_off",
    "a_dead_client_gets_no_hand_off",
    ("if not left or left <= 0 or", "if not left or"),
)
mutant(
    "a_client_with_a_long_lease_gets_a_hand_off",
    "a_client_with_a_long_lease_is_woken_instead",
    ("left <= 0 or left > MAX_LEASE_LEFT_MS", "left <= 0"),
)
mutant(
    "a_hand_off_is_leased_for_half_a_minute",
    "a_client_with_a_long_lease_is_woken_instead",
    ("local MAX_LEASE_LEFT_MS = 22000", "local MAX_LEASE_LEFT_MS = 30000"),
)
mutant(
    "every_waiter_gets_hand_offs",
    "a_waiter_that_does_not_take_hand_offs_is_woken",
    ("  return record and record.hand\n", "  return true\n"),
)
mutant(
    "a_hand_off_shortens_the_lease",
    "a_hand_off_does_not_shorten_the_lease_of_the_client",
    ("request = '' }, expiry, 1, math", "request = '' }, q.now + 1000, 1, math"),
)
mutant(
    "no_other_waiter_polls_after_a_hand_off",
    "another_waiter_polls_in_time_after_a_hand_off",
    ("      return ensure_timely_poll(q)\n", "      return\n"),
)
mutant(
    "suspects_are_handed_off",
    "a_suspect_is_never_handed_off",
    ("request = '' }, expiry, 1, math.huge)", "request = '' }, expiry, 1, 0)"),
)
mutant(
    "large_jobs_are_handed_off",
    "large_jobs_and_several_jobs_are_not_handed_off",
    ("if #data > MAX_HANDOFF_BYTES then", "if false then"),
)
mutant(
    "a_hand_off_waiter_is_woken_early",
    "a_hand_off_waiter_that_sleeps_until_a_lease_expires_is_not_woken_early",
    ("local POLL_TOLERANCE_MS = 1\n", "local POLL_TOLERANCE_MS = 0\n"),
)
