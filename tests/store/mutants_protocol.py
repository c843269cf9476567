"""Seeded mistakes in the form of calls."""

from tests.store.mutant import mutant

mutant(
    "the_number_of_keys_is_not_checked",
    "a_call_with_too_few_keys_is_refused",
    ("elseif #keys < least then", "elseif false then"),
)
mutant(
    "a_call_must_name_exactly_the_keys_it_needs",
    "a_call_may_name_more_keys_than_it_needs",
    ("elseif #keys < least then", "elseif #keys ~= least then"),
)
mutant(
    "keys_in_another_order_are_accepted",
    "a_call_with_the_keys_of_a_revision_before_9_is_refused",
    ("if ninth and ninth:sub(-12) ~= ':waiter_info' then", "if false then"),
)
mutant(
    "an_unknown_option_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    (
        "    if not OPTIONS[name] then\n      refuse('unknown option: '",
        "    if false then\n      refuse('unknown option: '",
    ),
)
mutant(
    "an_unknown_option_to_update_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    (
        "      if not OPTIONS[name] then\n        refuse('unknown option to",
        "      if false then\n        refuse('unknown option to",
    ),
)
mutant(
    "an_unknown_field_of_options_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("if name ~= 'set' and name ~= 'update' then", "if false then"),
)
mutant(
    "an_unknown_field_of_an_ending_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("  check_fields(record)\n", ""),
)
mutant(
    "bytes_after_the_record_of_an_ending_are_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("type(record) ~= 'table' or rest ~= -1 then", "type(record) ~= 'table' then"),
)
mutant(
    "bytes_after_the_record_of_an_error_and_a_time_are_part_of_the_time",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("if size and string.byte(size) == 160 + #when then", "if size then"),
)
mutant(
    "an_unknown_word_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("WORDS[word] or refuse('unknown word of a dequeue: ' .. word)", "true"),
)
mutant(
    "further_arguments_of_a_dequeue_are_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("if #argv ~= 11 + 4 * endings then", "if #argv < 11 + 4 * endings then"),
)
mutant(
    "further_arguments_are_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("elseif arguments and #argv ~= arguments then", "elseif arguments and #argv < arguments then"),
)
mutant(
    "an_unknown_setting_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    (
        "TEXT[name] or refuse('unknown setting: ' .. tostring(name))",
        "TEXT[name] or function() return '' end",
    ),
)
mutant(
    "any_flag_but_1_means_no",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("if text ~= '1' and text ~= '0' then", "if false then"),
)
mutant(
    "the_format_is_not_checked",
    "a_queue_in_a_later_format_is_refused",
    ("if format and format > FORMAT then", "if false then"),
)
mutant(
    "the_format_is_not_recorded",
    "the_first_write_to_a_queue_records_its_format",
    ("    batch:set(q.meta, 'format', FORMAT)\n", ""),
)
mutant(
    "a_lease_may_last_for_ever",
    "a_lease_lasts_at_most_a_day",
    ("if ms > MAX_LEASE_MS then", "if false then"),
)
mutant(
    "an_audit_is_not_bounded",
    "an_audit_checks_at_most_a_thousand_entries",
    ("'the limit', CHUNK)\n  local problem", "'the limit')\n  local problem"),
)
mutant(
    "a_destroy_forgets_a_token_that_is_ahead_of_the_clock",
    "a_queue_with_active_jobs_is_destroyed_only_by_force",
    ("if q.token >= math.floor(q.now * 1000) then", "if false then"),
)
mutant(
    "a_page_is_not_bounded_in_bytes",
    "a_page_of_a_list_ends_after_two_megabytes",
    ("return page.bytes >= MAX_CALL_BYTES", "return false"),
)
mutant(
    "active_jobs_do_not_prevent_a_destroy",
    "a_queue_with_active_jobs_is_destroyed_only_by_force",
    ("if (active > 0 or n > 0) and not force then", "if n > 1 and not force then"),
)
mutant(
    "live_clients_do_not_prevent_a_destroy",
    "a_queue_with_live_clients_is_destroyed_only_by_force",
    ("if (active > 0 or n > 0) and not force then", "if active > 0 and not force then"),
)
mutant(
    "dead_clients_prevent_a_destroy",
    "a_queue_with_live_clients_is_destroyed_only_by_force",
    ("local alive = string.format('(%.17g', expiry_cutoff(q))", "local alive = '-inf'"),
)
mutant(
    "a_destroy_leaves_no_mark",
    "clients_of_a_destroyed_queue_learn_that_and_may_register_again",
    ("      redis.call('HSET', q.requests, clients[i], DESTROYED)\n", ""),
)
mutant(
    "a_bump_lets_the_mark_of_a_destroyed_queue_expire",
    "clients_of_a_destroyed_queue_learn_that_and_may_register_again",
    (
        "      batch:add(q.clients, client, q.now + lease_ms, redis.call('ZSCORE'",
        "      batch:add(q.clients, client, q.now, redis.call('ZSCORE'",
    ),
)
mutant(
    "a_client_that_registers_again_keeps_its_mark",
    "clients_of_a_destroyed_queue_learn_that_and_may_register_again",
    ("    batch:del(q.requests, client, DESTROYED)\n", ""),
)
mutant(
    "a_destroy_marks_pull_leases",
    "a_pull_lease_of_a_destroyed_queue_leaves_nothing",
    ("    if not is_for_one_lease(clients[i]) then\n", "    if true then\n"),
)
mutant(
    "a_destroyed_queue_keeps_its_last_keys",
    "a_queue_without_active_jobs_can_be_destroyed",
    ("unpack(q.keys, 1, #NAMES)", "unpack(q.keys, 1, 10)"),
)
mutant(
    "a_destroy_wakes_no_one",
    "clients_that_wait_in_a_destroyed_queue_are_woken",
    ("  wake_waiters(q, CHUNK)\n  redis.call('UNLINK'", "  redis.call('UNLINK'"),
)
mutant(
    "a_fail_handler_does_not_lapse",
    "a_fail_handler_lapses_unless_it_is_announced_again",
    ("(stored_number(raw[2], MAX_INTEGER) or 0) > q.now", "raw[2] and raw[2] ~= '0'"),
)
mutant(
    "an_announcement_ends_what_was_configured",
    "a_fail_handler_that_was_configured_does_not_lapse",
    ("return stored == '1' and stored or string", "return string"),
)
