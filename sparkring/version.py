"""The version of the package: wheels have it in their name, runs and datasets record it, driver and executors must share it."""

__version__ = "0.1.0"
