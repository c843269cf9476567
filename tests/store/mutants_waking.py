"""Mistakes in waking clients."""

from tests.store.mutant import mutant

mutant(
    "a_full_batch_wakes_no_client",
    "a_client_that_takes_a_full_batch_wakes_the_next",
    ("and not q.no_waiters and is_due(", "and #jobs < 5 * args.limit and is_due("),
)
mutant(
    "a_batch_wakes_a_client_for_nothing",
    "a_client_that_takes_the_last_due_job_wakes_no_other",
    ("  if is_due(q) then\n    wake_waiters(q, 1)\n", "  if true then\n    wake_waiters(q, 1)\n"),
    ("and not q.no_waiters and is_due(q, args.skips_suspects)", ""),
)
