"""How long to fuzz: a little in every run of the tests, `pytest tests/fuzz
--hypothesis-profile=long` for a while; QUEASY_FUZZ is how many examples of each test.
"""

import os

from hypothesis import HealthCheck, Phase, settings

NAMES = ("quick", "long")
_common = {
    "deadline": None,  # a machine may be busy
    "print_blob": True,
    "suppress_health_check": list(HealthCheck),
    "database": None,
}
settings.register_profile("quick", max_examples=60, **_common)  # type: ignore[arg-type]
settings.register_profile(
    "long",
    max_examples=int(os.environ.get("QUEASY_FUZZ", "5000")),
    phases=[Phase.generate, Phase.target, Phase.shrink],
    **_common,  # type: ignore[arg-type]
)
