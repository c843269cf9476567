"""Properties here run as often as the fuzz tests: see `tests/fuzz/profiles.py`."""

from hypothesis import settings

from tests.fuzz import profiles

if settings.get_current_profile_name() not in profiles.NAMES:
    settings.load_profile("quick")
