"""Mistakes in outages and the last time heard."""

from tests.store.mutant import mutant

mutant(
    "a_second_outage_cancels_the_grace_of_the_first",
    "a_second_outage_within_the_grace_of_the_first_keeps_the_grace",
    (
        "contact - first_back < (is_outage and FLAPPING_MS",
        "contact - first_back < (is_outage and 0",
    ),
)
mutant(
    "outages_follow_one_another_without_end",
    "calls_once_an_hour_return_the_jobs_of_a_dead_client",
    (
        "contact - first_back < (is_outage and FLAPPING_MS",
        "contact - first_back < (is_outage and 1e15",
    ),
)
mutant(
    "only_outages_are_noted",
    "silences_shorter_than_an_outage_that_follow_one_another_count_as_one",
    ("local SILENCE_MS = 2000", "local SILENCE_MS = 10000"),
)
mutant(
    "a_silence_continues_another_only_in_its_grace",
    "silences_shorter_than_an_outage_that_follow_one_another_count_as_one",
    ("contact < q.grace_until + RECONNECT_MS", "contact < q.grace_until"),
)
mutant(
    "after_a_short_silence_clients_have_no_time_to_call",
    "a_silence_shorter_than_an_outage_does_not_use_up_the_grace_of_an_outage",
    ("math.max(q.grace_until, q.now + RECONNECT_MS)", "q.grace_until"),
)
mutant(
    "silences_follow_one_another_without_end",
    "silences_that_follow_one_another_prolong_no_lease_without_end",
    ("or SHORT_FLAPPING_MS)", "or 1e15)"),
)
mutant(
    "a_silence_counts_although_a_client_waits_for_the_next_lease_to_expire",
    "a_client_that_dies_soon_after_an_outage_is_swept_in_time",
    ("elseif continues and left > SILENCE_MS - POLL_MARGIN_MS then", "elseif false then"),
)
mutant(
    "the_last_poll_before_a_lease_expires_comes_too_late",
    "a_client_that_dies_soon_after_an_outage_is_swept_in_time",
    ("math.min(at, expiry - RECONNECT_MS)", "at"),
)
mutant(
    "the_last_time_heard_is_the_highest_time_seen",
    "an_outage_after_the_clock_was_set_back_is_noticed",
    ("last_contact = heard or stored_time,", "last_contact = stored_time,"),
)
mutant(
    "the_last_time_heard_stays_after_the_catch_up",
    "a_clock_that_caught_up_is_the_last_time_heard",
    ("    batch:del(q.meta, 'heard', old[6])\n", ""),
)
