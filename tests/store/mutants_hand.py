"""Seeded mistakes in handing jobs out."""

from tests.store.mutants import mutant

mutant(
    "a_job_nobody_heard_of_stays_with_the_waiter",
    "a_job_that_nobody_hears_of_waits",
    (" or not is_subscribed(q, client) then", " then"),
    ("  if not notify(q, client, message) then\n", "  if notify(q, client, message) == nil then\n"),
)
mutant(
    "taken_back_although_it_was_heard",
    "a_job_that_two_lines_heard_of_is_taken",
    ("return received > 0", "return received == 1"),
)
mutant(
    "handed_out_of_a_paused_queue",
    "nothing_is_handed_out_of_a_queue_that_is_paused",
    ("q.leases and not q.paused then", "q.leases then"),
)
mutant(
    "handed_to_the_dead",
    "the_dead_are_handed_nothing",
    ("if not left or left <= 0 or", "if not left or"),
)
mutant(
    "handed_to_one_that_is_alive_for_long",
    "one_whose_death_would_be_noticed_late_is_woken",
    ("left <= 0 or left > MAX_LEASE_LEFT_MS", "left <= 0"),
)
mutant(
    "handed_to_whoever_waits",
    "those_who_do_not_take_by_hand_are_woken",
    ("% 0.5 == 0.25", "% 0.5 >= 0"),
)
mutant(
    "a_handed_lease_is_as_short_as_any",
    "its_lease_is_no_shorter_than_it_was",
    ("request = '' }, expiry, 1, true)", "request = '' }, q.now + 1000, 1, true)"),
)
mutant(
    "who_was_handed_a_job_keeps_the_time",
    "another_keeps_the_time_when_who_kept_it_was_handed_a_job",
    ("      return ensure_timely_poll(q)\n", "      return\n"),
)
mutant(
    "suspects_are_handed_out",
    "a_suspect_is_handed_to_nobody",
    ("request = '' }, expiry, 1, true)", "request = '' }, expiry, 1)"),
)
mutant(
    "large_jobs_are_handed_out",
    "what_is_large_or_many_is_asked_for",
    ("if #data > MAX_HANDOFF_BYTES then", "if false then"),
)
mutant(
    "who_takes_by_hand_is_woken_for_what_it_wakes_for",
    "who_sleeps_until_a_lease_runs_out_is_not_woken_although_it_takes_by_hand",
    ("at < tonumber(first[2]) - 1.25 then", "at < tonumber(first[2]) - 1 then"),
)
