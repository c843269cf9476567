"""Mistakes with the records of waiters."""

from tests.store.mutant import mutant

mutant(
    "other_jobs_are_not_recorded",
    "the_record_of_a_waiter_says_what_it_accepts",
    ("local beside, hand = args.beside > 0 and args.beside or nil,", "local beside, hand = nil,"),
)
mutant(
    "hand_offs_are_not_recorded",
    "the_record_of_a_waiter_says_what_it_accepts",
    ("args.beside or nil, args.takes_handoffs or nil\n", "args.beside or nil, nil\n"),
)
mutant(
    "the_entry_has_a_fraction",
    "the_entry_of_a_waiter_is_only_a_time",
    ("math.floor(poll_at), old_poll_at)", "poll_at, old_poll_at)"),
)
mutant(
    "the_first_record_stays",
    "a_waiter_that_has_no_other_jobs_any_more_is_recorded_as_such",
    ("if record and record ~= old_record then", "if record and not old_record then"),
)
mutant(
    "a_record_that_is_not_needed_stays",
    "a_waiter_that_has_no_other_jobs_any_more_is_recorded_as_such",
    ("elseif old_record and not record then", "elseif false then"),
)
for way in (
    "that_is_woken", "that_hears_no_wake_up", "that_receives_a_job",
    "that_cannot_be_asked_to_poll",
):  # fmt: skip
    mutant(
        f"a_waiter_{way}_leaves_its_record",
        f"the_record_of_a_waiter_{way}_is_removed",
        ("  redis.pcall('HDEL', waiter_info_key(q), waiter)\n", ""),
    )
for client in (
    "a_client_that_takes_a_job", "a_client_that_stops_waiting", "an_evicted_waiter",
    "a_waiter_that_is_swept",
):  # fmt: skip
    mutant(
        f"{client}_leaves_its_record",
        f"the_record_of_{client}_is_removed",
        ("    batch:del_unread(waiter_info_key(q), waiter)\n", ""),
    )
mutant(
    "a_waiter_that_is_gone_leaves_its_record",
    "the_record_of_a_waiter_that_is_gone_is_removed",
    ("      batch:del_unread(waiter_info_key(q), gone[i])\n", ""),
)
mutant(
    "a_destroyed_queue_keeps_records",
    "a_destroyed_queue_has_no_record_of_a_waiter",
    ("redis.call('UNLINK', unpack(q.keys, 1, #NAMES))", "redis.call('UNLINK', q.waiters)"),
)
mutant(
    "a_fail_queue_has_the_records_of_its_queue",
    "the_records_of_the_waiters_of_a_fail_queue_are_its_own",
    ("return q.keys[q.waiters == q.keys[8] and 9 or QUEUE_KEYS + 9]", "return q.keys[9]"),
)
mutant(
    "a_record_that_cannot_be_read_counts_in_part",
    "a_waiter_whose_record_cannot_be_read_is_woken_like_one_without",
    ("  if not record or beside and type(beside) ~= 'number' then\n", "  if not record then\n"),
)
mutant(
    "a_record_with_an_unknown_field_counts_as_none",
    "a_field_of_a_later_revision_leaves_the_others_as_they_are",
    (
        "  if not record or beside and type(beside) ~= 'number' then\n",
        "  if not record or record.room then\n",
    ),
)
mutant(
    "the_audit_does_not_read_records_of_waiters",
    "the_audit_reports_waiters_that_break_the_invariants",
    ("    if record and not read_record(record) then\n", "    if false then\n"),
)
mutant(
    "the_audit_does_not_look_at_the_times_of_waiters",
    "the_audit_reports_waiters_that_break_the_invariants",
    ("    if tonumber(found[i + 1]) % 1 ~= 0 then\n", "    if false then\n"),
)
mutant(
    "the_audit_compares_its_counts_with_themselves",
    "the_audit_reports_waiters_that_break_the_invariants",
    (
        "tallies[i], sizes[i] = tally[name], size(q, name)\n",
        "tallies[i], sizes[i] = tally[name], tally[name]\n",
    ),
)
