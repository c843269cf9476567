"""The faults: each is a function of the system under test, and is undone after a while."""
