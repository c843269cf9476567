"""Mistakes in plain jobs, which the library writes in bulk."""

from tests.store.mutant import mutant

mutant(
    "no_token_comparison_of_plain_leases",
    "a_plain_finish_with_a_stale_token_changes_nothing",
    ("if found ~= token or #token > 16 then", "if not found then"),
)
mutant(
    "the_same_finish_twice_in_a_call",
    "a_plain_lease_ends_once_and_leaves_nothing",
    (".. id\n      ended[id], any = true, true", ".. id\n      any = true"),
)
mutant(
    "a_plain_finish_keeps_data",
    "a_plain_lease_ends_once_and_leaves_nothing",
    ("  batch:bulk_del_unread(q.data, plain.ids, plain.n)\n", ""),
)
mutant(
    "a_plain_finish_drops_the_held_dispatch",
    "a_held_dispatch_becomes_a_new_job_when_a_plain_run_finishes",
    ("raw and not helds[i] and has_bulk_path", "raw and has_bulk_path"),
)
mutant(
    "the_long_entry_stays_among_the_leases",
    "many_leases_are_stored_as_a_table_without_the_long_entry",
    ("    batch:rem(q.leases, LONG_ENTRY)\n", ""),
)
mutant(
    "many_leases_stay_a_listpack",
    "many_leases_are_stored_as_a_table_without_the_long_entry",
    ("local BULK = 8", "local BULK = 1e6"),
)
mutant(
    "the_long_entry_stays_in_data",
    "many_jobs_are_stored_as_tables_without_the_long_entry",
    ("    batch:del(q.data, LONG_ENTRY)\n", ""),
)
mutant(
    "the_long_entry_stays_in_waiting",
    "many_jobs_are_stored_as_tables_without_the_long_entry",
    ("  batch:rem(q.waiting, LONG_ENTRY)\n", ""),
)
mutant(
    "the_long_entry_stays_among_the_counters",
    "the_counters_of_an_older_queue_are_stored_as_a_table",
    ("  batch:del(q.stats, LONG_ENTRY)\n", ""),
)
mutant(
    "a_client_that_stops_waiting_ignores_other_waiters",
    "a_client_that_got_a_job_is_not_a_waiter",
    (
        "  if #redis.call('ZRANGE', q.waiters, 0, 0) == 0 then\n    q.no_waiters",
        "  if true then\n    q.no_waiters",
    ),
)
mutant(
    "the_long_entry_overwrites_a_job_with_that_id",
    "a_job_may_have_the_long_entry_as_its_id",
    ("if n >= BULK and not active[n + 1] and not scores[n + 1] and", "if n >= BULK and"),
)
mutant(
    "the_long_entry_overwrites_a_dispatch_of_the_same_call",
    "a_job_may_have_the_long_entry_as_its_id",
    ("and not scores[n + 1] and not jobs[LONG_ENTRY] then", "and not scores[n + 1] then"),
)
mutant(
    "every_plain_lease_belongs_to_the_sender",
    "many_leases_end_each_by_its_own_token",
    ("(holder == sender and lease_head or holder", "(lease_head or holder"),
)
mutant(
    "a_lease_with_a_requested_cancel_counts_as_plain",
    "many_leases_end_each_by_its_own_token",
    ("  if client == sender or string.find(client, '^[^~:][^:]*$') then", "  if client then"),
)
mutant(
    "any_double_is_a_time",
    "an_infinite_dispatch_time_is_not_a_time",
    ("  return not (high % 128 == 127 and low >= 240)", "  return true"),
)
mutant(
    "a_plain_finish_keeps_info",
    "a_plain_finish_leaves_nothing_of_an_earlier_attempt",
    ("    batch:bulk_del_unread(q.info, plain.ids, plain.n)\n", ""),
)
mutant(
    "keys_of_unread_values_are_not_checked",
    "a_refused_finish_changes_nothing",
    ("  check_unread_keys(self)\n", ""),
)
mutant(
    "a_scheduled_plain_job_has_no_dispatch_time",
    "a_scheduled_dispatch_may_occur_twice_in_a_batch",
    (
        "      if not due then\n        add_scheduled",
        "      if false then\n        add_scheduled",
    ),
)
mutant(
    "a_second_scheduled_dispatch_ignores_the_first",
    "a_scheduled_dispatch_may_occur_twice_in_a_batch",
    ("    if plain.infos[i] == id then", "    if false then"),
)
mutant(
    "a_scheduled_dispatch_wakes_a_waiter",
    "a_scheduled_dispatch_wakes_no_waiter",
    ("(q.due or 0) + plain.n - plain.scheduled", "(q.due or 0) + plain.n"),
)
mutant(
    "a_second_plain_dispatch_ignores_the_first",
    "a_plain_dispatch_may_occur_twice_in_a_batch",
    (
        "if not job and not active[i] and not scores[i] and id ~= ''",
        "if not active[i] and id ~= ''",
    ),
)
mutant(
    "later_writes_come_first",
    "a_plain_dispatch_may_occur_twice_in_a_large_batch",
    ("  of_kind[key] = nil -- later writes to this key come after this command\n", ""),
)
mutant(
    "each_page_of_leases_is_the_first",
    "the_leases_of_one_client_are_listed_in_pages",
    ("    low = '(' .. lease_name(client, cursor)\n", ""),
)
