"""Mistakes about suspects."""

from tests.store.mutant import mutant

mutant(
    "a_death_makes_no_suspect",
    "after_a_death_each_job_may_have_half_as_many_companions",
    ("  info.companions = math.min(info.companions or companions, companions)\n", ""),
)
mutant(
    "a_death_leaves_one_companion_too_many",
    "after_a_death_each_job_may_have_half_as_many_companions",
    ("math.floor((n - 1) / 2)", "math.floor(n / 2)"),
)
mutant(
    "a_death_isolates_too_fast",
    "a_job_that_dies_in_company_is_alone_after_log_n_deaths",
    ("math.floor((n - 1) / 2)", "math.max(0, math.floor(n / 2) - 1)"),
)
mutant(
    "a_death_raises_the_limit_of_companions",
    "a_death_does_not_raise_the_limit_of_companions",
    ("math.min(info.companions or companions, companions)", "companions"),
)
mutant(
    "every_death_counts_as_a_stall",
    "only_a_death_alone_counts_as_a_stall",
    ("  if n == 1 then", "  if true then"),
)
mutant(
    "no_death_counts_as_a_stall",
    "only_a_death_alone_counts_as_a_stall",
    ("  if n == 1 then", "  if false then"),
)
mutant(
    "a_death_is_not_explained",
    "a_death_says_why_the_job_waits_again",
    ("string.format(DIED, n - 1)", "string.format(DIED, n)"),
)
mutant(
    "a_cancelled_run_survives_a_death",
    "a_cancelled_run_does_not_wait_again_after_a_death",
    ("stall = true, death = true, expiry", "stall = true, expiry"),
)
mutant(
    "a_group_grows_without_limit",
    "a_group_is_as_small_as_any_of_its_jobs_demands",
    ("    if n == limit or beside + n > found.most then", "    if n == limit then"),
)
mutant(
    "a_group_is_one_too_small",
    "suspects_are_leased_in_groups_that_they_allow",
    ("beside + n > found.most then", "beside + n >= found.most then"),
)
mutant(
    "only_the_first_job_limits_a_group",
    "a_group_is_as_small_as_any_of_its_jobs_demands",
    (
        "found.most = math.min(found.most, companions or math.huge)",
        "found.most = n == 0 and companions or found.most",
    ),
)
mutant(
    "suspects_run_in_the_order_of_their_dispatch",
    "larger_groups_of_suspects_run_first",
    ("    return a[1] > b[1] or a[1] == b[1] and a[2] < b[2]", "    return a[2] < b[2]"),
)
mutant(
    "suspects_of_a_group_lose_their_order",
    "larger_groups_of_suspects_run_first",
    ("a[1] == b[1] and a[2] < b[2]", "a[1] == b[1] and a[2] > b[2]"),
)
mutant(
    "a_dequeue_sees_only_as_many_suspects_as_it_requests",
    "a_larger_group_runs_first_if_it_follows_more_suspects_than_are_requested",
    ("    if seen == 0 and size < PAGE then", "    if false then"),
)
mutant(
    "suspects_wait_until_other_jobs_have_run",
    "other_jobs_keep_their_places_among_suspects",
    (
        "    local companions = infos[i] and companions_of(infos[i])\n    if companions then\n",
        "    local companions = infos[i] and companions_of(infos[i]) or math.huge\n"
        "    if companions then\n",
    ),
)
mutant(
    "the_jobs_beside_a_suspect_do_not_count",
    "a_suspect_counts_the_jobs_that_run_beside_it",
    (
        "    if companions and companions < beside + n then",
        "    if companions and companions < n then",
    ),
)
mutant(
    "a_suspect_that_does_not_fit_ends_the_batch",
    "other_jobs_do_not_wait_for_a_suspect_that_does_not_fit",
    (
        "      q.skipped = math.max(q.skipped or 0, companions)\n",
        "      q.skipped = companions\n      return true\n",
    ),
)
mutant(
    "the_reply_names_the_fewest_companions",
    "a_reply_says_which_suspects_were_skipped",
    ("math.max(q.skipped or 0, companions)", "math.min(q.skipped or companions, companions)"),
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
    ("  if info.stall_count >= 2 then", "  if info.stall_count >= 1 then"),
)
mutant(
    "stalls_make_no_suspect",
    "a_job_is_a_suspect_after_two_expired_leases",
    ("  if info.stall_count >= 2 then", "  if false then"),
)
mutant(
    "a_retry_does_not_clear_a_suspect",
    "a_run_that_ends_by_itself_clears_a_suspect",
    ("  run.info.error, run.info.companions = problem, nil\n", "  run.info.error = problem\n"),
)
mutant(
    "a_release_clears_a_suspect",
    "a_released_suspect_is_still_a_suspect",
    (
        "  put_back(q, batch, run, run.score)\n  return 'released'",
        "  run.info.companions = nil\n  put_back(q, batch, run, run.score)\n  return 'released'",
    ),
)
mutant(
    "resetting_counts_does_not_clear_a_suspect",
    "a_job_with_reset_counts_is_not_a_suspect",
    ("    info.error, info.companions = nil, nil\n", "    info.error = nil\n"),
)

