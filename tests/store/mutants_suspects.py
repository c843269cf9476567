"""Mistakes about suspects."""

from tests.store.mutant import mutant

mutant(
    "a_death_makes_no_suspect",
    "a_job_of_a_client_that_died_is_a_suspect",
    ("  run.info.suspect = true\n", ""),
)
mutant(
    "a_suspect_joins_a_batch",
    "a_suspect_is_leased_alone",
    ("    if suspect and n > 0 then\n", "    if false then\n"),
)
mutant(
    "a_suspect_leads_a_batch",
    "a_suspect_is_leased_alone",
    ("    if suspect then\n", "    if false then\n"),
)
mutant(
    "a_suspect_is_never_leased",
    "a_suspect_is_leased_whatever_the_limit",
    ("    if suspect and n > 0 then\n", "    if suspect then\n"),
)
mutant(
    "a_job_is_not_due_when_the_clock_was_set_back",
    "after_a_suspect_more_is_due_when_the_clock_was_set_back",
    ("    at = math.min(at, q.now)", "    at = at"),
)
mutant(
    "no_client_is_woken_after_a_suspect",
    "after_a_suspect_another_client_is_woken_for_the_rest",
    ("local leaves_due_jobs = #jobs > 0 and", "local leaves_due_jobs = false and"),
)
mutant(
    "one_stall_makes_a_suspect",
    "a_job_is_a_suspect_after_two_expired_leases",
    (
        "info.suspect or info.stall_count >= 2 or nil",
        "info.suspect or info.stall_count >= 1 or nil",
    ),
)
mutant(
    "stalls_make_no_suspect",
    "a_job_is_a_suspect_after_two_expired_leases",
    ("info.suspect or info.stall_count >= 2 or nil", "info.suspect"),
)
mutant(
    "a_retry_does_not_clear_a_suspect",
    "a_run_that_ends_by_itself_clears_a_suspect",
    ("  run.info.error, run.info.suspect = problem, nil\n", "  run.info.error = problem\n"),
)
mutant(
    "a_release_clears_a_suspect",
    "a_released_suspect_is_still_a_suspect",
    (
        "  put_back(q, batch, run, run.score)\n  return 'released'",
        "  run.info.suspect = nil\n  put_back(q, batch, run, run.score)\n  return 'released'",
    ),
)
mutant(
    "resetting_counts_does_not_clear_a_suspect",
    "a_job_with_reset_counts_is_not_a_suspect",
    ("    info.error, info.suspect = nil, nil\n", "    info.error = nil\n"),
)

# Clients that skip suspects

mutant(
    "suspects_are_not_skipped",
    "a_client_that_skips_suspects_takes_the_jobs_after_them",
    ("      if is_suspect(found_infos[i]) then", "      if false then"),
)
mutant(
    "only_the_first_page_of_suspects_is_scanned",
    "a_client_that_skips_suspects_takes_the_jobs_after_them",
    ("  until #ids == limit or none_left or seen >= SUSPECT_SCAN", "  until true"),
)
mutant(
    "skipping_suspects_exceeds_the_limit",
    "a_client_that_skips_suspects_stays_within_its_limit",
    ("      elseif #ids < limit then", "      else"),
)
mutant(
    "a_word_in_the_record_makes_a_suspect",
    "a_suspect_is_recognised_by_its_record_not_by_a_word_in_it",
    ("  return record and record.suspect == true\n", "  return record\n"),
)
mutant(
    "suspects_are_skipped_without_end",
    "a_client_that_skips_suspects_takes_them_when_there_is_nothing_else",
    ("  if #ids == 0 and seen >= SUSPECT_SCAN then", "  if false then"),
)
mutant(
    "a_client_that_skips_suspects_polls_at_once_again",
    "a_client_that_skips_suspects_sleeps_while_suspects_are_due",
    (
        "  if not skips_suspects or not at or at > q.now or #find_due",
        "  if true or #find_due",
    ),
)
mutant(
    "a_client_that_skips_suspects_misses_the_next_job",
    "a_client_that_skips_suspects_sleeps_until_the_next_job_is_due",
    ("  return next_scheduled_at(q)\n", "  return nil\n"),
)
mutant(
    "suspects_wake_waiters_that_skip_them",
    "suspects_wake_only_waiters_that_accept_them",
    ("tonumber(waiters[i + 1]) % 1 < 0.5 and notify", "notify"),
)
mutant(
    "suspects_wake_any_waiter",
    "suspects_wake_only_waiters_that_accept_them",
    ("  count_due(q, score, info.suspect)\n", "  count_due(q, score)\n"),
)
mutant(
    "a_client_that_skips_suspects_forwards_no_wake_up",
    "a_client_that_skips_suspects_wakes_one_that_accepts_them",
    ("  if q.skipped_suspects then", "  if false then"),
)
mutant(
    "the_next_job_is_not_considered_while_a_suspect_is_due",
    "a_client_that_skips_suspects_is_woken_in_time_for_the_next_job",
    ("at <= q.time and head_is_suspect(q)", "false"),
)
mutant(
    "a_due_job_wakes_a_second_waiter",
    "a_client_woken_for_a_due_job_polls_in_time_itself",
    ("at <= q.time and head_is_suspect(q)", "at <= q.time"),
)
mutant(
    "suspects_are_scanned_twice",
    "a_client_that_skips_suspects_scans_them_once",
    ("  q.none_due_left = none_left and #ids == 0\n", ""),
)
mutant(
    "a_job_that_was_too_large_is_forgotten",
    "a_client_that_skips_suspects_polls_again_for_a_job_that_was_too_large",
    ("  q.none_due_left = none_left and done == #ids\n", "  q.none_due_left = none_left\n"),
)
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
