"""Mistakes in repeated calls."""

from tests.store.mutant import mutant

mutant(
    "a_repeated_call_is_not_recognised",
    "a_repeated_dispatch_of_a_finished_job_does_not_run_it_again",
    ("if not number or number < call.number then", "if true then"),
)
mutant(
    "a_call_is_not_recorded",
    "a_repeated_dispatch_of_a_finished_job_does_not_run_it_again",
    ("  if not call then\n    return\n", "  if true then\n    return\n"),
)
mutant(
    "the_last_call_counts_as_new",
    "a_repeated_dispatch_gets_the_same_reply_and_changes_nothing",
    ("if not number or number < call.number then", "if not number or number <= call.number then"),
)
mutant(
    "an_older_call_counts_as_new",
    "a_dispatch_older_than_the_last_of_its_caller_is_refused",
    ("if not number or number < call.number then", "if number ~= call.number then"),
)
mutant(
    "every_call_of_a_caller_counts_as_a_repeat",
    "the_next_dispatch_of_a_caller_is_carried_out",
    ("if not number or number < call.number then", "if not number then"),
    ("if number > call.number or #letters ~= jobs then", "if number > call.number then"),
)
mutant(
    "all_callers_share_one_entry",
    "callers_with_the_same_numbers_are_kept_apart",
    ("{ caller = client_arg(argv[1]), number", "{ caller = 'p', number"),
)
mutant(
    "a_cancel_is_not_recorded",
    "a_repeated_cancel_does_not_remove_a_job_dispatched_since",
    ("or cancel(q, ids, running, call)", "or cancel(q, ids, running)"),
)
mutant(
    "a_requeue_is_not_recorded",
    "a_repeated_requeue_does_not_run_a_job_that_failed_since",
    ("or requeue(q, kind, ids, call)", "or requeue(q, kind, ids)"),
)
mutant(
    "another_call_with_the_same_number_is_accepted",
    "a_dispatch_older_than_the_last_of_its_caller_is_refused",
    ("if number > call.number or #letters ~= jobs then", "if number > call.number then"),
)
mutant(
    "a_repeated_call_gets_another_reply",
    "a_repeated_dispatch_gets_the_same_reply_and_changes_nothing",
    ("replies[i] = WORDS[letters:sub(i, i)]", "replies[i] = 'unchanged'"),
)
mutant(
    "callers_are_never_forgotten",
    "callers_that_are_gone_are_forgotten",
    ("CALLER_GONE_MS = 600000", "CALLER_GONE_MS = 6e9"),
)
mutant(
    "callers_are_forgotten_too_soon",
    "a_call_is_remembered_for_nine_minutes",
    ("CALLER_GONE_MS = 600000", "CALLER_GONE_MS = 60000"),
)
mutant(
    "a_caller_is_noted_only_once",
    "a_caller_that_keeps_calling_is_not_forgotten",
    ("if not noted or math.abs(q.now - noted) > NOTE_EVERY_MS then", "if not noted then"),
)
mutant(
    "any_number_of_callers_is_forgotten_at_once",
    "callers_that_are_gone_are_forgotten",
    (
        "q.now - CALLER_GONE_MS, 'BYSCORE',\n    'LIMIT', 0, 100,",
        "q.now - CALLER_GONE_MS, 'BYSCORE',\n    'LIMIT', 0, 1000,",
    ),
)
mutant(
    "a_late_copy_of_a_dequeue_takes_a_job",
    "a_late_copy_of_a_dequeue_takes_no_job",
    ("elseif call and is_late(q, call) then", "elseif false then"),
)
mutant(
    "a_dequeue_that_took_jobs_is_not_recorded",
    "a_late_copy_of_a_dequeue_takes_no_job",
    ("    record_call(q, batch, taker.call, DEQUEUED)\n", ""),
)
mutant(
    "a_dequeue_that_took_nothing_is_not_recorded",
    "a_late_copy_of_a_dequeue_takes_no_job",
    ("      note_dequeue(q, taker.call)\n", ""),
)
mutant(
    "a_dequeue_of_a_paused_queue_is_not_recorded",
    "a_late_copy_of_a_dequeue_takes_no_job",
    ("      note_dequeue(q, call)\n", ""),
)
