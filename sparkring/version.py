"""The version of the package: of the wheel, of what a run or a dataset writes down, and of what driver and executors must share."""

__version__ = "0.1.0"
