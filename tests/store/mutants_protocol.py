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
    "calls_of_older_revisions_are_carried_out",
    "a_call_of_a_revision_before_8_is_refused",
    ("if argv[1] == '' and argv[2] ~= '' then", "if false then"),
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
    ("if not FIELDS[name] then", "if false then"),
)
mutant(
    "bytes_after_the_record_of_an_ending_are_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("type(record) ~= 'table' or rest ~= -1 then", "type(record) ~= 'table' then"),
)
mutant(
    "an_unknown_word_is_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("WORDS[word] or refuse('unknown word of a dequeue: ' .. word)", "true"),
)
mutant(
    "further_arguments_of_a_dequeue_are_ignored",
    "what_the_library_does_not_know_is_refused_before_anything_is_written",
    ("if #argv ~= 9 + 4 * endings then", "if #argv < 9 + 4 * endings then"),
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
