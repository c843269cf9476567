"""Mistakes with consumers: clients whose ids begin with `~~`."""

from tests.store.mutant import mutant

mutant(
    "a_consumer_takes_only_one_batch",
    "a_consumer_takes_batch_after_batch",
    ("local one_lease = is_for_one_lease(client)", "local one_lease = client:byte(1) == 126"),
)
mutant(
    "a_repeated_request_of_a_consumer_brings_all_its_jobs",
    "a_repeated_request_of_a_consumer_brings_the_same_jobs",
    ("local one_lease = is_for_one_lease(client)", "local one_lease = client:byte(1) == 126"),
)
mutant(
    "a_consumer_ends_with_its_lease",
    "a_consumer_outlives_its_leases",
    ("if is_for_one_lease(run.client) then", "if run.client:byte(1) == 126 then"),
)
mutant(
    "an_extension_shortens_the_leases_of_a_consumer",
    "an_extension_of_one_lease_does_not_shorten_the_others_of_a_consumer",
    ("not is_for_one_lease(client) and new_expiry", "client:byte(1) ~= 126 and new_expiry"),
)
mutant(
    "an_idle_consumer_is_not_extended",
    "an_idle_consumer_that_waits_needs_no_bump",
    ("  if is_for_one_lease(client) then\n    return 0\n",
     "  if client:byte(1) == 126 then\n    return 0\n"),
)  # fmt: skip
mutant(
    "a_destroy_does_not_mark_consumers",
    "a_consumer_learns_that_its_queue_was_destroyed",
    ("if not is_for_one_lease(clients[i]) then", "if clients[i]:byte(1) ~= 126 then"),
)
mutant(
    "a_consumer_needs_no_registration",
    "a_consumer_that_was_not_registered_takes_nothing",
    ("if not expiry and (request or not one_lease) then", "if not expiry and request then"),
)
mutant(
    "a_swept_consumer_comes_back",
    "a_consumer_that_dies_loses_its_leases_as_an_expiry_and_stays_dead",
    ("if not expiry and (request or not one_lease) then", "if not expiry and request then"),
)
mutant(
    "the_death_of_a_consumer_is_a_stall",
    "a_consumer_that_dies_loses_its_leases_as_an_expiry_and_stays_dead",
    ("local verb = client:byte(1) == 126 and", "local verb = client:find('^~[^~]') and"),
)
mutant(
    "an_eviction_counts_as_a_stall",
    "an_evicted_consumer_gives_back_its_jobs_and_no_attempt_is_counted",
    ("end_client(q, batch, client, new_budget(), 'release')",
     "end_client(q, batch, client, new_budget(), 'stall')"),
)  # fmt: skip
mutant(
    "any_number_of_tildes_is_accepted",
    "an_id_with_three_tildes_is_refused",
    ("text:match('^~?~?[%w_-]+$')", "text:match('^~*[%w_-]+$')"),
)
