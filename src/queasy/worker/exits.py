"""How a child says why it ended. Any other code, or a signal, is a death."""

CANNOT_START = 78  # EX_CONFIG: the application cannot be imported, or the server not be used
LOST = 76  # EX_PROTOCOL: the server took it for dead
UNFINISHED = 75  # EX_TEMPFAIL: stopped, with runs that would not end
