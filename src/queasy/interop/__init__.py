"""The protocols of other job queues, spoken unchanged: one module for each of them."""
