"""Mistakes about suspects to seed into the library."""

from tests.store.mutants import mutant

mutant(
    "a_death_makes_no_suspect",
    "who_was_in_a_client_that_was_seen_to_die_is_a_suspect",
    ("  run.info.suspect = true\n", ""),
)
mutant(
    "a_suspect_joins_a_batch",
    "a_suspect_is_handed_out_alone",
    ("    if suspect and n > 0 then\n", "    if false then\n"),
)
mutant(
    "a_suspect_leads_a_batch",
    "a_suspect_is_handed_out_alone",
    ("    if suspect then\n", "    if false then\n"),
)
mutant(
    "nobody_takes_a_suspect",
    "a_suspect_alone_is_a_batch_of_any_size",
    ("    if suspect and n > 0 then\n", "    if suspect then\n"),
)
mutant(
    "what_is_due_in_a_clock_set_back_can_wait",
    "what_a_suspect_left_behind_is_due_when_the_clock_was_set_back",
    ("    at = math.min(at, q.now)", "    at = at"),
)
mutant(
    "a_suspect_holds_up_the_queue",
    "somebody_is_woken_for_what_a_suspect_left_behind",
    ("local was_cut_short = #jobs > 0 and next_poll_in == 0", "local was_cut_short = false"),
)
mutant(
    "one_stall_makes_a_suspect",
    "one_lease_that_ran_out_makes_no_suspect_but_two_do",
    (
        "info.suspect or info.stall_count >= 2 or nil",
        "info.suspect or info.stall_count >= 1 or nil",
    ),
)
mutant(
    "stalls_make_no_suspect",
    "one_lease_that_ran_out_makes_no_suspect_but_two_do",
    ("info.suspect or info.stall_count >= 2 or nil", "info.suspect"),
)
mutant(
    "once_a_suspect_always_a_suspect",
    "a_run_that_ended_by_itself_clears_a_suspect",
    ("  run.info.error, run.info.suspect = problem, nil\n", "  run.info.error = problem\n"),
)
mutant(
    "a_release_clears_a_suspect",
    "a_suspect_that_is_released_is_still_one",
    (
        "  put_back(q, batch, run, run.score)\n  return 'released'",
        "  run.info.suspect = nil\n  put_back(q, batch, run, run.score)\n  return 'released'",
    ),
)
mutant(
    "a_suspect_is_one_although_it_begins_anew",
    "a_job_that_begins_anew_is_no_suspect",
    ("    info.error, info.suspect = nil, nil\n", "    info.error = nil\n"),
)

# Those who pass over them

mutant(
    "nobody_passes_over_a_suspect",
    "who_passes_takes_what_is_behind_suspects",
    ("      if is_suspect(found_infos[i]) then", "      if false then"),
)
mutant(
    "who_passes_sees_the_first_page_only",
    "who_passes_takes_what_is_behind_suspects",
    ("  until #ids == limit or all or seen >= SUSPECT_SCAN", "  until true"),
)
mutant(
    "who_passes_takes_too_many",
    "who_passes_takes_no_more_than_it_asked_for",
    ("      elseif #ids < limit then", "      else"),
)
mutant(
    "the_word_is_enough",
    "who_passes_goes_by_the_record_and_not_by_its_words",
    ("  return record and record.suspect == true\n", "  return record\n"),
)
mutant(
    "who_passes_never_helps",
    "where_only_suspects_are_in_sight_everybody_takes_them",
    ("  if #ids == 0 and seen >= SUSPECT_SCAN then", "  if false then"),
)
mutant(
    "who_passes_looks_at_once_again",
    "who_passes_sleeps_although_suspects_are_due",
    (
        "  if not skips_suspects or not at or at > q.now or #find_due(q, 1, skips_suspects) > 0 then",
        "  if true then",
    ),
)
mutant(
    "who_passes_sleeps_through_what_comes",
    "who_passes_sleeps_until_the_next_job_comes_due",
    ("  return next_scheduled_at(q)\n", "  return nil\n"),
)
mutant(
    "suspects_wake_those_who_pass",
    "suspects_wake_only_those_who_take_them",
    ("tonumber(waiters[i + 1]) % 1 < 0.5 and notify", "notify"),
)
mutant(
    "suspects_wake_anybody",
    "suspects_wake_only_those_who_take_them",
    ("  count_due(q, score, info.suspect)\n", "  count_due(q, score)\n"),
)
mutant(
    "who_was_woken_in_their_place_keeps_it",
    "who_passes_wakes_one_who_takes_them",
    ("  if q.skipped_suspects then", "  if false then"),
)
mutant(
    "who_sleeps_beside_suspects_is_forgotten",
    "who_passes_is_woken_in_time_for_what_comes",
    ("at <= q.time and head_is_suspect(q)", "false"),
)
mutant(
    "what_is_due_wakes_another_to_keep_the_time",
    "who_is_woken_for_what_is_due_keeps_the_time_himself",
    ("at <= q.time and head_is_suspect(q)", "at <= q.time"),
)
mutant(
    "who_passes_looks_twice",
    "who_passes_looks_through_suspects_once",
    ("  q.none_due_left = all and #ids == 0\n", ""),
)
mutant(
    "who_passes_forgets_what_was_too_large",
    "who_passes_looks_again_for_what_was_too_large",
    ("  q.none_due_left = all and done == #ids\n", "  q.none_due_left = all\n"),
)
