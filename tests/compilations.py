"""Programs that XLA has compiled since a test has cleared this list."""

import jax

compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
)
