"""The version of the package: the only place that states it. The build reads it from here."""

# Not read from the installed package: importlib.metadata takes longer to import than Queasy.
VERSION = "0.1.0"
