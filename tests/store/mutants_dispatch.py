"""Mistakes in dispatch: upsert, singleton ids, held dispatches, cancel."""

# ruff: noqa: E501 - the patches are lines of Lua

from tests.store.mutant import mutant

mutant(
    "a_due_job_loses_its_place",
    "a_due_job_keeps_its_place_when_it_is_dispatched_again",
    ("if moved ~= score and moved <= q.time and score <= q.time then", "if false then"),
)
mutant(
    "if_later_is_always",
    "run_at_is_updated_always_never_if_later_or_if_earlier",
    ("    return d.run_at, nil\n", "    return d.run_at, d.run_at\n"),
)
mutant(
    "options_are_replaced_as_a_whole",
    "each_option_is_updated_on_its_own",
    (
        "    if update_options(info.options, d.set, d.update) then",
        "    info.options = d.set\n    if true then",
    ),
)
mutant(
    "counts_are_always_reset",
    "counts_are_reset_only_on_request",
    ("if d.reset and reset_counts(info) then", "if reset_counts(info) then"),
)
mutant(
    "unblock_forgets_info",
    "a_held_dispatch_becomes_a_new_job_when_the_run_finishes",
    ("run.id, { dispatched_at = held.accepted, options = held.options },", "run.id, {},"),
)
mutant(
    "held_flags_are_forgotten",
    "a_held_dispatch_is_applied_to_a_retried_job_by_its_flags",
    ("    if held.update_data then\n", "    if true then\n"),
)
mutant(
    "a_release_drops_the_held_dispatch",
    "a_held_dispatch_is_applied_to_a_released_or_stalled_job",
    ("  if held then\n    score = move", "  if false then\n    score = move"),
)
mutant(
    "merging_replaces",
    "further_dispatches_merge_into_the_held_one",
    (
        "    job.held_data = merge_held(q, job.held, job.held_data, d)",
        "    job.held, job.held_data = held_record(d), d.data",
    ),
)
mutant(
    "merged_clamps_do_not_compose",
    "merged_flags_compose_when_the_run_is_retried",
    ("    held.low = clamp(held.low, low, high)", "    held.low = held.low"),
)
mutant(
    "merged_clamps_do_not_compose_above",
    "merged_flags_compose_when_the_run_is_retried",
    ("    held.high = clamp(held.high, low, high)", "    held.high = held.high"),
)
mutant(
    "only_if_absent_is_ignored",
    "only_if_absent_leaves_an_existing_job_unchanged",
    ("(job.active or job.score) and 'exists' or nil", "job.active and 'exists' or nil"),
)
mutant(
    "only_if_absent_changes_what_is_held",
    "only_if_absent_leaves_a_held_dispatch_unchanged",
    ("(job.active or job.score) and 'exists' or nil", "job.score and 'exists' or nil"),
)
mutant(
    "only_if_waiting_is_only_if_absent",
    "only_if_waiting_makes_a_scheduled_job_due_and_keeps_the_rest",
    ("only_if_absent = only == '1',", "only_if_absent = only ~= '0',"),
)
mutant(
    "only_if_waiting_creates_and_holds",
    "only_if_waiting_neither_creates_nor_holds",
    ("elseif d.only_if_waiting and (job.active or not job.score) then", "elseif false then"),
)
mutant(
    "an_empty_error_is_stored",
    "an_empty_error_counts_as_none",
    ("if problem and next(problem) == nil then", "if false then"),
)
mutant(
    "cancel_forgets_info",
    "cancel_removes_a_waiting_job_completely",
    (
        "        batch:del(q.info, id, infos[i])\n      end\n      batch:del_unread(q.data, id)\n      count(q, 'cancelled')",
        "      end\n      batch:del_unread(q.data, id)\n      count(q, 'cancelled')",
    ),
)
mutant(
    "a_cancel_request_is_forgotten",
    "a_run_with_a_requested_cancel_never_returns_to_the_queue",
    ("if run.cancelled and RETURNS_JOB[verb] then", "if false then"),
)
