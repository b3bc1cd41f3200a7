"""Configs, runs and their records; `load` returns the run of a workdir."""


def __getattr__(name: str):
    if name == "load":
        from experiments.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
