"""How long to fuzz: briefly in every test run; for long with `pytest tests/fuzz
--hypothesis-profile=long`. QUEASY_FUZZ is the number of examples of each test then.
"""

import os

from hypothesis import HealthCheck, Phase, settings

NAMES = ("quick", "long")
_common = {
    "deadline": None,  # the machine may be busy
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
