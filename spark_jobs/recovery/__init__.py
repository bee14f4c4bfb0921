"""Going on after a failure: what failed, whether to try again, with how many ranks."""
