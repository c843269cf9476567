"""Which version this is: the one place that says so, the package's build included."""

# Not read from the installed package: what looks there takes longer to import than all of Queasy.
VERSION = "0.1.0"
