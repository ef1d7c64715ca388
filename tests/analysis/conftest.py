"""Settings of hypothesis: no deadlines, because machines are shared, and no files in the checkout."""

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
