"""Mistakes in outages and the last time heard."""

from tests.store.mutant import mutant

mutant(
    "a_second_outage_cancels_the_grace_of_the_first",
    "a_second_outage_within_the_grace_of_the_first_keeps_the_grace",
    (" and contact - first_back < FLAPPING_MS then", " and false then"),
)
mutant(
    "outages_follow_one_another_without_end",
    "calls_once_an_hour_return_the_jobs_of_a_dead_client",
    (" and contact - first_back < FLAPPING_MS then", " then"),
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
