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