# Suspects that are skipped

mutant(
    "suspects_are_not_skipped",
    "a_busy_client_takes_the_jobs_after_suspects",
    ("    if companions and companions < beside + n then", "    if false then"),
)
mutant(
    "only_the_first_page_of_suspects_is_scanned",
    "a_busy_client_takes_the_jobs_after_suspects",
    ("  until full or none_left or seen >= SUSPECT_SCAN", "  until seen > 0"),
)
mutant(
    "skipping_suspects_exceeds_the_limit",
    "a_busy_client_stays_within_its_limit",
    ("    if n == limit or beside + n > found.most then", "    if beside + n > found.most then"),
)
mutant(
    "a_word_in_the_record_makes_a_suspect",
    "a_suspect_is_recognised_by_its_record_not_by_a_word_in_it",
    ("  return is_amount(companions) and companions or nil\n", "  return info and 0 or nil\n"),
)
mutant(
    "suspects_are_skipped_without_end",
    "a_scan_past_suspects_is_bounded",
    ("  until full or none_left or seen >= SUSPECT_SCAN", "  until full or none_left"),
)
mutant(
    "a_busy_client_polls_at_once_again",
    "a_busy_client_sleeps_while_suspects_are_due",
    ("  if beside == 0 or not at or at > q.now or #find_due", "  if true or #find_due"),
)
mutant(
    "a_busy_client_misses_the_next_job",
    "a_busy_client_sleeps_until_the_next_job_is_due",
    ("  return next_scheduled_at(q)\n", "  return nil\n"),
)
mutant(
    "suspects_wake_waiters_that_are_busy",
    "a_suspect_that_must_run_alone_wakes_only_an_idle_waiter",
    ("n > 0 and not busy[i] and notify", "n > 0 and notify"),
)
mutant(
    "suspects_wake_any_waiter",
    "a_suspect_that_must_run_alone_wakes_only_an_idle_waiter",
    ("  count_due(q, score, info.companions)\n", "  count_due(q, score)\n"),
)
mutant(
    "every_suspect_wakes_only_idle_waiters",
    "a_suspect_that_may_have_companions_wakes_any_waiter",
    ("companions == 0 and 'due_suspects'", "companions and 'due_suspects'"),
)
mutant(
    "a_busy_client_forwards_no_wake_up",
    "a_busy_client_wakes_an_idle_one_for_a_suspect",
    ("  if q.skipped then", "  if false then"),
)
mutant(
    "the_next_job_is_not_considered_while_a_suspect_is_due",
    "a_busy_client_is_woken_in_time_for_the_next_job",
    ("at <= q.time and head_is_suspect(q)", "false"),
)
mutant(
    "a_due_job_wakes_a_second_waiter",
    "a_client_woken_for_a_due_job_polls_in_time_itself",
    ("at <= q.time and head_is_suspect(q)", "at <= q.time"),
)
mutant(
    "suspects_are_scanned_twice",
    "a_busy_client_scans_suspects_once",
    ("  q.none_due_left = none_left and #found.ids == 0\n", ""),
)
mutant(
    "a_job_that_was_too_large_is_forgotten",
    "a_busy_client_polls_again_for_a_job_that_was_too_large",
    ("  q.none_due_left = none_left and done == #ids\n", "  q.none_due_left = none_left\n"),
)
mutant(
    "jobs_that_had_not_started_stall",
    "jobs_of_a_dead_client_that_had_not_started_are_released",
    ("client, new_budget(), 'release')", "client, new_budget(), 'stall')"),
)
